"""`adopt` finds a kernel's launch and arguments in a file of somebody else, or asks for them."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from ladder.__main__ import main
from ladder.core.adopt import cpp
from ladder.core.adopt.adopt import Options, adopt
from ladder.core.adopt.declarations import read
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, find_rung
from ladder.core.device.cuda.compiler import compile_cubin, resources
from ladder.core.device.cuda.nvrtc import find_nvrtc
from ladder.core.emulator.emulated import Emulated
from ladder.core.verify import check

FILE = Path(__file__).with_name("softmax.cu")


def adopted(kernel, op="softmax.forward", file=FILE, **options):
    return adopt(file, kernel, find(op).op, Options(**options)).text


def header(text, key):
    return re.findall(rf"^// {key}:\s+(.*)", text, re.MULTILINE)


def noted(rung, names):
    return any(re.search(names, note) for note in rung.notes)


def write(tmp_path, text):
    path = tmp_path / "theirs.cu"
    path.write_text(text)
    return path


# ---- the file ------------------------------------------------------------------------------------


def test_only_what_the_kernel_needs_comes_along():
    text = adopted("softmax_warp")
    assert "struct Stats" in text and "Stats merge(" in text and "const int ROWS" in text
    for host in ("main", "softmax_cpu", "cudaMalloc", "softmax_block", "divide_up", "<<<grid_size"):
        assert host not in text, host
    assert "#include <cooperative_groups/reduce.h>" in text and "stdio" not in text
    assert text.count("__global__") == 1  # the wrapper


def test_the_launch_is_that_of_the_host_code():
    assert header(adopted("softmax_warp"), "Launch") == ["softmax_forward<<<ceil_div(N, 2), 64>>>"]
    text = adopted("softmax_block")
    assert header(text, "Launch") == [
        "softmax_forward_softmax_block<<<N, BLOCK_SIZE, BLOCK_SIZE * 4>>> if V >= 64",
        "softmax_forward_softmax_block_2<<<N, BLOCK_SIZE, BLOCK_SIZE * 4>>> if not (V >= 64)",
    ]
    assert header(text, "Define") == ["BLOCK_SIZE = 256"]
    assert "BLOCK_SIZE % 32 == 0" in header(text, "Needs")[0]  # what the launcher asserts
    assert "softmax_block<4>(probs, logits, N, V)" in text
    assert "extern __shared__ __align__(16) float partial[]" in text


def test_shared_memory_that_grows_with_a_row_is_limited(tmp_path):
    go = "void go(float* out, float* inp, int N) { k<<<1, 32, N * sizeof(float)>>>(out, inp, N); }"
    text = adopted("k", "gelu.forward", write(tmp_path, f"{PLAIN}\n{go}"))
    assert header(text, "Needs") == ["real == float32; N * 4 <= shared_bytes"]


def test_a_host_function_of_several_launches_becomes_as_many_lines():
    text = adopted("launch_two", block="128")
    assert header(text, "Launch") == [
        "softmax_forward_fill_sums<<<ceil_div(N, 256), 256>>>",
        "softmax_forward_exponentials<<<ceil_div(N * V, BLOCK_SIZE), BLOCK_SIZE>>>",
        "softmax_forward_divide<<<N, BLOCK_SIZE>>>",
    ]
    assert header(text, "Scratch") == ["float32 e[N * V]; float32 sums[N]"]
    assert header(text, "Deterministic")[0].startswith("no")
    assert "exponentials(e, logits, (size_t)N * V);" in text


SCOPES = """\
namespace first { __device__ float load(const float* x) { return *x; } }
namespace second { __device__ float load(const float* x) { return -*x; } }
__device__ float load(const float* x) { return 2 * *x; }
inline float half_of(float x) { return x / 2; }
__global__ void k(float* out, const float* inp, int N) { out[0] = half_of(second::load(inp)); }
"""


def test_a_name_of_a_namespace_is_that_of_the_namespace(tmp_path):
    text = adopted("k", "gelu.forward", write(tmp_path, SCOPES), grid="1", block="1")
    assert "namespace second {" in text and text.count("float load(") == 1
    assert "__device__ inline float half_of" in text  # a function of the host's, as it stands


# ---- names ---------------------------------------------------------------------------------------

PLAIN = (
    "__global__ void k(float* z, const float* q, int count) { z[threadIdx.x] = q[threadIdx.x]; }"
)


SHARED = "__device__ float own() { extern __shared__ __align__(16) float s[]; return *s; }\n"
DYNAMIC = SHARED + PLAIN.replace("= q", "= own() + q")


@pytest.mark.parametrize(
    ("text", "given", "asked"),
    [
        (PLAIN, {}, "--grid 'ceil_div(N, 256)' --block 256"),
        (PLAIN, {"grid": "N"}, "--block 256"),
        (PLAIN, {"block": "32"}, "--grid 'ceil_div(N, 256)'"),
        (DYNAMIC, {}, "--grid 'ceil_div(N, 256)' --block 256 --shared '256 * 4'"),
        (DYNAMIC, {"grid": "N", "block": "32"}, "--shared '256 * 4'"),
        (DYNAMIC, {"grid": "N", "block": "32", "shared": "4"}, ""),
    ],
)
def test_what_the_launch_lacks_is_asked_for_beside_what_else_is(tmp_path, text, given, asked):
    with pytest.raises(LadderError, match="--arg z=out") as refused:
        adopted("k", "gelu.forward", write(tmp_path, text), **given)
    assert asked in str(refused.value)
    flags = re.compile("--(?:grid|block|shared)")
    assert {*flags.findall(str(refused.value))} == {*flags.findall(asked)}


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        ("__global__", "template <int SIZE> __global__", {"template": "4"}),
        ("__global__", "void host() {}\n__global__", {}),
        ("__global__", "#include <float.h>\n__global__", {}),
        ("__global__", "namespace mine { __global__", {}),
        ("int count", "int count, int times", {"arguments": {"times": "N"}}),
        ("int count", "int count, float scale", {"arguments": {"scale": "2.0f"}}),
        ("count", "block_size", {}),
        ("count", "count", {"fill": ["out = 0"]}),
    ],
)
def test_where_more_than_names_differs_a_kernel_calls_theirs(tmp_path, old, new, options):
    file = write(tmp_path, PLAIN.replace(old, new) + "}" * ("namespace" in new))
    arguments = {"z": "out", "q": "inp", "count": "N", **options.pop("arguments", {})}
    arguments = {name: ours for name, ours in arguments.items() if name in file.read_text()}
    text = adopted("k", "gelu.forward", file, grid="N", block="1", arguments=arguments, **options)
    assert not header(text, "Args") and 'extern "C" __global__ void gelu_forward(' in text


TEXTBOOK = """\
__global__ void fill(float* x) { x[threadIdx.x] = 1.0f; }
__global__ void k(float* in, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = in[i];
}
int main() {
    int size = 1 << 20, threads = 128;
    float *a, *b;
    CHECK(cudaMalloc(&a, size * sizeof(float)));
    CHECK(cudaMalloc(&b, size * sizeof(float)));
    int blocks = (size + threads - 1) / threads;
    fill<<<1, 32>>>(a);
    k<<<blocks, threads>>>(a, b, size);
    for (int i = 0; i < 10; i++) k<<<blocks, threads>>>(a, b, size);
}
"""


def test_a_kernel_without_a_header_is_refused_with_a_command_that_works(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("my file.cu").write_text(TEXTBOOK)
    assert main(["check", "gelu.forward", "my file.cu"]) == 2
    words = shlex.split(capsys.readouterr().err.partition("python -m ladder ")[2])
    assert main(words) == 0 and Path("k.cu").exists()
    Path("none.cu").write_text("int main() {}")
    assert main(["check", "gelu.forward", "none.cu"]) == 2
    assert "adopt" not in capsys.readouterr().err


def test_a_launch_in_main_is_read_with_what_main_passes(tmp_path):
    rung = adopt(write(tmp_path, TEXTBOOK), "k", find("gelu.forward").op, Options())
    assert header(rung.text, "Launch") == ["gelu_forward<<<ceil_div(N, 128), 128>>>"]
    assert "k((float*)inp, out, N);" in rung.text and not header(rung.text, "Scratch")
    assert noted(rung, r"\bin\b.*\bconst\b.*\bk\b")


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("(a, b, size)", "(a, b, 1 << 20)", r" 1 ?<< ?20 .* n\b"),
        ("    k<<<", "    for (;;) k<<<", r"\(for\)"),
        ("= (size + threads - 1) / threads", "= choose()", "choose"),
        ("k<<<blocks", "k<<<80", " 80 "),
        ("k<<<blocks", "k<<<dim3(blocks, 8)", r"\(ceil_div\(N, 128\), 8\)"),
    ],
)
def test_a_launch_in_main_that_cannot_be_read_is_asked_for(tmp_path, old, new, names):
    file = write(tmp_path, TEXTBOOK.replace(old, new))
    with pytest.raises(LadderError, match=rf"main\(\).*{names}.*--grid '"):
        adopted("k", "gelu.forward", file)
    text = adopted("k", "gelu.forward", file, grid="ceil_div(N, 64)", block="64")
    assert header(text, "Launch") == ["gelu_forward<<<ceil_div(N, 64), 64>>>"]


def test_a_header_that_is_not_there_is_noted_unless_it_is_cudas(tmp_path):
    file = write(tmp_path, '#include "common.h"\n#include "cuda_runtime.h"\n' + TEXTBOOK)
    op = find("gelu.forward").op
    missing = adopt(file, "k", op, Options())
    assert noted(missing, r"common\.h.*theirs\.cu") and not noted(missing, "cuda_runtime")
    (tmp_path / "common.h").write_text("#define SIZE 1024\n")
    assert not noted(adopt(file, "k", op, Options()), r"common\.h")


def test_all_that_is_missing_is_asked_for_at_once(tmp_path):
    text = PRODUCT.replace("float* C", "float* place")
    with pytest.raises(LadderError) as refused:
        adopted("product", "matmul.backward_input", write(tmp_path, text))
    for flag in ("--arg M=N --arg N=C", "--grid 'ceil_div(N, 256)' --block 256", "place"):
        assert flag in str(refused.value)


def test_what_is_refused_writes_nothing(tmp_path, capsys):
    words = [str(write(tmp_path, PLAIN)), "k", "--op", "gelu.forward", "--block", "1"]
    words += ["--arg", "z=out", "--arg", "q=inp", "-o", str(tmp_path / "mine.cu")]
    assert main(["adopt", *words, "--grid", "ceil_div(N 1)"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.cu"]
    assert re.search(r"theirs\.cu.*'.*ceil_div\(N 1\).*'", capsys.readouterr().err)


def test_a_name_that_is_not_known_is_asked_for(tmp_path):
    file = write(tmp_path, PLAIN)
    launch = {"grid": "ceil_div(N, 256)", "block": "256"}
    with pytest.raises(LadderError, match=r" z, q\b.*--arg z=out "):
        adopted("k", "gelu.forward", file, **launch)
    text = adopted("k", "gelu.forward", file, **launch, arguments={"z": "out", "q": "inp"})
    assert header(text, "Args") == ["z = out; q = inp; count = N"]
    assert header(text, "Launch") == ["k<<<ceil_div(N, 256), 256>>>"]
    assert text.endswith(f"\n\n{PLAIN}\n")  # untouched


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"z": "N", "q": "inp"}, r"\bz .*\bN of gelu\.forward"),
        ({"z": "out", "q": "inp", "count": "inp"}, r"--arg 'count=inp\[0\]'"),
        ({"z": "dout", "q": "inp"}, "--arg z=dout.*gelu.forward.* out, inp; N"),
        ({"z": "inp", "q": "out"}, r"\bk .* q .*--arg q="),
        ({"z": "inp", "q": "inp"}, "gelu.forward .* k .*--arg THEIRS=out"),
        ({"z": "out", "q": "inp", "cuont": "N"}, "--arg cuont=N.* k .* z, q, count"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(tmp_path, arguments, names):
    file = write(tmp_path, PLAIN)
    with pytest.raises(LadderError, match=names):
        adopted("k", "gelu.forward", file, grid="N", block="1", arguments=arguments)


PRODUCT = """__global__ void product(
    const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.x, column = threadIdx.x;
    for (int k = 0; k < K; k++) C[row * N + column] += A[row * K + k] * B[k * N + column];
}
"""


@pytest.mark.parametrize(
    ("given", "flags"), [({}, "--arg M=N --arg N=C"), ({"M": "N"}, "--arg N=C")]
)
def test_two_numbers_that_could_be_the_same_one_are_asked_for(tmp_path, given, flags):
    file = write(tmp_path, PRODUCT)
    ours = {"A": "dout", "B": "weight", "C": "dinp", "K": "OC"}
    launch = {"grid": "N", "block": "C"}
    with pytest.raises(LadderError, match=rf"M and N .*\bN of matmul\.backward_input.*: {flags}$"):
        adopted("product", "matmul.backward_input", file, **launch, arguments={**ours, **given})
    ours |= {"M": "N", "N": "C"}
    text = adopted("product", "matmul.backward_input", file, **launch, arguments=ours)
    assert header(text, "Args") == ["A = dout; B = weight; C = dinp; M = N; N = C; K = OC"]


def test_a_kernel_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(LadderError, match=r"softmax_wrap\b.*\bsoftmax_warp\b"):
        adopted("softmax_wrap")


def test_what_a_macro_makes_is_to_be_written_out(tmp_path):
    file = write(
        tmp_path, "MAKE(made, float)\nvoid go(torch::Tensor x) { made<<<x.numel(), 1>>>(x); }"
    )
    with pytest.raises(LadderError, match=r"\bmade\b.*\bmacro\b"):
        adopted("made", "gelu.forward", file)
    with pytest.raises(LadderError, match=r"x\.numel\b.*\bmade\b.*--grid"):
        adopted("go", "gelu.forward", file)


def test_a_kernel_of_another_file_is_refused(tmp_path):
    file = write(tmp_path, "void go(float* out, int N) { elsewhere<<<1, N>>>(out, N); }")
    with pytest.raises(LadderError, match=r"\bgo .*\belsewhere\b"):
        adopted("go", "gelu.forward", file)


@pytest.mark.parametrize(
    "used", ["cuda::atomic_ref<int>", "cub::BlockReduce<float, 32>", "cuda::std::array<int, 2>"]
)
def test_a_library_that_a_rung_is_compiled_without_is_named(tmp_path, used):
    file = write(tmp_path, PLAIN.replace("{ z", f"{{ using cuda::barrier; {used} b; z"))
    launch = {"grid": "N", "block": "1", "arguments": {"z": "out", "q": "inp"}}
    with pytest.raises(LadderError, match=rf"\bk .*{used.partition('<')[0]}\b"):
        adopted("k", "gelu.forward", file, **launch)


PIPELINED = {  # the op, flags, headers that come along, and shapes to check
    "linear_pipelined": (
        "matmul.forward",
        {},
        ["cooperative_groups.h", "cooperative_groups/memcpy_async.h", "cuda/pipeline"],
        [{"N": 17, "C": 41, "OC": 18}],
    ),
    "bias_split": (
        "matmul.backward_bias",
        {"grid": "ceil_div(OC, 32)", "block": "256"},
        ["cuda/barrier"],
        [{"N": 19, "OC": 33}],
    ),
    "residual_copied": (
        "residual.forward",
        {"grid": "ceil_div(N, 256)", "block": "256"},
        ["cooperative_groups.h", "cooperative_groups/memcpy_async.h", "cuda_pipeline.h"],
        [{"N": 257}],
    ),
}
OF_CUDA = FILE.with_name("pipelined.cu")


@pytest.mark.parametrize("kernel", PIPELINED)
def test_barriers_and_pipelines_of_cuda_come_along(kernel):
    op, flags, headers, _ = PIPELINED[kernel]
    text = adopted(kernel, op, OF_CUDA, **flags)
    assert re.findall("#include <(.*)>", text) == headers
    assert header(text, "Needs")[0].endswith("sm >= 70")  # on no GPU of AMD


def test_types_that_differ_by_macro_serve_all_reals(tmp_path):
    file = write(
        tmp_path,
        """\
#ifdef USE_BF16
typedef __nv_bfloat16 value_t;
#else
typedef float value_t;
#endif
__global__ void k(value_t* out, const value_t* inp, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = (value_t)fmaxf((float)inp[i], 0.0f);
}
""",
    )
    launch = {"grid": "ceil_div(N, 128)", "block": "128"}
    text = adopted("k", "relu.forward", file, **launch)
    assert header(text, "Needs") == ["real != float16"]
    assert "#if defined(REAL_BFLOAT16)\n#include <cuda_bf16.h>\n#define USE_BF16\n#endif" in text
    text = adopted("k", "relu.forward", file, **launch, arguments={"inp": "inp + 0"})
    assert header(text, "Needs") == ["real == float32"]  # what an expression is, nobody looked at
    assert "USE_BF16\ntypedef" in text and "#define USE_BF16" not in text


HOSTILE = [
    "__global__ void k(float* out) {}\nvoid go(float* out) { k<<<" + "(" * 1000 + ">>>(out); }",
    "__global__ void k(float* out) {}\nvoid go(float* out) " + "{" * 1000 + " k<<<1, 1>>>(out);",
    "__global__ void k(float* out) {} int x = " + "a<" * 1000 + ";",
    "#define k(x) k(k(x))\n__global__ void k(float* out, int N) { }",
    "int f(int x) { return f(x); }\n__global__ void k(float* out, int N) {}\n"
    "void go(float* out, int N) { k<<<f(N), 1>>>(out, N); }",
    "__global__ void k(float* out, int N) {}\nvoid go(float* out, int N) { int a = N; "
    + "a = a + a; " * 100
    + "k<<<a, 1>>>(out, N); }",
    "__global__ void k(float* out, int N) {}\nvoid go(float* out, int N) { int a = 3; "
    + "a = a * a; " * 100
    + "k<<<a, 1>>>(out, a); }",
    "".join(f"#define A{i} (A{i + 1} + A{i + 1})\n" for i in range(50))
    + "#define A50 N\n__global__ void k(float* out, int N) {}\n"
    "void go(float* out, int N) { k<<<A0, 1>>>(out, N); }",
    "__global__ void k(",
    "template <",
    '#include "theirs.cu"\n#include "../../../../etc/passwd"\n',
    "\x00\x01}}}} >>> <<< )",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_ends_with_one_line(tmp_path, text):
    file = write(tmp_path, text)
    with pytest.raises(LadderError) as refused:
        adopted("k", "gelu.forward", file, block="32")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 1000
    assert "root:" not in "".join(one.text for one in read(file).declarations)


# ---- flags ---------------------------------------------------------------------------------------

ROWS = """\
template <int SIZE, int WIDTH>
__global__ void row_sums(float* sums, const float* q, int rows, int cols, float alpha) {
    extern __shared__ float shared[];
    shared[threadIdx.x] = q[blockIdx.x * cols] * alpha;
    sums[blockIdx.x] += shared[threadIdx.x] * SIZE * WIDTH;
}
"""
FLAGS = {
    "--arg": ("q=logits", "row_sums<64, 8>(sums, logits, N, V, 2.0f);"),
    "--grid": ("(N, ceil_div(V, 64))", "// Launch: softmax_forward<<<(N, ceil_div(V, 64)), "),
    "--block": ("(32, 8)", "(32, 8), "),
    "--shared": ("V * 4", ", V * 4>>>"),
    "--template": ("64, 8", "row_sums<64, 8>("),
    "--scratch": ("float32 sums[N]", "// Scratch: float32 sums[N]"),
    "--fill": ("sums = 0", "if (i < (size_t)(N)) sums[i] = 0;"),
    "--then": ("probs = sums[i / V]", "if (i < (size_t)(N * V)) probs[i] = sums[i / V];"),
    "--needs": ("V % 4 == 0", "// Needs:  real == float32; V * 4 <= shared_bytes; V % 4 == 0"),
}


def flags():
    given = [word for flag, (value, _) in FLAGS.items() for word in (flag, value)]
    return ["--op", "softmax.forward", "--arg", "alpha=2.0f", *given]


def test_each_flag_stands_in_the_rung(tmp_path, capsys):
    output = tmp_path / "mine.cu"
    theirs = str(write(tmp_path, ROWS))
    assert main(["adopt", theirs, "row_sums", *flags(), "-o", str(output)]) == 0
    text = output.read_text()
    for flag, (_, code) in FLAGS.items():
        assert code in text, flag
    assert [line.partition("<")[0] for line in header(text, "Launch")] == [
        "softmax_forward_fill_sums",
        "softmax_forward",
        "softmax_forward_then_probs",
    ]
    assert find_rung("softmax.forward", output).header["launch"]
    output.write_text("edited")
    assert main(["adopt", theirs, "row_sums", *flags(), "-o", str(output)]) == 0
    assert Path(f"{output}.before").read_text() == "edited"
    assert main(["adopt", theirs, "row_sums", *flags(), "-o", theirs]) == 2
    assert re.search(r"theirs\.cu.*-o FILE\.cu", capsys.readouterr().err)


# ---- what used to go wrong -----------------------------------------------------------------------

GELU = """\
__device__ float gelu_forward(float x) { return x < 0.0f ? 0.0f : x; }
__global__ void gelu_forward(const float* x, float* y, int batch, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < batch * width) y[i] = gelu_forward(x[i]);
}
"""


def test_what_is_named_as_the_op_gets_another_name(tmp_path):
    launch = {"grid": "ceil_div(N, 256)", "block": "256"}
    given = {"batch": "1", "width": "N"}
    file = write(tmp_path, GELU)
    rung = adopt(file, "gelu_forward", find("gelu.forward").op, Options(arguments=given, **launch))
    assert len(re.findall(r"\bgelu_forward\(", rung.text)) == 1  # the kernel of the op
    assert "    their_gelu_forward(inp, out, 1, N);\n" in rung.text
    assert "y[i] = their_gelu_forward(x[i]);" in rung.text
    assert noted(rung, r"\bgelu_forward\b.*\btheir_gelu_forward\b")


@pytest.mark.parametrize("template", ["", "template <typename T>\n"])
def test_an_input_without_const_is_cast_and_noted_in_a_template_too(tmp_path, template):
    kind = "T" if template else "float"
    file = write(
        tmp_path,
        f"{template}__global__ void k({kind}* x, {kind}* y, int n) {{ y[threadIdx.x] = x[0]; }}\n"
        f"void launch(float* x, float* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n); }}",
    )
    rung = adopt(file, "k", find("relu.forward").op, Options())
    assert "k((float*)inp, out, N);" in rung.text
    assert noted(rung, r"\bx\b.*\bconst\b.*\bk\b")


VADD = """\
__global__ void vadd(const float* a, const float* b, float* c, int elementCount) {}
int main() {
    int elementCount = 3000, threads = 128;
    float *a, *b, *c;
    int blocks = (elementCount + threads - 1) / threads;
    vadd<<<blocks, threads>>>(a, b, c, elementCount);
}
"""


def test_a_number_of_main_that_is_no_dimension_is_asked_for(tmp_path):
    file = write(tmp_path, VADD)
    with pytest.raises(LadderError, match="--arg elementCount=N "):
        adopted("vadd", "start.add", file)
    text = adopted("vadd", "start.add", file, arguments={"elementCount": "N"})
    assert header(text, "Launch") == ["start_add<<<ceil_div(N, 128), 128>>>"]
    assert "vadd(a, b, c, N);" in text
    known = write(tmp_path, VADD.replace("elementCount", "numElements"))
    assert "vadd(a, b, c, N);" in adopted("vadd", "start.add", known)


def test_what_a_file_uses_by_using_namespace_comes_along(tmp_path):
    opened = SCOPES.replace("second::load", "load").replace(
        "__device__ float load(const float* x) { return 2 * *x; }",
        "using namespace std;\nusing namespace second;",
    )
    text = adopted("k", "gelu.forward", write(tmp_path, opened), grid="1", block="1")
    assert "namespace second {" in text and "using namespace second;" in text
    assert "return -*x;" in text and "std" not in text


@pytest.mark.parametrize(
    ("body", "unused"),
    [("out[0] = inp1[0];", "inp2"), ("float x = inp1[0] + inp2[0];", "out")],
)
def test_what_theirs_does_not_use_is_said(tmp_path, body, unused):
    kernel = "__global__ void k(float* out, const float* inp1, const float* inp2, int N)"
    file = write(tmp_path, f"{kernel} {{ {body} }}")
    rung = adopt(file, "k", find("residual.forward").op, Options(grid="N", block="1"))
    assert noted(rung, rf"\bk\b.*\b{unused}$")


def test_what_is_optional_and_theirs_lacks_is_said(tmp_path):
    kernel = "__global__ void k(float* out, const float* inp, const float* weight, int N)"
    file = write(tmp_path, f"{kernel} {{ out[0] = inp[0] + weight[0]; }}")
    rung = adopt(file, "k", find("matmul.forward").op, Options(grid="N", block="1"))
    assert noted(rung, r"\bk\b.*\bbias$")


def test_without_the_package_that_reads_cpp_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_cuda", None)
    cpp._parser.cache_clear()
    with pytest.raises(LadderError, match=r"tree_sitter_cuda\b.*'\.\[adopt\]'"):
        adopted("softmax_warp")


# ---- the rung ------------------------------------------------------------------------------------


@pytest.mark.emulator
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["softmax_warp", "softmax_block"])
def test_what_is_adopted_passes_the_check(tmp_path, kernel, capsys):
    output = tmp_path / "mine.cu"
    assert main(["adopt", str(FILE), kernel, "--op", "softmax.forward", "-o", str(output)]) == 0
    assert f"python -m ladder check softmax.forward {output}" in capsys.readouterr().out
    shapes = [{"N": 3, "V": 31}, {"N": 3, "V": 66}]
    report = run_check("softmax.forward", output, shapes)
    assert report.passed and len(report.outcomes) >= 2


@pytest.mark.emulator
@pytest.mark.slow
@pytest.mark.parametrize("kernel", PIPELINED)
def test_barriers_and_pipelines_of_cuda_pass_the_check(tmp_path, kernel):
    op, flags, _, shapes = PIPELINED[kernel]
    report = run_check(op, write(tmp_path, adopted(kernel, op, OF_CUDA, **flags)), shapes)
    assert report.passed and report.outcomes


def with_cccl():
    if not any((folder / "cuda/std").is_dir() for folder in find_nvrtc().include):
        pytest.skip("cooperative_groups.h needs CCCL: pip install -e '.[compile]'")


@pytest.mark.nvrtc
@pytest.mark.sweep
def test_what_is_adopted_compiles_for_a_gpu(tmp_path):
    with_cccl()
    rung = find_rung("softmax.forward", write(tmp_path, adopted("softmax_warp")))
    cubin = compile_cubin(rung, {}, np.dtype(np.float32), "sm_90a")
    assert resources(cubin)["softmax_forward"].spill == 0


@pytest.mark.nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "arch"),
    [
        ("linear_pipelined", "sm_80"),
        pytest.param("bias_split", "sm_90a", marks=pytest.mark.sweep),
        pytest.param("residual_copied", "sm_80", marks=pytest.mark.sweep),
    ],
)
def test_barriers_and_pipelines_of_cuda_compile_for_a_gpu(tmp_path, kernel, arch):
    with_cccl()
    op, flags, _, _ = PIPELINED[kernel]
    rung = find_rung(op, write(tmp_path, adopted(kernel, op, OF_CUDA, **flags)))
    cubin = compile_cubin(rung, {}, np.dtype(np.float32), arch)
    assert resources(cubin)[find(op).op.kernel].spill == 0


def run_check(op, path, shapes):
    return check.check(find(op), find_rung(op, path), Emulated(), ["float32"], shapes)
