"""Confines the process in which a stranger's kernel runs on the CPU, by what Linux offers.

The code of a kernel's file runs as soon as its library is loaded, so the process is confined before
that, while it has one thread. What it still can do is a list:

    files      read the few that it needs; make, write, change or remove none (Landlock)
    system     the calls of `CALLS`: no network, no new process or program, no signal to another
               process, no look into one (a seccomp filter)
    resources  processor time, threads, and how much it writes to what is open already

So it cannot start a compiler. A helper, forked off before, calls the functions that are marked with
`by_helper`. The programs that it starts are confined, too: an `#include` or `.incbin` in a kernel
reads what they need, or nothing, and they write to their own folders only.
"""

import ctypes
import errno
import functools
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar, cast

from ladder.core.common import cache
from ladder.core.common.errors import CompileError, LadderError
from ladder.core.common.install import cores

# Programs, libraries, and what they ask of the machine: nobody's own files.
SYSTEM = (
    *("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache"),
    *("/dev/urandom", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)
PACKAGES = ("numpy", "ml_dtypes")
# The variables that reach a confined process; others may hold passwords.
VARIABLES = re.compile(
    r"PATH|HOME|TMPDIR|TZ|LANG|LC_\w+|CXX|CPATH|C(PLUS)?_INCLUDE_PATH|(LD_)?LIBRARY_PATH|XDG_\w+|"
    r"(PYTHON|KERNEL_LADDER_|OMP_|OPENBLAS_|MKL_|GCC_|NIX_|ZIG_)\w+"
)
FLAG = (  # --unconfined
    "a kernel of your own may do on the emulator all that you may; needed where nothing confines it"
)
MOST_WRITTEN = 256 << 20  # bytes of a file
MORE_THREADS = 1024  # than the machine has at the start; root has no such limit

# System calls, by their numbers on x86-64 and aarch64; -1: there is none.
CALLS = """
    read 0 63, write 1 64, close 3 57, stat 4 -1, fstat 5 80, lstat 6 -1, poll 7 -1, lseek 8 62,
    mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134,
    rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, pwrite64 18 68, readv 19 65,
    writev 20 66, access 21 -1, sched_yield 24 124, mremap 25 216, madvise 28 233, dup 32 23,
    nanosleep 35 101, setitimer 38 103, getpid 39 172, exit 60 93, uname 63 160, getcwd 79 17,
    readlink 89 -1, gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179,
    times 100 153, getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177,
    sigaltstack 131 132, gettid 186 178, futex 202 98, sched_getaffinity 204 123,
    getdents64 217 61, set_tid_address 218 96, restart_syscall 219 128, timer_create 222 107,
    timer_settime 223 110, timer_gettime 224 108, timer_delete 226 111, clock_gettime 228 113,
    clock_getres 229 114, clock_nanosleep 230 115, exit_group 231 94, newfstatat 262 79,
    readlinkat 267 78, faccessat 269 48, ppoll 271 73, set_robust_list 273 99, getcpu 309 168,
    getrandom 318 278, membarrier 324 283, statx 332 291, rseq 334 293, faccessat2 439 439
"""
# Those that are allowed where an argument, below a mask, has one of some values.
OPENS = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC)
INT, OPENED, THREAD, PID = 0xFFFFFFFF, os.O_ACCMODE | os.O_TRUNC, 0x10000, -1  # PID: its own
CHECKED = (
    ((2, -1), 1, OPENED, OPENS),  # open: not to read and cut off, which old Landlocks let pass
    ((257, 56), 2, OPENED, OPENS),  # openat
    ((16, 29), 1, INT, (0x5401, 0x5413, 0x5450, 0x5451)),  # ioctl: is it a terminal, how wide
    ((72, 25), 1, INT, (0, 1, 2, 3, 1030)),  # fcntl: copies and flags of a descriptor
    ((56, 220), 0, THREAD, (THREAD,)),  # clone
    ((62, 129), 0, INT, (PID,)),  # kill
    ((234, 131), 0, INT, (PID,)),  # tgkill
    ((302, 261), 0, INT, (0,)),  # prlimit64: of itself
)
MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # AUDIT_ARCH, seccomp
ALLOW, REFUSE = 0x7FFF0000, 0x50000  # REFUSE | errno
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's calls
READ_DIR, READ, WRITE_FILE = 1 << 3, 1 << 0 | 1 << 2 | 1 << 3, 1 << 1  # READ: execute, too
OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that are not about folders only
ALL = (1 << 16) - 1
RIGHTS = (0, 13, 14, 15, 15)  # how many there are by the version of Landlock; 16 later on

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def lacking() -> str:
    """Why this machine does not confine a process; "" where it does."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return f"on {sys.platform} {platform.machine()} nothing confines it"
    try:
        _all_rights()
        _call(MACHINES[platform.machine()][1], 2, 0, ctypes.byref(ctypes.c_uint32(REFUSE)))
    except OSError as error:
        return (
            f"this Linux ({platform.release()}), or the container around it, lacks what confines "
            f"it, which is Landlock and seccomp ({error.strerror})"
        )
    return ""


def admit(path: Path, unconfined: bool, why: str = "") -> bool:
    """Whether a file that a command line names runs unconfined, since the user wants it.

    why  it cannot be confined; without it, what this machine lacks

    Raises LadderError where it cannot, and there is neither that flag nor a terminal to ask at, or
    the answer is no.
    """
    if unconfined or not (why := why or lacking()):
        return unconfined
    text = f"{path} would run with all your rights: {why}"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise LadderError(f"{text}; read it, and add --unconfined")
    print(
        f"{text}. Have you read it, and shall it run? [y/N] ", end="", file=sys.stderr, flush=True
    )
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise LadderError(f"{path} has not run")
    return True


# ---- the process and its helper -----------------------------------------------------------------

_helped: dict[str, Callable[..., Any]] = {}  # what the helper can do, by name
_helper: tuple[TextIO, TextIO] | None = None  # in a confined process: where to ask it, its answers
_tools: dict[str, int] | None = None  # in a helper: the rights of the programs that it starts


def by_helper(function: F) -> F:
    """A function that starts programs: a confined process has its helper call it. It takes what
    JSON holds, and returns a text or a path."""
    _helped[function.__name__] = function

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if _helper is None:
            return function(*arguments)
        print(json.dumps([function.__name__, *arguments]), file=_helper[0], flush=True)
        if not (line := _helper[1].readline()):
            raise LadderError("the process that starts the compiler has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise (CompileError if answer["compiler"] else LadderError)(answer["error"])
        return function.__annotations__["return"](answer["value"])

    return cast(F, call)


def enter(files: Iterable[str], scratch: Sequence[str], compiler: str, seconds: float) -> None:
    """Confine this process and start its helper.

    files     that it may read, beside programs, libraries, Python's packages, and the cache
    scratch   folders that what the helper starts may write to; the first for temporary files
    compiler  its path, or its name in PATH
    seconds   that all of this may take

    Raises LadderError where this machine does not let it.
    """
    global _helper, _tools
    package = Path(__file__).parents[2]
    program = Path(os.path.realpath(shutil.which(compiler) or compiler))
    specs = filter(None, map(importlib.util.find_spec, PACKAGES))
    # A package may be a link, as uv makes them: what counts is where it lies.
    roots = [Path(os.path.realpath(spec.origin)).parents[1] for spec in specs if spec.origin]
    roots += [package, package.parent / "reference", program.parent, program.parents[1]]
    roots += [Path(sys.prefix), Path(sys.base_prefix)]
    home = Path(os.environ.get("HOME", "/nowhere"))
    rights = dict.fromkeys(sys.path, READ_DIR)  # Python looks for modules there
    rights |= {str(root): READ for root in roots if not home.is_relative_to(root)}
    rights |= dict.fromkeys((*SYSTEM, *files, str(cache.directory())), READ)
    rights |= {"/dev/null": READ | WRITE_FILE}
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            raise LadderError("cannot confine the kernel's process: it has several threads")
        _limit(seconds)
        if os.fork() == 0:
            os.closerange(3, asked)
            os.close(ask)
            _tools, os.environ["TMPDIR"] = rights | dict.fromkeys(scratch, ALL), scratch[0]
            _serve(os.fdopen(asked), os.fdopen(answer, "w"))
        os.close(asked)
        os.close(answer)
        restrict_files(rights)
        _restrict_calls()
    except OSError as error:
        raise LadderError(f"cannot confine the kernel's process: {error.strerror}") from None
    _helper = os.fdopen(ask, "w"), os.fdopen(answered)


def _serve(asked: TextIO, answer: TextIO) -> NoReturn:
    """The helper: it trusts nothing of what it is asked."""
    try:
        for line in asked:
            try:
                name, *arguments = json.loads(line)
                said: dict[str, object] = {"value": str(_helped[name](*arguments))}
            except (LadderError, OSError, subprocess.SubprocessError) as error:
                said = {"error": str(error), "compiler": isinstance(error, CompileError)}
            print(json.dumps(said), file=answer, flush=True)
    finally:
        os._exit(0)


def for_tool(*folders: Path) -> Callable[[], None] | None:
    """What `subprocess` calls in a program's process before the program, as its `preexec_fn`: in a
    helper it confines it, so that it writes to its own folders."""
    if _tools is None:
        return None
    return functools.partial(restrict_files, _tools | {str(folder): ALL for folder in folders})


# ---- what Linux offers --------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: Any) -> int:
    """A system call. Raises OSError."""
    long = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    if (result := _libc.syscall(ctypes.c_long(number), *long)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def _all_rights() -> int:
    """The rights that this machine's version of Landlock knows. Raises OSError without one."""
    version = _call(CREATE_RULESET, None, 0, 1)
    return (1 << (RIGHTS[version] if version < len(RIGHTS) else 16)) - 1


def restrict_files(rights: Mapping[str, int]) -> None:
    """Leave this thread, and those that it starts, some rights to files and what is below folders,
    and none to others. Raises OSError."""
    known = _all_rights()
    ruleset = _call(CREATE_RULESET, struct.pack("=Q", known), 8, 0)
    for path, granted in rights.items():
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            mask = known if stat.S_ISDIR(os.fstat(place).st_mode) else known & OF_FILES
            if granted & mask:
                _call(ADD_RULE, ruleset, 1, struct.pack("=Qi", granted & mask, place), 0)
            os.close(place)
    if _libc.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    _call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _restrict_calls() -> None:
    """Leave this thread, and those that it starts, the system calls above. Raises OSError."""
    x86, (architecture, seccomp) = platform.machine() == "x86_64", MACHINES[platform.machine()]
    load, equal, mask, done = 0x20, 0x15, 0x54, 0x06  # instructions of the filter
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (done, 0, 0, REFUSE | errno.EPERM)]
    program += [(load, 0, 0, 0)]
    for entry in CALLS.split(","):
        number = int(entry.split()[1 if x86 else 2]) & INT
        program += [(equal, 0, 1, number), (done, 0, 0, ALLOW)]
    for numbers, argument, bits, values in CHECKED:
        check = [(load, 0, 0, 16 + 8 * argument), (mask, 0, 0, bits)]
        for value in values:
            wanted = os.getpid() if value == PID else value
            check += [(equal, 0, 1, wanted), (done, 0, 0, ALLOW)]
        check += [(done, 0, 0, REFUSE | errno.EPERM)]
        program += [(equal, 0, len(check), numbers[0 if x86 else 1] & INT), *check]
    program += [(done, 0, 0, REFUSE | errno.ENOSYS)]  # libraries then do without the call
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    pointed = ctypes.create_string_buffer(code)
    with_length = struct.pack("@HP", len(program), ctypes.addressof(pointed))
    allows_speculation = 1 << 2  # else everything takes longer, where the kernel is older
    _call(seccomp, 1, allows_speculation, with_length)


def _limit(seconds: float) -> None:
    """Limits of this process and those that it starts; they end when `seconds` are long over."""
    threads = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    with suppress(OSError):  # no limit of memory, most of which is only reserved: they end first
        Path("/proc/self/oom_score_adj").write_text("1000")
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(seconds + 10) * cores()),
        (resource.RLIMIT_FSIZE, MOST_WRITTEN),
        (resource.RLIMIT_NPROC, threads + MORE_THREADS),
    ):
        hard = resource.getrlimit(what)[1]
        lower = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (lower, lower))
