"""The debug flags: which call is named."""

import re

import numpy as np
import pytest

from ladder.core.common.errors import DeviceFault, LadderError
from ladder.core.contract.ladder import find
from ladder.core.device.open import Cpu
from tests.trainer.tiny import needs_compiler, run, settings
from trainer.engine.engine import wait
from trainer.files import checkpoint
from trainer.flags import Flags
from trainer.open import open_run
from trainer.train import take_step


def test_debug_nan_names_the_first_op_whose_output_is_not_finite(tmp_path):
    setup = open_run(Flags(**settings(tmp_path, debug_nan=True)))
    setup.engine.write("ln2b", np.full((16,), np.inf), 1)
    named = r"--debug-nan: h1\.ln_2, layernorm\.forward rung 0 .*: out .*512 .*512 .*\(0, 0\)"
    with pytest.raises(LadderError, match=named):
        take_step(setup.steps, setup.train, 0)


def test_debug_nan_sees_the_backward_pass_and_the_update(tmp_path):
    setup = open_run(Flags(**settings(tmp_path, debug_nan=True)))
    setup.engine.write("fcprojw.v", np.full((2, 16, 64), np.nan))
    with pytest.raises(LadderError, match=r" fcprojw, adamw.update .*: weight .*2,048 .*12,800 "):
        take_step(setup.steps, setup.train, 0)


def test_debug_flags_do_not_change_what_is_computed(tmp_path):
    plain = run(tmp_path, steps=2, output=str(tmp_path / "plain"))[0]
    watched = [
        run(tmp_path, steps=2, output=str(tmp_path / flag), **{flag: True})[0]
        for flag in ("debug_nan", "debug_sync")
    ]
    assert all(outcome.val_losses == plain.val_losses for outcome in watched)


def faulty(patch, at):
    """Have the device fail as a GPU does, from the `at`-th synchronize on."""
    count = iter(range(10**9))

    def synchronize(self):
        if next(count) >= at:
            raise DeviceFault("an illegal memory access was encountered")

    patch.setattr(Cpu, "synchronize", synchronize)


def test_debug_sync_names_the_op_that_a_fault_is_in(tmp_path, monkeypatch):
    setup = open_run(Flags(**settings(tmp_path, debug_sync=True)))
    setup.engine.write("tokens", np.zeros((2, 16)))
    faulty(monkeypatch, at=5)
    with pytest.raises(DeviceFault, match=r"^h0\.attproj, residual\.forward rung 0 .*: an illegal"):
        setup.engine.evaluate()
    assert issubclass(DeviceFault, LadderError)
    with pytest.raises(DeviceFault):
        wait(setup.engine, setup.kernels.program.forward[0])


FAULT = """\
    // once the first steps have moved the weights; downwards, since above there may be no addresses
    if (N == 2048 && i == 5 && to_float(inp[i]) > 0.5f) *(out - (1ll << 40)) = to_real(1.0f);
    out[i] ="""


@pytest.mark.costly
@pytest.mark.emulator
@needs_compiler
def test_a_kernel_that_faults_after_some_steps_is_named_with_the_checkpoint(tmp_path):
    """It passes the check that comes first: the shape of the run is none of those."""
    source = find("gelu.forward").rung(1).source
    mine = tmp_path / "mine.cu"
    mine.write_text(source.replace("    out[i] =", FAULT))
    assert mine.read_text() != source
    settings = {"device": "emulated", "rung": {"gelu.forward": str(mine)}, "lr": 0.05, "keep": 1}
    settings["unconfined"] = True
    with pytest.raises(DeviceFault) as told:
        run(tmp_path, steps=200, checkpoint_every=1, **settings)
    directory = tmp_path / "run"
    step = checkpoint.latest(directory)
    assert 0 < step < 200
    assert re.fullmatch(
        rf"h\d\.gelu, gelu\.forward mine\.cu .*: {re.escape(str(mine))}:\d+: block \(0, 0, 0\), "
        rf"thread \(5, 0, 0\): .* 0x\w+\n +\d+ \| .*\n.* step {step} in "
        rf"{re.escape(str(directory))} .*-y 1",
        str(told.value),
    )
    run(tmp_path, steps=step + 1, resume=True, device="emulated", rung={"gelu.forward": "1"})
