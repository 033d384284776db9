# Everything runs from .venv, which each target sets up as far as it needs.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
# Python compiles what is imported: to compile all of every package takes longer than to install it.
PIP    := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
# The packages of some files in requirements/, which name versions and hashes: no other file gets in.
LOCKED  = $(PIP) --require-hashes $(patsubst %,--requirement requirements/%.txt,$(1))

# The CuPy wheel that fits this machine: the newest CUDA its NVIDIA driver can run, ROCm, or none.
CUDA        := $(shell nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p')
ACCELERATOR := $(if $(CUDA),$(if $(filter 12,$(CUDA)),cuda12,$(if $(filter 11 10 9,$(CUDA)),,cuda13)),$(if $(wildcard /opt/rocm/bin),rocm))
# Why there is none where there is nvidia-smi: its driver is too old, or it says what is wrong.
OLD    = $(if $(filter 11 10 9,$(CUDA)),: the NVIDIA driver supports CUDA $(CUDA) and CuPy needs 12 or newer: update it)
BROKEN = $(if $(CUDA),,$(shell command -v nvidia-smi >/dev/null && nvidia-smi 2>&1 | sed 's/^/: /; q'))

# Up to eight: more only wait for each other, for memory and for the GPU.
TEST_PROCESSES := $(shell n=$$(nproc 2>/dev/null || sysctl -n hw.ncpu); [ $$n -gt 8 ] && echo 8 || echo $$n)

# What spells out the repository's address; tests/test_address.py compares them.
ADDRESSED := pyproject.toml action.yml CITATION.cff README.md doc/where_it_runs.md notebooks/13_colab.ipynb

.PHONY: help setup amd train data test sweep check lint newcomer size notebooks browser site sitetest bench profile climb \
  doctor address lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: $(VENV)/.core  ## create .venv with the packages for this machine (CUDA 12, CUDA 13, ROCm or CPU)
	@echo "ready: $(RUN) (accelerator: $(or $(ACCELERATOR),none found$(OLD)$(BROKEN)))"

amd: $(VENV)/.amd  ## add a compiler for AMD's GPUs, 0.4 GB: without it, the tests of their code are skipped

train: $(VENV)/.core  ## fine-tune GPT-2 124M on tinyshakespeare; flags: make train ARGS="-b 8 -x 100"
	@$(RUN) -m trainer $(ARGS)

data: $(VENV)/.data  ## prepare a text or a benchmark: make data NAME=tinystories, fineweb, hellaswag
	@$(RUN) -m trainer prepare $(NAME) $(ARGS)

test: $(VENV)/.test  ## run the tests; no GPU needed, the same ones use a GPU where there is one
	@$(RUN) -m pytest --numprocesses $(TEST_PROCESSES) --every 16 -m "not (sweep or site)" $(ARGS)

sweep: $(VENV)/.test  ## every rung at every shape, every planted bug, every notebook: most of an hour
	@$(RUN) -m pytest --numprocesses $(TEST_PROCESSES) -m sweep $(ARGS)

check: lint  ## what to run before each commit: style, types and the fast tests, in a minute
	@$(RUN) -m pytest --numprocesses $(TEST_PROCESSES) --every 16 -m "not (slow or emulator or nvrtc or gpu or torch or sweep or site)" $(ARGS)

lint: $(VENV)/.test  ## check format, style and types
	@$(RUN) -m ruff format --check . && $(RUN) -m ruff check .
	@if $(RUN) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then $(RUN) -m mypy; \
	  else echo "types: checked on Python 3.11 only, since NumPy's differ from Python to Python"; fi

# Another number of rows per block: right, and compiled anew, so that pages and results are of older code.
newcomer:  ## play a newcomer's first change: clone, edit a line of a kernel, make check
	@rm -rf build/newcomer && git clone --quiet . build/newcomer
	@sed -i 's/^\(.. Define: ROWS = \)4$$/\18/' build/newcomer/ladder/layernorm/forward/3_warp_per_row.cu
	@! git -C build/newcomer diff --quiet && $(MAKE) --directory build/newcomer check

size: $(VENV)/.core  ## count lines of code, kernels and tests, and the words of each page
	@$(RUN) -m tests.size

notebooks: $(VENV)/.notebooks  ## open your copies of the notebooks, in my/, in JupyterLab
	@$(RUN) -m ladder notebooks --copy
	@$(RUN) -m jupyter lab --LabApp.extra_labextensions_path=notebooks/jupyterlab \
	  --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/my \
	  --FileCheckpoints.checkpoint_dir=$(CURDIR)/build/checkpoints \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

# The page "try it": the packages that doc/site/browser/package-lock.json names, and what they make.
BROWSER := build/browser
browser: $(VENV)/.site
	@rm -rf $(BROWSER)/npm/src && mkdir -p $(BROWSER)/npm && cp -r doc/site/browser/. $(BROWSER)/npm
	@if ! command -v npm >/dev/null; then echo "no npm: the site's page 'try it' has no editor; install Node.js 20 or newer"; \
	elif npm ci --prefix $(BROWSER)/npm --ignore-scripts --no-audit --no-fund --silent; then \
	  $(RUN) doc/site/exercises.py $(BROWSER)/static/try/exercises && \
	  node --no-warnings $(BROWSER)/npm/build.mjs $(BROWSER)/static/try; \
	else echo "npm could not fetch its packages: the site's page 'try it' has no editor"; fi

site: $(VENV)/.site browser  ## build the documentation site, build/site/index.html
	@$(RUN) -m sphinx --quiet --fail-on-warning --keep-going --jobs auto \
	  --conf-dir doc/site --doctree-dir build/doctrees . build/site

sitetest: site $(VENV)/.sitetest  ## follow the links of the site; with Chromium, look at every page of it
	@$(RUN) -m pytest -ra tests/site $(ARGS)

bench: $(VENV)/.core  ## time one training step on this machine and write doc/results
	@$(RUN) -m trainer bench $(ARGS)

profile: $(VENV)/.core  ## time and memory of one training step by op, into doc/results
	@$(RUN) -m trainer profile $(ARGS)

climb: $(VENV)/.core  ## what each ladder is worth to the training step, on a GPU, into doc/results
	@$(RUN) -m trainer climb $(ARGS)

doctor: $(VENV)/.core  ## say what this machine has, and what will run on it
	@$(RUN) -m trainer doctor

# What needs an address is a comment until there is one.
address: $(ADDRESSED)  ## enter the owner on GitHub wherever YOUR_NAME stands: make address OWNER=name
	@$(if $(OWNER),,echo "say who owns the repository on GitHub: make address OWNER=name" >&2; exit 2)
	@sed -i 's/<!-- with an address: \(.*\) -->/\1/; s/^# with an address: //; s#YOUR_NAME\([/.]\)#$(OWNER)\1#g' $^
	@sed -i 's#ADDRESS = ."."#ADDRESS = \\"https://github.com/$(OWNER)/kernel-ladder\\"#' notebooks/13_colab.ipynb

clean:  ## remove .venv, runs and caches inside the repository
	rm -rf $(VENV) build runs .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo "Python 3.10 to 3.14 is needed, $(PYTHON) is another: make PYTHON=/path/to/python3.12 …" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

$(VENV)/.core: $(VENV)/bin/python pyproject.toml $(wildcard requirements/*.txt)
	@echo "installing packages into $(VENV), about a minute …"
	@$(call LOCKED,core $(ACCELERATOR))
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	@$(call LOCKED,core test compile)
	@touch $@

$(VENV)/.data: $(VENV)/.core
	@$(call LOCKED,core data)
	@touch $@

$(VENV)/.amd: $(VENV)/.core
	@$(call LOCKED,core amd)
	@touch $@

$(VENV)/.notebooks: $(VENV)/.core
	@$(call LOCKED,core test notebooks compile)
	@touch $@

$(VENV)/.site: $(VENV)/.core
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "the site needs Python 3.11 or newer: make clean, then make site PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(call LOCKED,core test site)
	@touch $@

$(VENV)/.sitetest: $(VENV)/.site
	@$(call LOCKED,core test site sitetest)
	@touch $@

# Extras add to core, and name only what core lacks: also what it has for older Pythons or PyPy alone.
# `make lock UPGRADE=--upgrade` takes new versions.
LOCK = uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
  --custom-compile-command "make lock" $(UPGRADE) pyproject.toml
LACKING = $$(sed -n "/implementation_name/d; s/^\([a-z0-9.-]*\)==.* < '3.15' .*/--no-emit-package \1/p" \
  $(patsubst %,requirements/%.txt,$(1)) | sort -u)

lock:  ## resolve the packages of pyproject.toml anew into requirements/; needs uv
	$(LOCK) --extra train --extra completion requirements/build.in --output-file requirements/core.txt
	$(LOCK) --extra test --constraint requirements/core.txt $(call LACKING,core) --output-file requirements/test.txt
	for extra in notebooks compile data amd site sitetest cuda12 cuda13 rocm; do \
	  $(LOCK) --extra $$extra --constraint requirements/core.txt --constraint requirements/test.txt \
	    $(call LACKING,core test) --output-file requirements/$$extra.txt || exit 1; \
	done
