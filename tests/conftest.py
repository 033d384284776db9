"""Settings for every test: fuzzing draws the same examples in every run, and has no stop-watch."""

import os
import sys

from hypothesis import settings

# The processes of pytest-xdist share the cores: NumPy's products take only their share of threads.
assert "numpy" not in sys.modules, "too late to limit the threads of NumPy's products"
_share = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", str(max(1, _share)))

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
