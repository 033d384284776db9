"""The C structures that Python and the runtime exchange, as the runtime's headers declare them."""

import ctypes
import re
from pathlib import Path
from typing import Any

ACCESSES = ("read", "write", "atomic")  # emulator::Access
AGENTS = (  # AgentKind: a thread, or a unit that works for it
    "",
    " by cp.async",
    " by a TMA load",
    " by a TMA store",
    " by wgmma",
    " by memcpy_async",
    " by memcpy_async",
)
COUNTS = ("requests", "lanes", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")
_HEADERS = "".join(
    (Path(__file__).parent / "runtime" / name).read_text(encoding="utf-8")
    for name in ("results.h", "scheduler.h", "memory.h")
)


def _body(name: str) -> str:
    """What the headers declare in a structure or an enumeration, without comments and values."""
    body = re.search(rf"\n(?:struct|enum) {name}(?: : \w+)? {{\n(.*?)\n}}", _HEADERS, re.DOTALL)
    assert body is not None
    return re.sub(r"//.*| = [^,;]+", "", body[1])


_TITLES = {"UNINITIALISED": "uninitialised shared memory", "SHARED_LIMIT": "too much shared memory"}
_KINDS = re.findall(r"\w+", _body("ProblemKind"))
KINDS = tuple(_TITLES.get(name) or name.lower().replace("_", " ") for name in _KINDS)
_TYPES = {  # besides char, double, int32_t and its kind
    "ProblemKind": ctypes.c_int32,
    "AgentKind": ctypes.c_int32,
    "char *": ctypes.c_char_p,
    "void *": ctypes.c_uint64,
}


def _fields(structure: str, **given: Any) -> list[tuple[str, Any]]:
    """The fields of a structure of the headers, in order; `given`: the types of some of them."""
    fields = []
    for kind, names in re.findall(r"(?:const )?(\w+(?: \*)?) ?(\w[^;]*);", _body(structure)):
        for name, length in re.findall(r"(\w+)(?:\[(\d+)\])?", names):
            c_type = vars(ctypes).get(f"c_{kind.removesuffix('_t')}")
            one: Any = given.get(name) or _TYPES.get(kind) or c_type
            fields.append((name, one * int(length) if length else one))
    return fields


class CPlace(ctypes.Structure):
    _fields_ = _fields("Place")


class CWhere(ctypes.Structure):
    _fields_ = _fields("Where")


class CProblem(ctypes.Structure):
    _fields_ = _fields("Problem", place=CPlace, other=CPlace, where=CWhere)


class CSite(ctypes.Structure):
    _fields_ = _fields("SiteCount")


class CRequest(ctypes.Structure):
    _fields_ = _fields("Request")


class CEvent(ctypes.Structure):
    _fields_ = _fields("Event", place=CPlace)


class CResult(ctypes.Structure):
    _fields_ = _fields(
        "Result",
        problems=ctypes.POINTER(CProblem),
        sites=ctypes.POINTER(CSite),
        requests=ctypes.POINTER(CRequest),
        events=ctypes.POINTER(CEvent),
        printed=ctypes.c_void_p,
    )


class COptions(ctypes.Structure):
    _fields_ = _fields("Options")


class CBuffer(ctypes.Structure):
    _fields_ = _fields("Buffer", begin=ctypes.c_void_p)


class CParameter(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_char), ("bytes", ctypes.c_int32)]
