"""Climb and profile, on a device where time passes only as its rungs say."""

import contextlib
import functools
import json

import numpy as np
import pytest
from rich.console import Console

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import Reading, Sensors
from ladder.core.contract.rung_file import Rung
from ladder.core.measure import energy
from ladder.core.measure.roofline import Roof
from tests.ladder.fakes import FakeGpu
from tests.trainer.plots.test_drawings import texts
from tests.trainer.tiny import add_size
from trainer import open as opening
from trainer.commands import climb, op_timing, profile, step_timing
from trainer.data.tokenizers import GPT2Tokenizer
from trainer.engine import rung_choice
from trainer.flags import DeviceChoice, Flags
from trainer.model import registry
from trainer.model.fusion import FUSIONS
from trainer.model.program import build
from trainer.report import Display

SLOW = {"matmul.forward": 40e-6, "gelu.forward": 30e-6, "layernorm.forward": 20e-6}  # seconds


class Gpu(FakeGpu):
    """Its lowest rungs take 10 us a call, or as SLOW says, its best ones 1 us."""

    marks_in_graphs = True

    def fetch(self, array):
        return lambda: np.array(array)


@functools.cache
def rung_of(op, number):
    seconds = SLOW.get(op, 10e-6) if number == 1 else 1e-6

    def run(device, arrays, dims, scalars):
        device.now += seconds

    return Rung(str(number), "takes its time", run=run)


@pytest.fixture
def gpu(monkeypatch):
    """`-e d2` on a Gpu; embedding.forward has one rung only."""

    def choose(calls, wanted, device, before=None, on_progress=None):
        best = wanted.rung_set in ("best", "library")
        ops = sorted({call.op for call in calls})
        numbers = {op: 3 if best and op != "embedding.forward" else 1 for op in ops}
        return {op: rung_choice.Choice(rung_of(op, n), "so") for op, n in numbers.items()}

    device = Gpu()
    add_size(monkeypatch, "d2", layers=2, channels=16, heads=2)

    def open_for(name, dtype, local_rank=None):
        return device, DeviceChoice("cuda", True, dtype), []

    monkeypatch.setattr(opening, "open_for", open_for)
    monkeypatch.setattr(rung_choice, "choose", choose)
    monkeypatch.setattr(
        rung_choice, "compiling_candidates", lambda *which: contextlib.nullcontext()
    )
    monkeypatch.setattr(op_timing, "empty_launch", lambda device: 1.5e-6)
    monkeypatch.setattr(step_timing, "roof_of", lambda device, real: Roof(1e12, 1e12))
    return device


def config(**changes):
    return Flags(
        **{"model": "d2", "batch": 2, "sequence": 5, "steps": 3, "dtype": "fp32", **changes}
    )


def seconds_of(program, raised):
    calls = program.training_step
    return sum(1e-6 if call.op in raised else SLOW.get(call.op, 10e-6) for call in calls)


@pytest.mark.slow
def test_ops_are_raised_one_by_one_the_slowest_first(gpu, tmp_path):
    result = climb.measure(config(rungs="best", fuse="all"), Display(Console(quiet=True), 0))
    shape = registry.SIZES["d2"].config.with_vocab(GPT2Tokenizer.vocab)
    program = build(shape, 2, 5)
    raised, fused = [], []
    for stage in result["stages"]:
        if "fusion" in stage:
            fused.append(stage)
            continue
        raised += [stage["op"]]
        assert stage["ms"] == pytest.approx(1e3 * seconds_of(program, raised))
        assert stage["tokens_per_second"] == pytest.approx(1e4 / stage["ms"])
    assert raised[0] is None and raised[1] == "matmul.forward"
    assert len(raised) == len(set(raised)) and "embedding.forward" not in raised
    calls = program.training_step
    alone = {op: sum(SLOW.get(op, 10e-6) for call in calls if call.op == op) for op in raised[1:]}
    assert [alone[op] for op in raised[1:]] == sorted(alone.values(), reverse=True)
    assert [s["to"] for s in result["stages"][1 : len(raised)]] == ["3"] * (len(raised) - 1)
    assert result["stages"][-len(FUSIONS) :] == fused  # they come last, each on top of those before
    for number, stage in enumerate(fused, 1):
        program = build(shape, 2, 5, fusions=tuple(FUSIONS)[:number])
        assert stage["fusion"] == tuple(FUSIONS)[number - 1]
        every = {call.op for call in program.training_step}
        every.remove("embedding.forward")
        assert stage["ms"] == pytest.approx(1e3 * seconds_of(program, every))
    assert fused[0]["to"] == {f"residual_layernorm.{d}": "3" for d in ("forward", "backward")}
    assert result["job"]["fusions"] == tuple(FUSIONS)


def test_the_profile_has_a_row_for_each_rung_of_an_op(gpu, monkeypatch):
    """The best rungs of matmul.forward are 3 and, at one of its shapes, 2."""
    choose, projection = rung_choice.choose, "matmul.forward@C:64,OC:16"

    def choose_two(calls, wanted, *more, **options):
        two = {projection: rung_choice.Choice(rung_of("matmul.forward", 2), "so")}
        return choose(calls, wanted, *more, **options) | two

    monkeypatch.setattr(rung_choice, "choose", choose_two)
    result, _ = profile.measure(config(rungs="best", fuse="none"))
    rows = {row["op"]: (row["rung"], row["calls"]) for row in result["ops"]}
    program = build(registry.SIZES["d2"].config.with_vocab(GPT2Tokenizer.vocab), 2, 5)
    calls = sum(call.op == "matmul.forward" for call in program.training_step)
    assert rows[projection] == ("2", 2)
    assert rows["matmul.forward"] == ("3", calls - 2)


@pytest.mark.slow
def test_the_climb_is_written_as_numbers_table_and_picture(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(step_timing, "FOLDER", tmp_path)
    monkeypatch.setattr(step_timing, "parser_of", parser_with_defaults)
    assert climb.main(["-e", "d2", "-b", "2", "-t", "5", "-x", "3", "--fuse", "all"]) == 0
    fused = "-".join(FUSIONS).replace("_", "-")
    name = f"fake-9000-climb-d2-fp32-b2-t5-best-fused-{fused}"
    written = json.loads((tmp_path / f"{name}.json").read_text())
    assert written["job"]["goal"] == "best" and len(written["stages"]) > 10
    assert "prefers-color-scheme:dark" in (tmp_path / f"{name}.svg").read_text()
    screen = capsys.readouterr().out
    gain = written["stages"][0]["ms"] / written["stages"][-1]["ms"]
    assert f"{gain:.1f} x" in screen
    assert "matmul.forward" in screen and "1 -> 3" in screen
    assert "residual_layernorm" in screen and "3, 3" in screen


def parser_with_defaults(*names, parser_of=step_timing.parser_of):
    parser = parser_of(*names)
    parser.set_defaults(dtype="fp32")  # resolve, which the fixture stands in for, would say so
    return parser


@pytest.mark.slow
def test_the_profile_adds_up_and_is_drawn(gpu, tmp_path):
    result, _ = profile.measure(config(rungs="naive"))
    program = build(registry.SIZES["d2"].config.with_vocab(GPT2Tokenizer.vocab), 2, 5)
    calls = program.training_step
    assert result["step_ms"] == pytest.approx(1e3 * seconds_of(program, ()))
    assert result["ops_ms"] == pytest.approx(result["step_ms"])
    assert result["gaps_ms"] == pytest.approx(0, abs=1e-9)
    assert result["launches"] == len(calls) == sum(row["calls"] for row in result["ops"][:-1])
    rows = {row["op"]: row for row in result["ops"]}
    assert rows["gelu.forward"]["ms"] == pytest.approx(1e3 * 2 * SLOW["gelu.forward"])
    assert rows["zero gradients"]["bytes"] == 4 * program.buffers["gradients"].shape[0]
    assert result["memory"]["gradient"] == rows["zero gradients"]["bytes"]
    assert {"step", "floor", "memory", "ms", "GiB"} <= texts(profile.draw(result))
    odd = profile.draw({**result, "model": "runs/lr$_{$"})
    assert any(text.startswith("runs/lr$_{$, B=") for text in texts(odd))


def test_what_a_mark_costs_is_no_part_of_an_op(gpu, monkeypatch):
    def mark(device):
        device.now += 2e-6
        return device.now

    monkeypatch.setattr(Gpu, "mark", mark)
    result, _ = profile.measure(config(rungs="naive"))
    profile.refuse_gap(result)
    assert result["mark_us"] == pytest.approx(
        2, rel=0.05
    )  # a mark counts in the unmarked step, too
    rows = {row["op"]: row for row in result["ops"]}
    assert rows["gelu.forward"]["ms"] == pytest.approx(1e3 * 2 * SLOW["gelu.forward"], rel=0.01)


def test_a_profile_whose_ops_do_not_add_up_to_the_step_is_refused(gpu, tmp_path, monkeypatch):
    def disturbed(engine):
        step_timing.one_step(engine)
        engine.device.now += 20e-6

    def zero(device, array):
        device.now += 1e-6

    monkeypatch.setattr(op_timing, "one_step", disturbed)
    monkeypatch.setattr(Gpu, "zero", zero)
    monkeypatch.setattr(step_timing, "parser_of", parser_with_defaults)
    monkeypatch.setattr(step_timing, "FOLDER", tmp_path)
    arguments = ["-e", "d2", "-b", "2", "-t", "5", "--rungs", "naive", "--fuse", "all"]
    with pytest.raises(LadderError, match=" 1 %"):
        profile.main(arguments)
    assert not [*tmp_path.iterdir()]
    result, _ = profile.measure(config(rungs="naive", fuse="none"))
    assert result["gaps_ms"] > 0.01 * result["step_ms"]
    profile.refuse_gap(result)  # two streams need not add up


def test_a_trace_is_the_step_call_by_call(gpu):
    result, trace = profile.measure(config(rungs="naive", fuse="all"))
    events = json.loads(json.dumps(trace))["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert list(named.values()) == ["forward", "backward", "update"]
    slices = [event for event in events if event["ph"] == "X"]
    layers = [event for event in slices if "layer" in event["args"]]
    calls = [event for event in slices if "layer" not in event["args"]]
    assert len(calls) == 1 + result["launches"]  # the zeroing of the gradients
    assert [event["name"] for event in layers] == ["h0", "h1", "h1", "h0"]
    end = 0.0
    for event in calls:
        assert event["ts"] == pytest.approx(end, abs=2e-3)
        assert event["cat"] == named[event["tid"]]
        end = event["ts"] + event["dur"]
    assert end == pytest.approx(1e3 * result["step_ms"])
    within = {
        layer["name"]: [c for c in calls if 0 <= c["ts"] - layer["ts"] < layer["dur"]]
        for layer in layers[:2]
    }
    assert all(c["args"]["where"].startswith(f"{name}.") for name in within for c in within[name])
    (attention,) = (c for c in within["h0"] if c["name"] == "attention.forward")
    assert attention["args"]["shape"] == {"B": 2, "T": 5, "C": 16, "NH": 2}
    assert attention["args"]["rung"] == "rung 1 (takes its time)"
    assert attention["args"]["FLOPs"] > 0 and attention["args"]["least bytes"] > 0


def test_joules_are_power_times_time(gpu, monkeypatch):
    class Counter(Sensors):
        counts_energy = True

        def end(self):
            return Reading(9, 1450.0, 698.0, 700.0, 60.0, {}, mean_watts=700.0)

    def zero(device, array):
        device.now += 1e-6

    monkeypatch.setattr(Gpu, "zero", zero)
    for name in ("WARM_UP", "SETTLE", "SECONDS"):
        monkeypatch.setattr(energy, name, 0.0)
    result, _ = profile.measure(config(rungs="naive"), joules=True)
    assert "energy" not in result and "joules" not in result["ops"][0]
    monkeypatch.setattr(Gpu, "sensors", lambda device: Counter())
    result, _ = profile.measure(config(rungs="naive", fuse="all"), joules=True)
    joules = 700 * 1e-3 * result["step_ms"]
    assert result["energy"]["joules"] == pytest.approx(joules)
    assert result["energy"]["microjoules_per_token"] == pytest.approx(1e5 * joules)
    assert sum(row["joules"] for row in result["ops"]) == pytest.approx(joules)


@pytest.mark.slow
def test_every_measurement_has_a_file_of_its_own(gpu, tmp_path, monkeypatch):
    files = [tmp_path / name / "rungs.json" for name in ("a", "b")]
    for number, path in enumerate(files, 1):
        path.parent.mkdir()
        path.write_text(json.dumps({"gelu.forward": number}))
    choices = [{"rungs": which} for which in ("naive", "best", "library", *map(str, files))]
    choices += [{"rungs": "best", "rung": {"gelu.forward": str(number)}} for number in (1, 2)]
    choices += [{"recompute": 1}, {"fuse": "none"}, {"fuse": "all"}, {"deterministic": True}]
    choices += [{"dtype": "bf16", "master_weights": False, "stochastic_rounding": True}]
    choices += [{"dtype": "bf16"}, {"dtype": "bf16", "stochastic_rounding": True}]
    choices += [{"batch": 1}, {"sequence": 4}, {"model": "d3"}]
    add_size(monkeypatch, "d3", layers=3, channels=16, heads=2)
    names = []
    for changes in choices:
        job = step_timing.open_job(config(**{"rungs": "naive", **changes}), "profile")
        names.append(step_timing.file_name("profile", {"name": "Fake"}, job.description()))
    assert len(set(names)) == len(choices)
    assert names[1] == "fake-profile-d2-fp32-b2-t5-best"
