"""The C structures that Python and the runtime exchange: results.h, Options and Buffer."""

from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

KINDS = (  # ProblemKind
    "out of bounds",
    "race",
    "divergent barrier",
    "deadlock",
    "uninitialised shared memory",
    "crash",
    "assertion",
    "time limit",
    "misaligned",
    "barrier misuse",
    "in flight",
    "too much shared memory",
    "cluster",
    "ranks",
    "too early",
)
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
Triple = c_uint32 * 3


def _fields(**types: Any) -> list[tuple[str, Any]]:
    """The fields of a structure, in their order."""
    return list(types.items())


class CPlace(Structure):
    _fields_ = _fields(
        pc=c_uint64,
        block=Triple,
        thread=Triple,
        access=c_int32,
        agent=c_int32,
        member=c_uint32,
        warp=c_uint32,
        lane=c_uint32,
        serial=c_uint32,
    )


class CWhere(Structure):
    _fields_ = _fields(shared_name=c_char_p, argument=c_int32, bytes=c_int32, offset=c_int64)


class CProblem(Structure):
    _fields_ = _fields(
        kind=c_int32, fatal=c_int32, place=CPlace, other=CPlace, where=CWhere, text=c_char * 360
    )


COUNTS = ("requests", "lanes", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts")


class CSite(Structure):
    _fields_ = _fields(
        pc=c_uint64,
        shared_name=c_char_p,
        argument=c_int32,
        access=c_int32,
        bytes=c_int32,
        padding=c_int32,
        **dict.fromkeys(COUNTS, c_int64),
    )


class CRequest(Structure):
    _fields_ = _fields(
        site=c_int32,
        warp=c_int32,
        block=Triple,
        padding=c_uint32,
        lanes=c_uint64,
        offsets=c_int64 * 64,
    )


class CEvent(Structure):
    _fields_ = _fields(
        place=CPlace, kind=c_char_p, of=c_char_p, phase=c_int32, came=c_int32, threads=c_int32
    )


class CResult(Structure):
    _fields_ = _fields(
        problems=POINTER(CProblem),
        problem_count=c_int64,
        sites=POINTER(CSite),
        site_count=c_int64,
        requests=POINTER(CRequest),
        request_count=c_int64,
        events=POINTER(CEvent),
        event_count=c_int64,
        printed=c_void_p,
        printed_bytes=c_int64,
        library_base=c_uint64,
    )


class COptions(Structure):
    _fields_ = _fields(
        grid=Triple,
        block=Triple,
        cluster=c_uint32,
        ranks=c_uint32,
        shared_bytes=c_uint64,
        shared_limit=c_uint64,
        warp_size=c_int32,
        workers=c_int32,
        seed=c_int32,
        early=c_int32,
        count=c_int32,
        trace=c_int32,
        buffer_count=c_int32,
        prefetches=c_int32,
        record=c_int32,
        last=c_int32,
        time_limit=c_double,
    )


class CBuffer(Structure):
    _fields_ = _fields(
        begin=c_void_p,
        bytes=c_int64,
        argument=c_int32,
        element_bytes=c_int32,
        row_bytes=c_int64,
        prefetched=c_int32,
    )


class CParameter(Structure):
    _fields_ = _fields(kind=c_char, bytes=c_int32)
