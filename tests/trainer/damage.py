"""What the loaders of files are fed: good files that something happened to, and their headers."""

import struct

from hypothesis import strategies as st


def header(*numbers: int) -> bytes:
    """The 256 int32 that every file of llm.c begins with."""
    return struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))


@st.composite
def damaged(draw, good: bytes) -> bytes:
    """A few bytes changed, something cut out or put in, or the end cut off."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        # Most of a file is numbers, in which little can go wrong; so mostly its beginning.
        at = draw(st.integers(0, min(len(data), draw(st.sampled_from([32, 1200, len(good)])))))
        change = draw(st.sampled_from(["set", "insert", "cut out", "cut off"]))
        if change == "set":
            new = draw(st.binary(min_size=1, max_size=8))
            data[at : at + len(new)] = new
        elif change == "insert":
            data[at:at] = draw(st.binary(max_size=9))
        elif change == "cut out":
            del data[at : at + draw(st.integers(1, 9))]
        else:
            del data[at:]
    return bytes(data)
