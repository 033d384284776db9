"""The one exception of this project that a user is meant to see, as a single line."""


class LadderError(Exception):
    """Something asked for cannot be done; the message names the thing and the remedy.

    Command lines print it without a traceback and exit with status 2.
    """


class CompileError(LadderError):
    """A kernel does not compile; the lines of the message name file, line and source text."""


class DeviceFault(LadderError):
    """A kernel has done something that its device does not survive: a bad address, a timeout."""
