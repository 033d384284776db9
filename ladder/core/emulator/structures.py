"""The C structures that Python and the runtime exchange: results.h, Options and Buffer."""

from __future__ import annotations

import ctypes

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
Triple = ctypes.c_uint32 * 3


class CPlace(ctypes.Structure):
    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("block", Triple),
        ("thread", Triple),
        ("access", ctypes.c_int32),
        ("agent", ctypes.c_int32),
    )


class CWhere(ctypes.Structure):
    _fields_ = (
        ("shared_name", ctypes.c_char_p),
        ("argument", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("offset", ctypes.c_int64),
    )


class CProblem(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("fatal", ctypes.c_int32),
        ("place", CPlace),
        ("other", CPlace),
        ("where", CWhere),
        ("text", ctypes.c_char * 360),
    )


class CSite(ctypes.Structure):
    _fields_ = (
        ("pc", ctypes.c_uint64),
        ("shared_name", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("argument", "access", "bytes", "padding")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "requests",
                "lanes",
                "sectors",
                "ideal_sectors",
                "wavefronts",
                "ideal_wavefronts",
            )
        ),
    )


class CRequest(ctypes.Structure):
    _fields_ = (
        ("site", ctypes.c_int32),
        ("warp", ctypes.c_int32),
        ("block", Triple),
        ("padding", ctypes.c_uint32),
        ("lanes", ctypes.c_uint64),
        ("offsets", ctypes.c_int64 * 64),
    )


class CResult(ctypes.Structure):
    _fields_ = (
        ("problems", ctypes.POINTER(CProblem)),
        ("problem_count", ctypes.c_int64),
        ("sites", ctypes.POINTER(CSite)),
        ("site_count", ctypes.c_int64),
        ("requests", ctypes.POINTER(CRequest)),
        ("request_count", ctypes.c_int64),
        ("printed", ctypes.c_void_p),
        ("printed_bytes", ctypes.c_int64),
        ("library_base", ctypes.c_uint64),
    )


class COptions(ctypes.Structure):
    _fields_ = (
        ("grid", Triple),
        ("block", Triple),
        ("cluster", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_uint64),
        ("shared_limit", ctypes.c_uint64),
        ("warp_size", ctypes.c_int32),
        ("workers", ctypes.c_int32),
        ("seed", ctypes.c_int32),
        ("early", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("trace", ctypes.c_int32),
        ("buffer_count", ctypes.c_int32),
        ("prefetches", ctypes.c_int32),
        ("time_limit", ctypes.c_double),
    )


class CBuffer(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("argument", ctypes.c_int32),
        ("element_bytes", ctypes.c_int32),
        ("row_bytes", ctypes.c_int64),
        ("prefetched", ctypes.c_int32),
    )


class CParameter(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("bytes", ctypes.c_int32))
