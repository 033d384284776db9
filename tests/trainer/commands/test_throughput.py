"""The benchmark of a training step: what it reports adds up, and its file keeps one of each job."""

import dataclasses
import json

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.measure.roofline import Roof
from tests.trainer.tiny import add_size, parameters, run
from trainer.commands import op_timing, step_timing, throughput
from trainer.flags import Flags

FEW = {"vocab": 257, "padded_vocab": 384}  # tokens


@pytest.fixture(scope="module", autouse=True)
def quick():
    """The fewest turns, and no measured roof."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op_timing, "TURNS_SECONDS", 0.0)
        patch.setattr(op_timing, "WARM_UP_SECONDS", 0.0)
        patch.setattr(step_timing, "roof_of", lambda device, real: Roof(1e12, 1e12))
        yield


@pytest.fixture(scope="module")
def measured(quick):
    with pytest.MonkeyPatch.context() as patch:
        add_size(patch, "d2", layers=2, channels=16, heads=2, **FEW)  # small enough: -e d2
        return throughput.measure(Flags(model="d2", batch=2, sequence=5, steps=3, device="cpu"))


def test_step_products_and_ops_are_consistent(measured):
    machine, m = measured
    assert (m["model"], m["B"], m["T"], m["dtype"], m["steps"]) == ("d2", 2, 5, "fp32", 3)
    assert 0 < m["low_ms"] <= m["step_ms"] <= m["high_ms"]
    assert m["ratio"] == pytest.approx(m["step_ms"] / m["products_ms"]) and m["ratio"] > 0
    assert m["tokens_per_second"] == pytest.approx(1e3 * 10 / m["step_ms"])
    assert 0 < m["device_bytes"] < m["peak_memory_bytes"]
    assert m["floor_ms"] == pytest.approx(sum(row["floor_ms"] for row in m["ops"]))
    calls = {row["op"]: row["calls"] for row in m["ops"]}
    assert calls["matmul.forward"] == 4 * 2 + 1 and calls["adamw.update"] == 2
    assert {*m["rungs"], "zero gradients"} == set(calls) and set(m["rungs"].values()) == {"0"}
    assert machine["device"] == "cpu" and machine["blas"]


def test_measuring_again_replaces_the_same_job_and_keeps_the_others(measured, tmp_path):
    machine, m = measured
    path = throughput.record(machine, m, tmp_path)
    throughput.record(machine, {**m, "B": 8}, tmp_path)
    throughput.record(machine, {**m, "step_ms": 1.0}, tmp_path)
    steps = json.loads(path.read_text())["steps"]
    assert [(step["B"], step["step_ms"] == 1.0) for step in steps] == [(8, False), (2, True)]


def test_a_file_that_holds_something_else_is_left_alone(measured, tmp_path):
    machine, m = measured
    path = throughput.record(machine, m, tmp_path)
    path.write_text("{}")
    with pytest.raises(LadderError, match=rf"{path.name} .*'steps'"):
        throughput.record(machine, m, tmp_path)
    assert path.read_text() == "{}"


def test_a_command_that_is_refused_does_not_say_that_it_will_write(monkeypatch, capsys):
    add_size(monkeypatch, "d2", layers=2, channels=16, heads=2)
    d2 = ["-e", "d2", "--device", "cpu", "-b"]
    for words in (["-e", "nowhere"], [*d2, "60000"], [*d2, "1", "-t", "3", "-i", "nowhere.bin"]):
        with pytest.raises(LadderError):
            throughput.main(words)
    assert capsys.readouterr().err == ""


def test_a_step_with_dropout_is_measured_though_validation_has_other_ops(monkeypatch, capsys):
    add_size(monkeypatch, "d2", layers=2, channels=16, heads=2, attention_dropout=0.2, **FEW)
    flags = Flags(model="d2", batch=1, sequence=3, steps=1, device="cpu")
    _, m = throughput.measure(flags, write=True)
    assert "--no-write" in capsys.readouterr().err
    ops = {row["op"] for row in m["ops"]}
    assert "attention_dropout.forward" in ops and "attention.forward" not in ops


def test_the_step_of_a_run_has_its_weights_and_its_text_and_keeps_both(tmp_path):
    run(tmp_path, steps=2, checkpoint_every=2)
    flags = Flags(model=str(tmp_path / "run"), batch=2, sequence=16, steps=1, device="cpu")
    job = step_timing.open_job(flags, "bench")
    engine = job.engine()
    for _ in range(2):
        step_timing.one_step(engine)
    assert np.array_equal(engine.read("wte"), parameters(tmp_path / "run", 2)["wte"])
    tokens = engine.read("tokens")
    assert np.array_equal(engine.read("targets").reshape(-1)[:-1], tokens.reshape(-1)[1:])
    assert job.description()["weights"] == f"{tmp_path / 'run'}, step 2"
    assert job.description()["text"] == "play/bytes_train*.bin"


def test_a_model_file_without_a_text_has_random_tokens_unless_one_is_named(tmp_path):
    run(tmp_path, steps=1)
    (text,) = (tmp_path / "data").rglob("*val*.bin")
    flags = Flags(model=str(tmp_path / "model"), batch=2, sequence=16, steps=1, device="cpu")
    assert "text" not in step_timing.open_job(flags, "bench").description()
    named = dataclasses.replace(flags, train_data=str(text))
    assert (
        step_timing.open_job(named, "bench").description()["text"]
        == f"{text.parent.name}/{text.name}"
    )
