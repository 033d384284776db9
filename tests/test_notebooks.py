"""The notebooks run from top to bottom, read well as committed, and show today's kernels."""

import os
import re
import sys

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from ladder.core.common.errors import LadderError
from ladder.core.contract.dtypes import DTYPES, REALS
from ladder.core.contract.ladder import find, ladders
from ladder.core.device.cuda import compiler, nvrtc
from ladder.core.device.open import default_device
from ladder.core.measure import results
from ladder.core.show import notebook, pages
from ladder.core.show.execute import FOLDER, execute
from trainer.data.download import VARIABLE

NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
MOST_BYTES = 1_500_000  # a web page shows no larger ones
LONGEST_CELL = 12  # lines, beside the text of a kernel
QUICK = ("00_start",)  # `make test` runs these and their exercises, `make sweep` the others
FOLDERS = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|var|opt|workspace)/[\w./-]+")


def pytest_generate_tests(metafunc):
    """Each test of a notebook, for each notebook. One process takes all tests of a notebook, which
    runs once for them."""
    if "path" not in metafunc.fixturenames:
        return
    runs = "executed" in metafunc.fixturenames
    cases = [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xdist_group(path.stem)]
            + [pytest.mark.sweep] * (runs and path.stem not in QUICK),
        )
        for path in NOTEBOOKS
    ]
    metafunc.parametrize("path", cases, scope="module")


@pytest.fixture(scope="module")
def committed(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def executed(path, tmp_path_factory):
    """The notebook run afresh, in a new process that finds this repository's package, and what data
    there is, but no network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # where nobody answers
        if VARIABLE not in os.environ:
            patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("data")))
        found = [str(pages.ROOT), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
        return execute(path)  # fails at the first cell that does


def code_cells(content):
    return [cell for cell in content.cells if cell.cell_type == "code"]


def markdown_outputs(content):
    """What the cells say of kernels: sources, diffs, tables. It is the same on every machine."""
    return [
        output.data["text/markdown"]
        for cell in code_cells(content)
        for output in cell.outputs
        if output.output_type == "display_data" and "text/markdown" in output.data
    ]


def verdicts(content):
    """What `check` says first, ✓ or ✗, in the order of the cells."""
    return [
        mark
        for cell in code_cells(content)
        for output in cell.outputs
        if output.output_type == "stream"
        for mark in re.findall(r"^[✓✗]", output.text, flags=re.MULTILINE)
    ]


def test_there_are_notebooks():
    assert [path.name for path in NOTEBOOKS][:1] == ["00_start.ipynb"]
    assert set(QUICK) < {path.stem for path in NOTEBOOKS}


@pytest.mark.emulator
def test_it_runs_from_top_to_bottom(executed):
    for cell in code_cells(executed):
        assert cell.execution_count is not None
        assert not [output for output in cell.outputs if output.output_type == "error"]


@pytest.mark.slow
def test_the_kernel_that_runs_it_is_this_python(tmp_path):
    cell = nbformat.v4.new_code_cell("import sys; print(sys.executable)")
    one = tmp_path / "which.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), one)
    assert execute(one).cells[0].outputs[0].text.strip() == sys.executable


@pytest.mark.slow
def test_an_error_with_a_remedy_comes_without_a_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(pages.ROOT))
    lines = "from ladder.core.show import notebook as nb", 'nb.show("start.ad", 1)'
    one = tmp_path / "error.ipynb"
    cells = [nbformat.v4.new_code_cell(line) for line in lines]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), one)
    with pytest.raises(CellExecutionError) as caught:
        execute(one)
    assert caught.value.evalue.startswith("no op is named 'start.ad'; did you mean start.add")
    assert "Traceback" not in caught.value.traceback


def test_it_is_committed_with_its_outputs(committed):
    counts = [cell.execution_count for cell in code_cells(committed)]
    assert counts == list(range(1, len(counts) + 1)), "python -m ladder notebooks runs it in order"
    kinds = {
        kind for cell in code_cells(committed) for o in cell.outputs for kind in o.get("data", ())
    }
    assert kinds >= {"text/markdown", "image/svg+xml"}
    assert "image/png" not in kinds, "nb.draw and nb.draw_for_all_pages serve dark pages, too"


@pytest.mark.emulator
def test_the_checker_accepts_and_refuses_what_the_text_says(committed, executed):
    assert set(verdicts(committed)) == {"✓", "✗"}
    assert verdicts(executed) == verdicts(committed)


@pytest.mark.emulator
def test_what_it_shows_of_kernels_is_up_to_date(committed, executed):
    if default_device() == "cuda":
        pytest.skip("with a GPU, pictures of measurements stand where text stands without one")
    assert markdown_outputs(committed) == markdown_outputs(executed), (
        "the kernels or results have changed: python -m ladder notebooks"
    )


def test_it_says_nothing_about_the_machine_that_ran_it(path, committed):
    assert not FOLDERS.findall(path.read_text(encoding="utf-8"))
    assert set(committed.metadata) <= {"kernelspec", "language_info"}
    assert not any(set(cell.metadata) - {"tags"} for cell in committed.cells)


def test_it_is_small_enough_for_a_web_page(path):
    assert path.stat().st_size < MOST_BYTES


def test_its_cells_are_short(committed):
    for cell in code_cells(committed):
        text = re.sub(r'r""".*?"""', "", cell.source, flags=re.DOTALL)
        assert len(text.splitlines()) <= LONGEST_CELL


def test_its_links_lead_to_files(path, committed):
    texts = [cell.source for cell in committed.cells if cell.cell_type == "markdown"]
    texts += markdown_outputs(committed)
    links = [link for text in texts for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    assert links
    for link in links:
        assert (path.parent / link).exists(), link


# ---- the functions that the notebooks call ------------------------------------------------------


@pytest.fixture
def shown(monkeypatch):
    """What is displayed: Markdown and SVG as text, PNG as bytes."""
    seen = []
    monkeypatch.setattr(notebook, "display", lambda thing: seen.append(thing.data))
    return seen


def test_a_kernel_in_a_string_is_run_on_arrays():
    source = ladders()["start.add"].rung(3).source
    for kernel in (3, source):
        result = notebook.run("start.add", kernel, {"N": 5}, a=range(5), b=10)
        assert result["c"].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.slow
def test_a_kernel_that_does_not_compile_gives_a_message_without_folders(capsys):
    source = ladders()["start.add"].rung(3).source.replace("a[i]", "nonsense[i]")
    notebook.check("start.add", source, device="emulated")
    text = capsys.readouterr().out
    assert text.startswith("✗ kernel.cu:")
    assert "nonsense" in text
    assert not FOLDERS.search(text)


def test_a_passing_rung_is_reported_as_passing(capsys):
    notebook.check("start.add", 3)
    assert capsys.readouterr().out.startswith("✓ start.add rung 3")


def test_a_passage_of_a_rung_stands_below_a_link_to_its_file(shown):
    notebook.passage("start.add", 3, first="// Expect", last="// Launch")
    link, _, code = shown.pop().partition("\n\n")
    assert link == "[3_thread_per_element.cu](../ladder/start/add/3_thread_per_element.cu)"
    first, *_, last = code.splitlines()[1:-1]
    assert first.startswith("// Expect") and last.startswith("// Launch")
    with pytest.raises(LadderError, match="no line with zzz"):
        notebook.passage("start.add", 3, first="zzz", last="// Launch")


@pytest.mark.slow
def test_pictures_are_images(shown):
    notebook.drawing("machine")
    notebook.access("start.add", 1, "c[i]", N=4096)
    notebook.traffic("start.add", (1, 2), N=4096)
    assert [image[:4] for image in shown] == ["<svg"] * 3


MEASUREMENT = {
    "op": "start.add",
    "dtype": "float32",
    "shape": "N=2^26",
    "dims": {"N": 1 << 26},
    "bytes": 12 << 26,
    "flops": 1 << 26,
    "inputs": "random",
    "in_cache": False,
    "roof": {"copy_gbps": 4000.0, "matrix_tflops": None},
    "date": "2026-01-01",
    "commit": None,
    "software": {},
    "rows": [
        {"rung": "1", "idea": "one block", "code": "", "median_us": 90000.0},
        {"rung": "3", "idea": "one thread per element", "code": "", "median_us": 220.0},
    ],
}


def test_measurements_are_drawn_where_there_are_any(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    notebook.bars_and_roofline("start.add")
    assert "No measurement to show yet: start.add has not been measured" in shown.pop()
    results.record({"gpu": "Fake 9000"}, MEASUREMENT)
    notebook.bars_and_roofline("start.add")
    assert [image[:4] for image in shown] == ["<svg"] * 2


# ---- the exercises ------------------------------------------------------------------------------

ONE_PASS = """if (value > largest) {
            sum *= __expf(largest - value);
            largest = value;
        }
        sum += __expf(value - largest);
"""
WRONG = {  # title of an exercise: changes of its solution, and what the refusal must say
    "many elements per thread": [
        (("i += stride", "i += blockDim.x"), "elements are wrong"),
    ],
    "each position's row once": [
        (
            ("token + position", "token + to_float(wpe[(size_t)t * C + i])"),
            "too many sectors of wpe: 4,096",
        ),
        (
            (
                "int i = threadIdx.x; i < C; i += blockDim.x",
                "int i = threadIdx.x * C / 128; i < (threadIdx.x + 1) * C / 128; i++",
            ),
            "too many sectors of",
        ),
        (("int bt = b * T + t;", "int bt = t * B + b;"), "elements are wrong"),
    ],
    "no atomics for positions": [
        (
            ("dwpe[(size_t)t * C + i] += sum;", "atomicAdd(&dwpe[(size_t)t * C + i], sum);"),
            "too many atomics of dwpe: 1,024",
        ),
        (("dwpe[(size_t)t * C + i] += sum", "dwpe[(size_t)t * C + i] = sum"), "wrong"),
        (("(size_t)b * T + t) * C", "(size_t)t * B + b) * C"), "elements are wrong"),
        (
            (
                "int t = blockIdx.x;\n    for (int i = threadIdx.x; i < C; i += blockDim.x) {",
                "int t = blockIdx.x * 128 + threadIdx.x;\n    if (t >= T) return;\n"
                "    for (int i = 0; i < C; i++) {",
            ),
            "too many sectors of dout: 9,216",
        ),
        (("positions<<<T, 128>>>", "positions<<<P, 128>>>"), "outside of"),
    ],
    "one block per run": [
        (
            ("dwte[(size_t)token * C + i] += sum;", "atomicAdd(&dwte[token * C + i], sum);"),
            "too many atomics: 704",
        ),
        (
            ("    if (first > 0 && sorted[first - 1] == token) return;", ""),
            "race on dwte",
        ),
        (("place < B * T && sorted", "sorted"), "outside of"),
        (
            (
                "            sum += to_float(dout[(size_t)order[place] * C + i]);\n        }\n"
                "        dwte[(size_t)token * C + i] += sum;",
                "            dwte[(size_t)token * C + i] += "
                "to_float(dout[(size_t)order[place] * C + i]);\n        }",
            ),
            "too many sectors of dwte",
        ),
    ],
    "a row for each warp": [
        (("warp_sum(squares) / C", "squares / C"), "elements are wrong"),
        (("if (lane == 0) {", "if (row == 0) {"), "no thread writes these elements"),
        (
            (
                "for (int i = lane; i < C; i += WARP_SIZE) {\n        float centred",
                "for (int i = lane * C / WARP_SIZE; i < (lane + 1) * C / WARP_SIZE; i++) {\n"
                "        float centred",
            ),
            "too many sectors of inp: 2,560",
        ),
    ],
    "distances from the first value": [
        (("float first = to_float(x[0]);", "float first = 0.0f;"), "large mean"),
        (("mean[row] = first + m", "mean[row] = m"), "elements are wrong"),
        (
            (
                "float first = to_float(x[0]);",
                "float first = 0.0f;\n    for (int i = 0; i < C; i++) first += to_float(x[i]) / C;",
            ),
            "too many sectors of inp: 6,144",
        ),
    ],
    "the row stays in registers": [
        (("(xs[j] - m) * r", "(to_float(x[i]) - m) * r"), "too many sectors of inp: 512"),
    ],
    "tiles in shared memory": [
        (
            ("a[y][k] *", "to_float(inp[(size_t)min(row, N - 1) * C + min(start + k, C - 1)]) *"),
            "too many sectors: 11,264",
        ),
        (("b[x][k];\n        __syncthreads();", "b[x][k];"), "race on"),
        (("row < N && i < C ? to_float", "row < N ? to_float"), "outside of"),
    ],
    "4 x 4 outputs in registers": [
        (("as[i] * bs[j]", "as[i] * b[k][x + j * THREADS]"), "too many loads per multiply-add"),
        (("as[i] * bs[j]", "as[i] * bs[i]"), "elements are wrong"),
    ],
    "any size, no bank conflicts": [
        (("PAD = 2", "PAD = 1"), "too many extra wavefronts: 256"),
        (("    float sums", "    if (row + y >= N) return;\n    float sums"), "barrier"),
        (("start + k < C;", "start < C;"), "outside of"),
        (("            if (r >= N || c >= OC) continue;\n", ""), "outside of"),
    ],
    "fragments by hand": [
        (
            ("a[1] = pair(A + (g + 8) * C + k + 2 * t)", "a[1] = pair(A + g * C + k + 2 * t + 8)"),
            "elements are wrong",
        ),
        (
            ("g + i / 2 * 8, c = 2 * t + i % 2", "g + i % 2 * 8, c = 2 * t + i / 2"),
            "elements are wrong",
        ),
    ],
    "swizzled tiles": [
        (("p ^ r % 8", "p ^ r / 2 % 4"), "too many extra wavefronts"),
        (("ROW = DEPTH; ", "ROW = DEPTH + VECTOR; "), "too many shared bytes: 18,"),
        (("p ^ r % 8", "p + r % 8"), "across the end of shared memory"),
    ],
    "a double buffer filled by cp.async": [
        (("cp_async_wait<1>", "cp_async_wait<0>"), "too many steps without a copy: 6"),
        (("cp_async_wait<1>", "cp_async_wait<2>"), "no cp_async_wait and barrier between them"),
        (("y, x);\n        __syncthreads();", "y, x);"), "race on"),
        (
            ("cp_async_commit();  // in", "if (step + 1 < steps) cp_async_commit();  // in"),
            "no cp_async_commit and cp_async_wait cover it",
        ),
    ],
    "a ring of three stages": [
        (("cp_async_wait<STAGES - 2>", "cp_async_wait<0>"), "too many early waits"),
        (
            (
                "cp_async_wait<STAGES - 2>();\n        __syncthreads();",
                "__syncthreads();\n        cp_async_wait<STAGES - 2>();",
            ),
            "race on",
        ),
        (
            ("cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>"),
            "no cp_async_wait and barrier between them",
        ),
    ],
    "one stage, and who waits": [
        (("        mbarrier_wait(&full, parity);\n", ""), "with no wait at the mbarrier"),
        (("        parity ^= 1;\n", ""), "once more before phase 1 has ended"),
        (("        wgmma_wait<0>(sums);\n", ""), "no wgmma_commit and wgmma_wait cover it"),
        (
            ("        __syncthreads();  // all four warps are done with the tiles\n", ""),
            "race on a in shared memory",
        ),
    ],
    "a producer, consumers and a ring": [
        (("parity ^ 1)", "0)"), "waits at the mbarrier empty[0] for the end of phase 0"),
        (
            ("            mbarrier_wait(&empty[stage], parity ^ 1);\n", ""),
            "once more before phase 0 has ended",
        ),
        (("empty[i], 4", "empty[i], 1"), "race on tiles"),
    ],
    "products in flight": [
        (("wgmma_wait<1>();", "wgmma_wait<0>();"), "too many waits for all products: 13"),
        (("lane == 0 && start > 0", "lane == 0"), "race on tiles"),
        (("&empty[last]", "&empty[stage]"), "deadlock"),
        (("    wgmma_wait<0>(sums);\n", ""), "no wgmma_commit and wgmma_wait cover it"),
    ],
    "two blocks share a tile": [
        (
            (
                "half * DEPTH, &inp_tiles, &full[stage], start,\n"
                "                                  row + half, 3);",
                "half * DEPTH, &inp_tiles, &full[stage], start,\n"
                "                                  row + half, 1 << half / (TILE / 2));",
            ),
            "4096 bytes have yet to be copied",
        ),
        (
            (
                "tma_load_2d_multicast(a + stage * AREA + half * DEPTH, &inp_tiles, &full[stage], "
                "start,\n                                  row + half, 3);",
                "for (int i = 0; i < TILE; i += TILE / 2) tma_load_2d(a + stage * AREA + "
                "i * DEPTH, &inp_tiles, &full[stage], start, row + i);",
            ),
            "too many bytes read by TMA: 131,072",
        ),
        (("empty[i], 8", "empty[i], 4"), "once more before phase 0 has ended"),
        (
            (
                "lane < 2 && start > 0) mbarrier_arrive_at(&empty[last], lane)",
                "lane == 0 && start > 0) mbarrier_arrive(&empty[last])",
            ),
            "deadlock",
        ),
    ],
    "online softmax": [
        (("largest = LOWEST", "largest = -INFINITY"), "masked logits"),
        (("largest = LOWEST", "largest = 0.0f"), "logits far from 0"),
        (("total * expf(before - largest)", "total"), "elements are wrong"),
        (("warp_sum(total * expf(own - largest))", "warp_sum(total)"), "elements are wrong"),
        (
            (
                "total = warp_sum(total * expf(own - largest));",
                "total = 0.0f;\n    for (int i = lane_id(); i < V; i += WARP_SIZE) "
                "total += expf(to_float(x[i]) - largest);\n    total = warp_sum(total);",
            ),
            "too many sectors of logits: 1,536",
        ),
    ],
    "FlashAttention, a warp per query": [
        (("start <= first", "start < T"), "too many sectors of qkv: 9,216"),
        (("sums[c] *= rescale;", ""), "elements are wrong"),
        (("__syncthreads();  // the tiles", "// the tiles"), "race on"),
        (("__syncthreads();  // all", "// all"), "race on"),
        (("__syncwarp();", ""), "race on p"),
        (("    float largest =", "    if (query >= T) return;\n    float largest ="), "barrier"),
    ],
    "recomputed probabilities": [
        (("start = first; start", "start = 0; start"), "too many sectors: 26,112"),
        (("__syncwarp();  // both", "// both"), "race on"),
        (("key <= query && query < T", "query < T"), "elements are wrong"),
        (("to_real(dk[c] * rsqrtf(HS))", "to_real(dk[c])"), "elements are wrong"),
    ],
    "vectors, and one exponential": [
        (
            (
                "Vec xs = load_vec(inp + i), ys;\n        for (int k = 0; k < VECTOR; k++) "
                "ys[k] = to_real(gelu(to_float(xs[k])));\n        store_vec(out + i, ys);",
                "for (int k = 0; k < VECTOR; k++) "
                "out[i + k] = to_real(gelu(to_float(inp[i + k])));",
            ),
            "too many sectors: 4,096",
        ),
        (
            (
                "__fdividef(x, 1.0f + __expf(-2.0f * u));",
                "x * __expf(2.0f * u) / (1.0f + __expf(2.0f * u));",
            ),
            "infinity - infinity",
        ),
        (("i + VECTOR <= N", "i < N"), "across the end of inp"),
        (
            ("__fdividef(x, 1.0f + __expf(-2.0f * u))", "0.5f * x * (1.0f + tanhf(u))"),
            "calls of tanhf",
        ),
        (
            (
                "int i = (blockIdx.x * BLOCK + threadIdx.x) * VECTOR;",
                "int i = blockIdx.x * BLOCK * VECTOR + threadIdx.x;\n"
                "    for (int k = 0; k < VECTOR; k++, i += BLOCK)\n"
                "        if (i < N) out[i] = to_real(gelu(to_float(inp[i])));\n    return;",
            ),
            "too many requests: 256",
        ),
    ],
    "the sum stays in registers": [
        (
            (
                "squares += (xs[j] - m) * (xs[j] - m);",
                "float x = to_float(residual[start + j * WARP_SIZE + lane]);\n"
                "        squares += (x - m) * (x - m);",
            ),
            "too many sectors of residual: 1,536",
        ),
        (
            (
                "squares += (xs[j] - m) * (xs[j] - m);",
                "size_t i = start + j * WARP_SIZE + lane;\n"
                "        float x = to_float(inp1[i]) + to_float(inp2[i]);\n"
                "        squares += (x - m) * (x - m);",
            ),
            "too many sectors: 6,160",
        ),
        (
            (
                "        if (j * WARP_SIZE + lane >= C) break;\n        squares",
                "        if (j * WARP_SIZE + lane >= C) xs[j] = 0.0f;\n        squares",
            ),
            "elements are wrong",
        ),
        (("EACH = ceil_div(C, warp)", "EACH = C // warp"), "elements are wrong"),
    ],
    "a mask that is not stored": [
        (("(unsigned)i / 8", "(unsigned)(i / VECTOR)"), "FAILED at N=1000, float32"),
        (("to_float(dys[k])", "to_float(dout[i + k])"), "too many sectors: "),
        (
            (
                "int k = 0; k < VECTOR; k++) {",
                "int k = 0; k < VECTOR; k++) {\n"
                "        unsigned words[4] = {(unsigned)i / 8, stream, rng[2], rng[3]};\n"
                "        philox4x32(words, rng[0], rng[1]);",
            ),
            "too many calls of philox4x32: 5,120",
        ),
        (("to_float(dys[k]) * scale", "to_float(dys[k])"), "a scale factor"),
    ],
    "one barrier for a pair": [
        (("__syncthreads();", "__syncthreads();\n__syncthreads();"), "too many barriers: 2"),
        (("__syncthreads();  // every pair is written before it is read", ""), "race on maxima"),
        (("? maxima[lane_id()] : LOWEST", "? maxima[lane_id()] : 0.0f"), "elements are wrong"),
        (("sum = warp_sum(part * __expf(own - largest));", "sum = warp_sum(part);"), "wrong"),
    ],
    "loss and gradient in one kernel": [
        (
            (
                ONE_PASS,
                "largest = fmaxf(largest, value);\n    }\n"
                "    for (int i = threadIdx.x; i < V; i += BLOCK) {\n"
                "        sum += __expf(to_float(x[i]) - largest);\n",
            ),
            "too many sectors of logits: 2,",
        ),
        (
            ("__syncthreads();  // the whole row is written before its target is overwritten", ""),
            "race on logits",
        ),
        (("i < Vp; i += BLOCK", "i < V; i += BLOCK"), "elements are wrong"),
        (("(correct - largest);", "(to_float(x[target]) - largest);"), "elements are wrong"),
    ],
    "the row waits in shared memory": [
        (
            ("Vec xs = kept[v], ds;", "Vec xs = load_vec(x + v * VECTOR), ds;"),
            "too many sectors of logits",
        ),
        (("Vec xs = kept[v], ds;", "Vec xs = kept[vectors - 1 - v], ds;"), "elements are wrong"),
        (("BLOCK, Vp * sizeof_real>>>", "BLOCK>>>"), "across the end of shared memory"),
    ],
    "one sum for each block": [
        (
            (
                "(size_t)blockIdx.x * BLOCK + threadIdx.x; i < N; i += GRID * BLOCK) {",
                "blockIdx.x == 0 ? threadIdx.x : N; i < N; i += BLOCK) {",
            ),
            "too many sectors per block of grad: 4,096",
        ),
        (
            (
                "        sum += grad[i] * grad[i];\n    }\n    sum = block_sum(sum);\n",
                "        sum += grad[i] * grad[i];\n    }\n    sum = block_sum(sum);\n"
                "    if (blockIdx.x == 0 && threadIdx.x == 0) norm[0] = partial[GRID - 1];\n",
            ),
            "race on partial",
        ),
        (
            ("if (threadIdx.x == 0) partial[blockIdx.x] = sum;", "atomicAdd(partial, sum);"),
            "elements are wrong",
        ),
        (("<<<GRID, BLOCK>>>", "<<<1, BLOCK>>>"), "elements are wrong"),
        (("i += GRID * BLOCK) {", "i += N) {"), "elements are wrong"),
    ],
    "clipped on the device, each byte once": [
        (
            (
                "grad[i] * scale;",
                "grad[i] * hyper[8] * (clip > 0.0f ? "
                "fminf(1.0f, clip / (norm[0] * hyper[8] + 1e-6f)) : 1.0f);",
            ),
            "too many sectors of hyper",
        ),
        (("rate * new_m", "rate * m[i]"), "too many sectors: "),
        (("if (clip > 0.0f) scale", "scale"), "elements are wrong"),
        (("fminf(1.0f, clip / (norm[0] * hyper[8] + 1e-6f))", "clip / norm[0]"), "are wrong"),
        (("(norm[0] * hyper[8] + 1e-6f)", "(norm[0] + 1e-6f)"), "elements are wrong"),
        (("lr / hyper[6]", "lr"), "elements are wrong"),
    ],
    "a weight of 16 bits, rounded at random": [
        (("rng ? round_at_random(exact, random_word(rng, stream, first + i)) : ", ""), "are wrong"),
        (("(rng, stream, first + i))", "(rng, stream, i))"), "elements are wrong"),
        (("bits & 0xffff0000", "bits"), "elements are wrong"),
        (("> (word >> 16)", "< (word >> 16)"), "elements are wrong"),
        (("bits += 0x10000;", "bits += x > 0 ? 0x10000 : -0x10000;"), "elements are wrong"),
        (("master[i] = exact;", "master[i] = to_float(to_real(exact));"), "master["),
    ],
    "two barriers of all ranks": [
        (
            ("    rank_barrier(arrived, R, rank);  // every rank's kernel has begun\n", ""),
            "read of inp of rank 1, whose kernel may not have begun yet",
        ),
        (
            (
                "rank_barrier(arrived, R, rank);  // no rank's kernel ends before all have read",
                "",
            ),
            "whose kernel may have ended by then",
        ),
        (("peer = 0; peer < R", "peer = 1; peer < R"), "elements are wrong"),
    ],
    "every element is added once": [
        (
            (
                "i = rank * share + blockIdx.x * BLOCK + threadIdx.x; i < end",
                "i = blockIdx.x * BLOCK + threadIdx.x; i < N",
            ),
            "race on out",
        ),
        (("min((rank + 1) * share, N)", "(rank + 1) * share"), "outside of"),
        (("out[peer][i] = to_real(sum)", "out[rank][i] = to_real(sum)"), "elements are wrong"),
    ],
    "a ring of ranks": [
        (
            ("        __syncthreads();  // all threads have stored before one signals\n", ""),
            "race on",
        ),
        (("before + step);", "step);"), "race on out"),
        (
            (
                "if (threadIdx.x == 0) wait_flag(&received[rank][blockIdx.x], before + 2 * R - 2);",
                "",
            ),
            "whose kernel may have ended by then",
        ),
        (("before + step + 1)", "before + step)"), "deadlock"),
    ],
    "a sum for each column": [
        (
            (
                "int row = warp; row < N && column < OC; row += WARPS) {\n        sum +=",
                "int row = 0; row < N && column < OC; row++) {\n"
                "        sum += (row % WARPS == warp) *",
            ),
            "too many sectors: 12,",
        ),
        (("__syncthreads();  // all warps have written before the first one reads", ""), "race on"),
        (
            (
                "int row = warp; row < N && column < OC; row += WARPS",
                "int row = warp > 0 ? N : 0; row < N && column < OC; row++",
            ),
            "too many requests per warp: 66",
        ),
        (("row < N && column < OC", "row < N"), "outside of"),
        (
            (
                "    sums[warp][lane] = sum;",
                "    if (column >= OC) return;\n    sums[warp][lane] = sum;",
            ),
            "barrier",
        ),
        (("dbias[column] += sum;", "dbias[column] = sum;"), "overwrites what the output held"),
    ],
    "a block for each token": [
        (
            ("dwte[(size_t)token * C + i] += sum", "dwte[(size_t)token * C + i] = sum"),
            "overwrites what the output held",
        ),
        (
            (
                "if (tokens[bt] == token) sum += to_float(dout[(size_t)bt * C + i]);",
                "if (tokens[bt] != token) continue;\n"
                "            sum += to_float(dout[(size_t)bt * C + i]);\n            break;",
            ),
            "elements are wrong",
        ),
        (("int token = blockIdx.x;", "int token = tokens[blockIdx.x];"), "race on dwte"),
    ],
    "one thread for each element": [
        (("i = threadIdx.x;", "i = threadIdx.x + 1;"), "outside of"),
        (("out[i] = a[i]", "out[0] = a[i]"), "race on out"),
    ],
    "one thread, many blocks": [
        (("blockIdx.x * blockDim.x + threadIdx.x", "threadIdx.x"), "race on out"),
        (("blockIdx.x * blockDim.x", "blockDim.x"), "outside of"),
    ],
    "the last block is not full": [(("    if (i < N) {", "    {"), "outside of")],
    "rows and columns": [
        (("row < N && column < C", "row * C + column < N * C"), "race on out"),
        (("row < N && ", ""), "outside of"),
        (("out[row * C + column]", "out[row * N + column]"), "wrong"),
    ],
    "one address for all lanes": [(("a[row] + b[column]", "a[column] + b[row]"), "outside of")],
    "a grid of fixed size": [
        (("factor * a[i]", "x[0] * a[i]"), "too many sectors of x: 313"),
        (("i += threads", "i += blockDim.x"), "race on out"),
    ],
    "which side is coalesced": [
        (("(ceil_div(N, 32), ceil_div(C, 8))", "(ceil_div(C, 32), ceil_div(N, 8))"), "wrong"),
    ],
    "write, wait, read": [
        (("    __syncthreads();  // the whole tile is written\n", ""), "race on tile"),
        (("tile[63 - t]", "tile[64 - t]"), "outside of"),
    ],
    "a tile, turned in shared memory": [
        (("PAD = 1", "PAD = 0"), "too many extra wavefronts: 3,968"),
        (("    __syncthreads();  // the whole tile is written\n", ""), "race on tile"),
        (("blockIdx.y * 32 + x", "blockIdx.x * 32 + x"), "wrong"),
    ],
    "a tile and its halo": [
        (
            (
                "tile[t] + tile[t + 1] + tile[t + 2]",
                "(i > 0 ? a[i - 1] : 0.0f) + a[i] + (i + 1 < N ? a[i + 1] : 0.0f)",
            ),
            "too many sectors of a",
        ),
        (("    __syncthreads();  // the tile and its halo are written\n", ""), "race on tile"),
        (("i + 1 < N ? a[i + 1] : 0.0f", "a[i + 1]"), "outside of"),
    ],
    "two floats in one load": [
        (("fmaxf(pair.x, pair.y)", "fmaxf(a[2 * i], a[2 * i + 1])"), "too many sectors of a: 5"),
        (("(a)[i]", "(a + i)[0]"), "no multiple of 8"),
    ],
    "a tree in shared memory": [
        (("        __syncthreads();  // the sums of the step before are written\n", ""), "race on"),
        (
            (
                "__syncthreads();  // the sums of the step before are written\n"
                "        if (t < stride) {",
                "if (t < stride) {\n__syncthreads();",
            ),
            "barrier",
        ),
        (
            (
                "        if (t < stride) {\n            partial[t] += partial[t + stride];",
                "        if (t == 0 && stride == 128) {\n"
                "            for (int j = 1; j < 256; j++) partial[0] += partial[j];",
            ),
            "too many wavefronts",
        ),
    ],
    "five shuffles": [
        (("distance = 16", "distance = 8"), "elements are wrong"),
        (
            ("    for (int distance", "    if (i >= 32 * N) return;\n    for (int distance"),
            "waits in a warp operation for threads that never come",
        ),
    ],
    "a private histogram for each block": [
        (("&mine[a[i]], 1", "&counts[a[i]], 1"), "too many atomics of counts: 4,"),
        (("atomicAdd(&mine[a[i]], 1)", "mine[a[i]] += 1"), "race on mine"),
        (("    __syncthreads();  // all counts are 0\n", ""), "race on mine"),
        (("    __syncthreads();  // this block has counted everything\n", ""), "race on mine"),
        (("atomicAdd(&counts[t], mine[t])", "counts[t] += mine[t]"), "race on counts"),
    ],
    "sums that double their reach": [
        (("        __syncthreads();  // all sums are read\n", ""), "race on sums"),
        (("        __syncthreads();  // all new sums are written\n", ""), "race on sums"),
        (("t >= distance", "t > distance"), "elements are wrong"),
    ],
    "a warp for each row": [
        (
            (
                "int i = lane; i < C; i += WARP_SIZE",
                "int i = C * lane / WARP_SIZE; i < C * (lane + 1) / WARP_SIZE; i++",
            ),
            "too many sectors of a: 8,192",
        ),
        (("sum = warp_sum(sum);", ""), "elements are wrong"),
        (("i += WARP_SIZE", "i += 32"), "elements are wrong"),
    ],
    "a window that slides over a tile": [
        (("* tile[t + k]", "* a[min(start + t + k, N + K - 2)]"), "too many sectors of a"),
        (("    __syncthreads();  // the whole tile is written\n", ""), "race on tile"),
        (("start + j < N + K - 1 ? a[start + j] : 0.0f", "a[start + j]"), "outside of"),
    ],
    "one thread for each output": [
        (
            (
                "sum += a[row * K + k] * b[k * N + column];",
                "sum += a[row * K + k] * b[k * N + column];\n"
                "            out[row * N + column] = sum;",
            ),
            "too many sectors: 7",
        ),
        (("b[k * N + column]", "b[column * K + k]"), "wrong"),
    ],
    "tiles that a block shares": [
        (("        __syncthreads();  // the tiles are written\n", ""), "race on"),
        (("        __syncthreads();  // the tiles are read\n", ""), "race on"),
        (("row < M && start + x < K ? a", "row < M ? a"), "wrong"),
        (("sum += as[y][k] *", "sum += a[min(row, M - 1) * K + min(start + k, K - 1)] *"), "too"),
    ],
    "a row, a warp, two passes": [
        (("largest = LOWEST, sum", "largest = 0.0f, sum"), "rows far from 0"),
        (("warp_sum(sum * expf(own - largest))", "warp_sum(sum)"), "elements are wrong"),
        (
            (
                "sum = warp_sum(sum * expf(own - largest));",
                "sum = 0.0f;\n    for (int i = lane; i < C; i += WARP_SIZE) "
                "sum += expf(a[row * C + i] - largest);\n    sum = warp_sum(sum);",
            ),
            "too many sectors of a: 1,536",
        ),
    ],
}
EXERCISE = re.compile(r'r"""(// .*?: (.*?)\n.*?)"""', flags=re.DOTALL)


def exercises(notebooks):
    """By title: the first cell of the notebook, that of the exercise, and the solution's fold."""
    for path in notebooks:
        cells = nbformat.read(path, as_version=4).cells
        first, text = next(cell.source for cell in cells if cell.cell_type == "code"), ""
        for cell in cells:
            if cell.cell_type == "markdown":
                text = cell.source
            elif cell.source.startswith('MINE = r"""//'):
                yield EXERCISE.search(cell.source).group(2), (first, cell.source, text)


EXERCISES = dict(exercises(NOTEBOOKS))
# `make test` gives a right answer and a wrong one to each of these.
QUICK_EXERCISES = dict(exercises(path for path in NOTEBOOKS if path.stem in QUICK))


def solution_of(exercise):
    """The kernel in the fold."""
    *_, text = EXERCISES[exercise]
    ((_, solution),) = notebook.SOLUTION.findall(text)
    return solution


def grade(exercise, changes, capsys):
    """What the cell of an exercise prints if its solution is typed in, with a change. A wrong
    answer is tried at fewer shapes, to save time."""
    first, cell, _ = EXERCISES[exercise]
    solution = solution_of(exercise)
    if changes:
        assert solution.count(changes[0]) == 1
        solution = solution.replace(*changes)
    names = {}
    exec(first, names)
    if changes and "SHAPES" in names:
        names["SHAPES"] = names["SHAPES"][:2]
    capsys.readouterr()
    exec(EXERCISE.sub(lambda _: f'r"""{solution}"""', cell), names)
    return capsys.readouterr().out


def test_each_exercise_has_hints_a_solution_and_wrong_answers():
    assert set(WRONG) == set(EXERCISES)
    for _, cell, text in EXERCISES.values():
        assert text.count("<details><summary>Hint ") >= 2
        assert text.index("<summary>Hint 2") < text.index("<summary>Solution")
        assert EXERCISE.search(cell).group(1) not in text  # what is given is not the solution


@pytest.mark.emulator
@pytest.mark.parametrize(
    "exercise",
    [
        pytest.param(name, marks=[pytest.mark.sweep] * (name not in QUICK_EXERCISES))
        for name in WRONG
    ],
)
def test_the_solution_of_an_exercise_passes(exercise, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    assert grade(exercise, (), capsys).startswith("✓")


def test_a_notebook_goes_on_with_the_solution_of_an_exercise():
    title = "one stage, and who waits"
    assert notebook.solution(title) == solution_of(title)
    with pytest.raises(LadderError, match="no notebook has an exercise with the title 'nothing'"):
        notebook.solution("nothing")


@pytest.mark.nvrtc
@pytest.mark.skipif(not nvrtc.installed(), reason="NVRTC is not installed")
@pytest.mark.parametrize("exercise", WRONG)
def test_the_solution_of_an_exercise_compiles_for_a_gpu(exercise):
    first, cell, _ = EXERCISES[exercise]
    names = {}
    exec(first, names)
    (op,) = re.findall(r'nb\.(?:check|puzzle)\(\s*"?([\w.]+)', cell)
    name = names.get(op, op)
    rung = notebook.rung_of(name, solution_of(exercise))
    targets = (compiler.typical_target("sm_90a", DTYPES[real]) for real in REALS)
    target = next(target for target in targets if rung.claims(target))
    plans = (rung.plan(dims, target) for dims in find(name).op.shapes)
    plan = next(plan for plan in plans if plan.refusal is None)
    cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
    assert "warning" not in compiler.compile_log(cubin)
    assert compiler.remarks(cubin) == []


@pytest.mark.nvrtc
@pytest.mark.skipif(not nvrtc.installed(), reason="NVRTC is not installed")
def test_the_kernel_for_a_t4_compiles_for_it():
    cells = nbformat.read(FOLDER / "13_colab.ipynb", as_version=4).cells
    (kernel,) = (
        re.search(r'KERNEL = r"""(.+?)"""', c.source, re.DOTALL)
        for c in cells
        if c.source.startswith("KERNEL = ")
    )
    rung = notebook.rung_of("layernorm.forward", kernel.group(1))
    target = compiler.typical_target("sm_75", DTYPES["float16"])
    plan = rung.plan({"N": 4096, "C": 768}, target)
    cubin = compiler.compile_cubin(rung, plan.constants, target.real, target.arch)
    assert "warning" not in compiler.compile_log(cubin)
    assert [found.spill for found in compiler.resources(cubin).values()] == [0]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("exercise", "change", "says"),
    [
        pytest.param(
            name,
            *case,
            id=f"{name} {i}",
            marks=[pytest.mark.sweep] * (i > 0 or name not in QUICK_EXERCISES),
        )
        for name, cases in WRONG.items()
        for i, case in enumerate(cases)
    ],
)
def test_a_wrong_answer_is_refused(exercise, change, says, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "default_device", lambda: "emulated")
    said = grade(exercise, change, capsys)
    assert said.startswith("✗")
    assert says in " ".join(said.split())


def test_a_limit_on_what_nothing_counts_is_an_error(capsys):
    notebook.check("start.add", 3, device="emulated", at_most={"sektors": 1}, N=5)
    assert "nothing counts 'sektors'; there are sectors" in capsys.readouterr().out


def test_a_limit_on_calls_names_the_function(capsys):
    notebook.check("start.add", 3, device="emulated", at_most={"calls": 1}, N=5)
    assert "calls of what? Name a function: 'calls of tanhf'" in capsys.readouterr().out


def test_what_is_beyond_its_limit_is_said_first_with_the_line_that_takes_most(capsys):
    limits = {"sectors of a": 1, "sectors": 2}
    notebook.check("start.add", 3, device="emulated", at_most=limits, N=5)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "✗ The result is right, but the kernel takes too many sectors: 3 at N=5"
    )
    assert last == "sectors of a: 1 at N=5; the limit is 1"
