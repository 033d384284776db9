"""A device that does nothing until it is waited for, as a GPU that is infinitely slow would."""

import functools
from collections.abc import Callable

import numpy as np

from ladder.core.contract.ladder import ladders
from ladder.core.contract.rung_file import Rung
from ladder.core.device.open import Cpu


class Deferred(Cpu):
    """Submitted work waits in a queue, and runs when the host waits for it, in order.

    What is recorded into a graph does not run. `waits` counts how often the host had to wait,
    `graphs` how many were recorded, `launches` the calls submitted one by one.
    """

    name = "deferred"
    asynchronous = True

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.recording: list[Callable[[], None]] | None = None
        self.waits = self.graphs = self.launches = self.marks = 0

    def submit(self, work: Callable[[], None]) -> None:
        (self.queue if self.recording is None else self.recording).append(work)

    def launch(self, work: Callable[[], None]) -> None:
        self.launches += self.recording is None
        self.submit(work)

    def upload(self, array, host):
        assert self.recording is None, "a copy from the host in a graph would be frozen"
        staged = np.array(host)  # pinned memory of its own
        self.submit(lambda: np.copyto(array, staged, casting="unsafe"))

    def zero(self, array):
        self.submit(lambda: array.fill(0))

    def fetch(self, array):
        assert self.recording is None
        arrived = []
        self.submit(lambda: arrived.append(np.array(array)))

        def wait() -> np.ndarray:
            self.wait_until(lambda: bool(arrived))
            return arrived[0]

        return wait

    def download(self, array):
        self.synchronize()
        return np.array(array)

    def mark(self):
        """Without a clock of its own it counts the marks."""
        self.marks += 1
        return self.marks

    def synchronize(self) -> None:
        assert self.recording is None, "the host cannot wait while it records"
        self.wait_until(lambda: not self.queue)

    def wait_until(self, done: Callable[[], bool]) -> None:
        self.waits += not done()
        while not done():
            self.queue.pop(0)()

    def capture(self, work):
        self.synchronize()
        self.recording = recorded = []
        work()
        self.recording = None
        self.graphs += 1
        return lambda: self.queue.extend(recorded)


def deferred_rungs() -> dict[str, Rung]:
    """The reference of every op, as a function that a Deferred device runs when it gets to it."""

    def rung(ladder) -> Rung:
        def run(device, arrays, dims, scalars):
            device.launch(lambda: ladder.op.compute(list(arrays.values()), dims, scalars))

        return Rung("1", "the reference, later", run=run)

    return {name: rung(ladder) for name, ladder in ladders().items()}


class Clocked(Deferred):
    """A deferred device with clocks: `now` is the host's, `free` when the device is done with what
    it has executed; both in seconds.

    Every launch takes the host `HOST` and the device `DEVICE` seconds; recording a graph takes the
    host `RECORD` more. The device begins with a launch when it is submitted, or when the one before
    it is done.
    """

    HOST, DEVICE, RECORD = 1e-5, 1e-3, 0.5

    def __init__(self) -> None:
        super().__init__()
        self.now = self.free = 0.0

    def launch(self, work: Callable[[], None]) -> None:
        self.now += self.HOST
        super().launch(functools.partial(self._execute, work))

    def _execute(self, work: Callable[[], None]) -> None:
        self.free += self.DEVICE
        work()

    def submit(self, work: Callable[[], None]) -> None:
        submitted = self.now

        def begin() -> None:
            self.free = max(self.free, submitted)
            work()

        super().submit(work if self.recording is not None else begin)

    def wait_until(self, done: Callable[[], bool]) -> None:
        super().wait_until(done)
        self.now = max(self.now, self.free)

    def mark(self):
        passed = []
        self.submit(lambda: passed.append(self.free))
        return passed

    def seconds(self, start, end):
        self.wait_until(lambda: bool(end))
        return end[0] - start[0]

    def capture(self, work):
        self.now += self.RECORD
        replay = super().capture(work)

        def submit_graph() -> None:
            self.now += self.HOST
            self.submit(lambda: None)  # the device begins no earlier
            replay()

        return submit_graph
