"""A device with a clock of its own, and rungs that take exactly as long as they say."""

from ladder.core.contract.ladder import Ladder, find
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import Cpu
from ladder.core.measure.pick import Choice
from ladder.core.measure.pick import pick as pick_each


class FakeGpu(Cpu):
    """NumPy arrays, and time that passes only where a rung says so."""

    name = "Fake 9000"
    kind = "fake"
    is_gpu = True
    runs_reference = False
    runs_kernels = True
    library_rungs = frozenset({"5", "9", "one", "two"})  # the library rungs in the tests

    def __init__(self):
        self.now = 0.0
        self.launches = 0

    def mark(self) -> float:
        return self.now

    def description(self) -> dict[str, str]:
        return {"gpu": self.name, "driver": "1.0", "nvrtc": "13.0"}


def timed_rung(id: int | str, idea: str, microseconds: float, wrong: bool = False, **more) -> Rung:
    """A rung that adds two vectors in a given time; `more` are lines of its header."""

    def run(device, arrays, dims, scalars):
        find("start.add").op.compute(list(arrays.values()), dims)
        if wrong:
            arrays["c"][0] += 1
        device.now += microseconds * 1e-6
        device.launches += 1

    library = more.pop("library", False)
    header = {key: (value,) for key, value in more.items()}
    return Rung(str(id), idea, run=run, library=library, header=header)


class FakeLadder(Ladder):
    """start.add with these rungs and no files."""

    @property
    def rungs(self) -> tuple[Rung, ...]:
        return self.extra


def ladder(*rungs: Rung, op: Op | None = None) -> Ladder:
    return FakeLadder(op or find("start.add").op, rungs)


def pick(*args, **options) -> Choice:
    """The choice at one shape."""
    (choice,) = pick_each(*args, **options)
    return choice
