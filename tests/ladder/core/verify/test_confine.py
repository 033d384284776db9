"""A stranger's kernel on the emulator is confined: each promise, and a kernel that tries it."""

import re
import shutil
from types import SimpleNamespace

import pytest

from ladder.__main__ import main
from ladder.core.commands.shared import unconfined
from ladder.core.common import cache, confine
from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find, find_rung
from ladder.core.emulator import toolchain
from ladder.core.show import trace
from ladder.core.verify import sandbox
from tests.ladder.core.verify.test_sandbox import SHAPES, SOURCE

confined = pytest.mark.skipif(confine.lacking() != "", reason=confine.lacking())
pytestmark = pytest.mark.emulator
SECRET = "a-password-of-the-user"
# Each prints its name and whether the system has let it: 0 or more, or -1.
TRIES = r"""
extern "C" {
int open(const char *, int, ...); int unlink(const char *); int chmod(const char *, unsigned);
int socket(int, int, int); int fork(); void _exit(int); int execl(const char *, ...); int getppid();
int kill(int, int); long ptrace(long, ...); int fcntl(int, int, ...); char *getenv(const char *);
int dprintf(int, const char *, ...); long syscall(long, ...);
}
static int child() { int pid = fork(); if (pid == 0) _exit(0); return pid; }
static long asm_open(const char *path) {
    long result = -1;
#ifdef __x86_64__
    __asm__ volatile("syscall" : "=a"(result) : "a"(257), "D"(-100), "S"(path), "d"(0), "0"(257)
                     : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = 56, x0 __asm__("x0") = -100, x2 __asm__("x2") = 0;
    register const char *x1 __asm__("x1") = path;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result < 0 ? -1 : result;
}
#define TRY(name, call) dprintf(1, "%s %d\n", name, (long)(call) < 0 ? -1 : 0)
__attribute__((constructor)) static void tries() {
    TRY("read a secret", open("FOLDER/secret.txt", 0));
    TRY("read a secret by asm", asm_open("FOLDER/secret.txt"));
    TRY("read the kernel", open("FOLDER/mine.cu", 0));
    TRY("read its own environment", open("/proc/self/environ", 0));
    TRY("read a variable", getenv("A_PASSWORD") ? 0 : -1);
    TRY("make a file", open("FOLDER/made", 0101, 0644));
    TRY("change the kernel", open("FOLDER/mine.cu", 02));
    TRY("cut the kernel off", open("FOLDER/cut.h", 01000));
    TRY("make a compiled kernel", open("CACHE/made", 0101, 0644));
    TRY("change a mode", chmod("FOLDER/secret.txt", 0600));
    TRY("remove a file", unlink("FOLDER/removed"));
    TRY("open a socket", socket(2, 1, 0));
    TRY("open a local socket", socket(1, 1, 0));
    TRY("start a process", child());
    TRY("signal its parent", kill(getppid(), 0));
    TRY("own signals", fcntl(1, 8, getppid()));
    TRY("look into its parent", ptrace(0x4206, getppid(), 0, 0));
}
"""
# Some machines do not let any process do these.
RARE = {"own signals", "look into its parent"}


def kernel(folder, more: str) -> str:
    """The path of a sound kernel whose header has more in it, beside a secret."""
    include = '#include "portable.cuh"'
    texts = {"mine.cu": SOURCE.replace(include, f'{include}\n#include "more.h"'), "more.h": more}
    for name, text in {
        **texts,
        "secret.txt": SECRET,
        "removed": "here",
        "cut.h": "// here",
    }.items():
        (folder / name).write_text(text)
    return str(folder / "mine.cu")


def check(path, **options):
    return sandbox.check("layernorm.forward", path, "emulated", ["float32"], SHAPES, **options)


@pytest.mark.parametrize("free", [pytest.param(False, marks=confined), True])
def test_what_a_constructor_tries_is_refused_by_the_system(free, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("A_PASSWORD", SECRET)
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")  # where a user is gives no right to what lies around
    tries = TRIES.replace("FOLDER", str(tmp_path)).replace("CACHE", str(cache.directory()))
    report = check(kernel(tmp_path, f'#include "cut.h"\n{tries}'), unconfined=free)
    (cache.directory() / "made").unlink(missing_ok=True)
    assert report.passed, report
    results = [line.rpartition(" ") for line in capfd.readouterr().out.splitlines()]
    tried, done = {name for name, *_ in results}, {name for name, _, code in results if code == "0"}
    assert len(tried) == TRIES.count("TRY(") - 1
    if free:
        assert tried - done <= RARE  # else its being refused would show nothing
    else:
        assert done == {"read the kernel"}
        assert (tmp_path / "cut.h").read_text() and (tmp_path / "removed").exists()


@confined
@pytest.mark.parametrize(
    "text",
    [
        '#include "FOLDER/secret.txt"',
        "#include <FOLDER/secret.txt>",
        'const char *secret = R"(\n#include "secret.txt"\n)";',
        '#include "link.h"',
        '__asm__(".incbin \\"FOLDER/secret.txt\\"");',
        '#line 1 "FOLDER/secret.txt"\nint wrong = undeclared;',
    ],
    ids=["include", "system", "raw", "link", "incbin", "quoted"],
)
def test_what_a_compiler_must_not_read_is_in_no_message_and_no_library(text, tmp_path, monkeypatch):
    compiled = tmp_path / "cache"
    shutil.copytree(toolchain.runtime().parents[1], compiled / "emulator")  # it compiles for long
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(compiled))
    (tmp_path / "link.h").symlink_to("secret.txt")
    path = kernel(tmp_path, text.replace("FOLDER", str(tmp_path)))
    request = {"op": "layernorm.forward", "own_op": False, "path": path, "device": "emulated"}
    request |= {"unconfined": False, "dtypes": ["float32"], "shapes": SHAPES}
    with pytest.raises(LadderError) as told:
        sandbox.in_child("check", request, 60)
    assert re.search(r"secret\.txt|link\.h", str(told.value)) and SECRET not in str(told.value)
    assert not [path for path in compiled.glob("emulated/**/*") if path.is_file()]


@confined
def test_a_trace_of_ones_own_kernel_counts_the_same_in_the_confined_child(tmp_path):
    path, (dims,) = kernel(tmp_path, ""), SHAPES
    seen = sandbox.trace("layernorm.forward", path, "float32", dims, warp=64)
    op = "layernorm.forward"
    assert seen == trace.trace(find(op), find_rung(op, path), "float32", dims, warp=64)


@pytest.mark.parametrize("answer", [None, "y\n", "n\n"])
def test_where_nothing_confines_it_a_file_needs_a_word_of_the_user(
    answer, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(confine, "lacking", lambda: "nothing confines it here")
    terminal = SimpleNamespace(isatty=lambda: answer is not None, readline=lambda: answer)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: answer is not None)
    on = ["--device", "emulated", "--dtype", "fp32", "--shape", "N=2,C=33"]
    words = ["check", "layernorm.forward", kernel(tmp_path, ""), *on]
    assert main(words) == (0 if answer == "y\n" else 2)
    said = capsys.readouterr().err
    assert "mine.cu" in said and "nothing confines it here" in said
    assert answer or "--unconfined" in said


@pytest.mark.costly
@confined
def test_limits_of_a_file_are_counted_where_it_can_do_no_harm(tmp_path, capsys):
    limit = "sectors=1000,barriers=4"  # for barriers, it is compiled again
    made = f'open("{tmp_path}/made", 0101, 0644)'
    more = 'extern "C" int open(const char *, int, ...);'
    text = f"{more}\n__attribute__((constructor)) static void tries() {{ {made}; }}\n"
    on = ["--dtype", "fp32", "--shape", "N=2,C=33", "--at-most", limit]
    assert main(["check", "layernorm.forward", kernel(tmp_path, text), *on]) == 0
    assert re.search(r"\bsectors: \d.*\bbarriers: \d", capsys.readouterr().out, re.DOTALL)
    assert not (tmp_path / "made").exists()
    assert main(["check", "layernorm.forward", kernel(tmp_path, text), *on, "--unconfined"]) == 0
    assert (tmp_path / "made").exists()


def test_whoever_says_unconfined_is_not_asked_nor_about_what_is_typed_or_rungs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(confine, "lacking", lambda: "nothing confines it here")
    on = ["--device", "emulated", "--dtype", "fp32", "--shape", "N=2,C=33", "--unconfined"]
    assert main(["check", "layernorm.forward", kernel(tmp_path, ""), *on]) == 0
    assert check(SOURCE).passed
    rung = find("layernorm.forward").rung(1)
    assert not unconfined(SimpleNamespace(unconfined=False), rung)
