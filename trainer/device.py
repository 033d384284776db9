"""Which device a run takes when none is named."""

from __future__ import annotations


def default_device() -> str:
    """cuda where CuPy is installed and sees a GPU, else cpu."""
    try:
        import cupy

        return "cuda" if cupy.cuda.runtime.getDeviceCount() else "cpu"
    except Exception:  # not installed, or CuPy's own error where there is no driver
        return "cpu"
