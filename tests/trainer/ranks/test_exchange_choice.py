"""What the devices of several ranks exchange by."""

from types import SimpleNamespace

import pytest

from ladder.core.common.errors import LadderError
from trainer.ranks.group import ALONE, HostSums, Ranks, open_communicator


class Gpu:
    """A device that is its own `processes`."""

    def __init__(self, refuses=False):
        self.refuses, self.processes = refuses, self

    def new_group(self):
        return b"name"

    def join_group(self, name, rank, size):
        return f"NCCL {name.decode()} {rank} of {size}"

    def join_p2p(self, exchange, rank, size, beside):
        if self.refuses:
            raise LadderError("no access")
        return f"P2P {rank} of {size}, {'beside' if beside else 'behind'}"


def ranks(on_this_machine=2):
    group = Ranks.__new__(Ranks)
    group.rank, group.size, group.local_size = 0, 2, on_this_machine
    group.exchange = lambda what, data: [data, b""]
    return group


@pytest.mark.parametrize(
    ("exchange", "overlaps", "gpu", "group", "chosen"),
    [
        ("nccl", True, Gpu(), ranks(), "NCCL name 0 of 2"),
        ("p2p", True, Gpu(), ranks(), "P2P 0 of 2, beside"),
        ("p2p", False, Gpu(), ranks(), "P2P 0 of 2, behind"),
        ("auto", True, Gpu(), ranks(), "P2P 0 of 2, beside"),
        ("auto", False, Gpu(), ranks(), "P2P 0 of 2, behind"),
        ("auto", True, Gpu(refuses=True), ranks(), "NCCL name 0 of 2"),
        ("auto", True, Gpu(), ranks(on_this_machine=1), "NCCL name 0 of 2"),
        ("auto", True, Gpu(), ALONE, None),
    ],
)
def test_gpus_exchange_by_p2p_or_nccl(exchange, overlaps, gpu, group, chosen):
    assert open_communicator(gpu, group, exchange, overlaps) == chosen


@pytest.mark.parametrize(
    ("gpu", "group", "names"),
    [(Gpu(refuses=True), ranks(), "no access"), (Gpu(), ranks(1), "--exchange p2p")],
)
def test_p2p_that_is_not_possible_is_refused(gpu, group, names):
    with pytest.raises(LadderError, match=names):
        open_communicator(gpu, group, "p2p", True)


def test_arrays_of_the_host_are_exchanged_by_the_host():
    sums = open_communicator(SimpleNamespace(processes=None), ranks(), "p2p", True)
    assert isinstance(sums, HostSums)
