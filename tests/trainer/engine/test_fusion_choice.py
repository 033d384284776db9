"""Which fusions a run uses, by flags, rungs, device and measurement."""

import dataclasses
import json
import re

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.measure.pick import Choice as Picked
from tests.trainer.tiny import assert_same, resolved_kernels, run, settings
from trainer.commands.parser import parse
from trainer.engine import kernels, rung_choice
from trainer.files import checkpoint
from trainer.flags import Flags
from trainer.model.fusion import FUSIONS
from trainer.model.gpt2 import GPT2Config
from trainer.model.lecture_gpt import LectureGPTConfig
from trainer.model.program import build
from trainer.open import open_run

SHAPE = GPT2Config(context=6, vocab=11, padded_vocab=16, layers=2, heads=2, channels=8)
# those of SHAPE
ALL = (
    *("residual_layernorm", "matmul_gelu", "matmul_gelu_backward"),
    *("matmul_bias_backward", "matmul_residual"),
)
BOTH = ALL[:2]
GELU = ALL[1:3]
REST = ALL[3:]
BIAS, RESIDUAL = REST[:1], REST[1:]


class Pretended:
    """A device that says only whether it is a GPU."""

    def __init__(self, kind):
        self.kind, self.is_gpu = kind, kind == "cuda"


CPU, EMULATED, GPU = Pretended("cpu"), Pretended("emulated"), Pretended("cuda")


@pytest.fixture(autouse=True)
def picked(monkeypatch):
    """Every call takes 1 us, those of the ops that are named in the result take what it says."""
    microseconds = {}

    def pick(ladder, device, dtype, *shapes, library, deterministic, tf32):
        (dims,) = shapes
        assert set(dims) == set(ladder.op.dims) and dtype in ("float32", "bfloat16", "float16")
        op = ladder.op.name
        return [Picked(op, 1, 1e-6 * microseconds.get(op, 1.0), {})]

    monkeypatch.setattr(kernels, "pick", pick)
    return microseconds


def choose(device, before=None, recompute=0, dtype="fp32", **changes):
    wanted = resolved_kernels(device.kind, dtype=dtype, **changes)

    def build_fused(names):
        return build(SHAPE, 2, 5, recompute=recompute, fusions=names)

    return kernels.choose_fusions(wanted, device, build_fused, before)


def chosen(*args, **changes):
    return choose(*args, **changes)[0]


@pytest.mark.parametrize("goal", ["best", "library"])
def test_on_a_gpu_the_best_rungs_are_fused(goal):
    assert choose(GPU, rungs=goal) == (ALL, [])


def test_a_fusion_that_is_slower_than_its_parts_is_left_out_and_a_note_says_so(picked):
    picked["matmul_gelu.forward"] = 2.5  # and apart: 2 us, in each of 2 layers
    names, (note,) = choose(GPU)
    assert names == ("residual_layernorm", "matmul_gelu_backward", *REST)
    assert re.match("matmul_gelu .* 0.005 ms .* 0.004 ms", note)
    assert chosen(GPU, fuse="all") == tuple(FUSIONS)  # who asks for it gets it
    picked["matmul_gelu.backward_input"] = 2.5
    assert chosen(GPU) == ("residual_layernorm", *REST)
    picked["matmul.backward_weight_bias"] = 2.5
    assert chosen(GPU) == ("residual_layernorm", *RESIDUAL)


def test_a_sum_in_the_product_is_measured_beside_a_sum_in_the_layernorm(picked):
    """Both fusions take residual.forward: 3 and 1 us, or 1 and 1.9, in each of 4 branches."""
    picked["layernorm.forward"], picked["residual_layernorm.forward"] = 1.0, 1.9
    picked["matmul_residual.forward"] = 3.0
    names, (note,) = choose(GPU)
    assert names == ALL[:4]
    assert re.match("matmul_residual .* 0.016 ms .* 0.0116 ms", note)
    picked["matmul_residual.forward"] = 1.8
    assert chosen(GPU) == ALL
    picked["residual_layernorm.forward"] = 2.5  # with its backward half, as fast as its parts
    picked["residual_layernorm.backward"] = 2.5
    assert chosen(GPU) == ALL[1:]
    assert chosen(GPU, rung={"residual_layernorm.forward": "2"}) == ALL[:4]


def test_a_fused_op_that_cannot_run_is_left_out_with_the_reason(monkeypatch):
    def pick(ladder, *shapes, **options):
        if ladder.op.layer == "matmul_gelu":
            raise LadderError("matmul_gelu.forward has no rung that can run here: rung 1: no")
        return [Picked(ladder.op.name, 1, 1e-6, {})]

    monkeypatch.setattr(kernels, "pick", pick)
    names, notes = choose(GPU)
    assert names == ("residual_layernorm", *REST)
    assert re.match("matmul_gelu .*: matmul_gelu.forward has no rung that can run here", notes[0])


def test_recomputing_counts_what_stays_unfused(picked):
    """With -r 2 only the backward pass is fused: 4 calls of 2 us in place of 8 of 1 us."""
    picked["residual_layernorm.forward"] = 1e6
    picked["residual_layernorm.backward"] = 2.1
    assert chosen(GPU, recompute=2) == ALL[1:]
    picked["residual_layernorm.backward"] = 1.9
    assert chosen(GPU, recompute=2) == ALL


@pytest.mark.parametrize(
    ("device", "goal"), [(GPU, "naive"), (CPU, "reference"), (EMULATED, "naive")]
)
def test_elsewhere_nothing_is_fused_unless_asked_for(device, goal):
    assert chosen(device, rungs=goal) == ()
    assert chosen(device, rungs=goal, fuse="matmul_gelu") == ("matmul_gelu",)
    assert chosen(device, rungs=goal, fuse="matmul_gelu,residual_layernorm") == BOTH
    assert chosen(device, rungs=goal, fuse="all") == tuple(FUSIONS)


def test_fusions_of_ops_that_the_model_does_not_have_are_left_out_without_a_note():
    def lecture(names):
        fields = dataclasses.asdict(SHAPE)
        return build(LectureGPTConfig(**fields), 2, 5, fusions=names)

    names, notes = kernels.choose_fusions(resolved_kernels("cuda", dtype="fp32"), GPU, lecture)
    assert names == ("residual_layernorm", *REST, "matmul_relu", "matmul_relu_backward")
    assert notes == []


@pytest.mark.parametrize(("microseconds", "wanted"), [(1.9, True), (2.1, False)])
def test_a_fusion_is_measured_beside_what_those_before_it_have_made(picked, microseconds, wanted):
    """Dropout joins residual_layernorm: 2 us apart. Where that is not fused, there is nothing to
    join."""

    def dropping(names):
        return build(dataclasses.replace(SHAPE, dropout=0.2), 2, 5, fusions=names)

    picked["dropout_residual_layernorm.forward"] = microseconds
    picked["dropout_residual_layernorm.backward"] = microseconds
    gpu = resolved_kernels("cuda", dtype="fp32")
    names, notes = kernels.choose_fusions(gpu, GPU, dropping)
    assert ("dropout_residual_layernorm" in names) == wanted
    assert any(note.startswith("dropout_residual_layernorm ") for note in notes) != wanted
    picked["residual_layernorm.forward"] = picked["residual_layernorm.backward"] = 2.5
    names, notes = kernels.choose_fusions(gpu, GPU, dropping)
    assert not {"residual_layernorm", "dropout_residual_layernorm"} & {*names}
    assert len(notes) == 1


def test_a_rung_for_some_shapes_keeps_their_calls_apart():
    fc, qkv = "matmul.forward@C:8,OC:32", "matmul.forward@C:8,OC:24"
    assert chosen(GPU, rung={"matmul.forward@C:8,OC:8": "2"}) == ALL[:4]
    assert chosen(GPU, rung={fc: "2"}) == (ALL[0], *ALL[2:])  # matmul_gelu would take these calls
    assert chosen(GPU, rung={qkv: "2"}) == ALL
    assert "matmul_gelu" in chosen(GPU, rung={"matmul_gelu.forward@C:8": "2"}, rungs="naive")


HEAD = "matmul_crossentropy"


def test_the_loss_is_fused_with_the_head_in_bfloat16_where_that_pays(picked):
    assert chosen(GPU, dtype="bf16") == (*ALL, HEAD)
    picked[f"{HEAD}.forward"] = 2.5  # 1 us for each of both ops before
    assert chosen(GPU, dtype="bf16") == ALL
    assert chosen(GPU, dtype="fp32", rung={f"{HEAD}.forward": "1"}) == (*ALL, HEAD)
    assert chosen(GPU, dtype="bf16", rung={"matmul.backward_weight": "5"}) == ALL[:3] + RESIDUAL
    picked[f"{HEAD}.forward"] = 1.5
    assert chosen(GPU, dtype="bf16", rung={"matmul.backward_weight": "5"}) == (
        *ALL[:3],
        *RESIDUAL,
        HEAD,
    )


def test_the_loss_is_not_fused_in_float16_where_exponentials_overflow():
    assert chosen(GPU, dtype="fp16") == ALL
    assert chosen(GPU, dtype="fp16", fuse="all") == tuple(FUSIONS)[:-1]
    for asked in ({"fuse": HEAD}, {"rung": {f"{HEAD}.forward": "1"}}):
        with pytest.raises(LadderError, match=f"{HEAD} .*--dtype bf16"):
            chosen(GPU, dtype="fp16", **asked)


@pytest.mark.parametrize("op", ["layernorm.forward", "layernorm.backward", "residual.forward"])
def test_a_named_rung_of_an_op_that_would_be_fused_leaves_it_unfused(op):
    residual = () if op == "residual.forward" else RESIDUAL
    assert chosen(GPU, rung={op: "1"}) == GELU + BIAS + residual
    assert chosen(GPU, rung={op: "1", "matmul.forward": "2"}) == GELU[1:] + BIAS
    assert chosen(GPU, rung={op: "1", "matmul.backward_input": "2"}) == GELU[:1] + BIAS + residual
    assert chosen(GPU, rung={op: "1", "matmul.backward_bias": "2"}) == GELU + residual
    assert chosen(GPU, rung={op: "1"}, fuse="all") == tuple(FUSIONS)


def test_a_rung_of_a_fused_op_turns_its_fusion_on():
    swapped = {"residual_layernorm.backward": "2"}
    assert chosen(EMULATED, rungs="naive", rung=swapped) == ("residual_layernorm",)
    assert chosen(GPU, rung={**swapped, "layernorm.forward": "3"}) == ALL


DROPPED = "dropout_residual_layernorm"


def test_a_rung_of_a_fused_op_turns_on_the_fusions_that_it_is_made_by(tmp_path):
    both = ("residual_layernorm", DROPPED)
    assert chosen(EMULATED, rungs="naive", rung={f"{DROPPED}.backward": "2"}) == both
    assert chosen(EMULATED, rungs="naive", rung={"residual_layernorm.forward": "2"}) == both[:1]
    path = tmp_path / "rungs.json"
    path.write_text(json.dumps({f"{DROPPED}.forward": 2}))
    assert chosen(GPU, rungs=str(path)) == both


def test_a_fusion_that_is_named_without_one_that_it_needs_is_refused():
    with pytest.raises(LadderError, match=f"{DROPPED} .*--fuse residual_layernorm,{DROPPED}$"):
        chosen(CPU, rungs="reference", fuse=f"matmul_gelu,{DROPPED}")
    assert len(chosen(CPU, rungs="reference", fuse=f"residual_layernorm,{DROPPED}")) == 2


def test_a_file_of_rungs_brings_its_fusions(tmp_path):
    path = tmp_path / "rungs.json"
    path.write_text(json.dumps({"matmul_gelu.forward": 1, "layernorm.forward": 2}))
    assert chosen(GPU, rungs=str(path)) == ("matmul_gelu",)
    path.write_text(json.dumps({"layernorm.forward": 2}))
    assert chosen(GPU, rungs=str(path)) == ()


@pytest.mark.parametrize("value", [0, 1, 2])
def test_the_flag_of_llmc_decides_about_gelu_alone(value):
    assert chosen(GPU, gelu_fusion=value) == (*ALL[: 1 + value], *REST)
    assert chosen(CPU, rungs="reference", gelu_fusion=value) == GELU[:value]
    typed = {"fuse": "all", "gelu_fusion": value}
    assert chosen(CPU, rungs="reference", **typed) == tuple(
        name for name in FUSIONS if name not in GELU[value:]
    )


def test_an_unknown_fusion_is_refused_with_the_known_ones():
    for words in ("everything", "auto,matmul_gelu", ""):
        with pytest.raises(LadderError, match="--fuse"):
            parse(["--fuse", words])
    with pytest.raises(LadderError, match=r"matmul_gelu,gelu: .*auto, .* residual_layernorm, drop"):
        parse(["--fuse", "matmul_gelu,gelu"])


def test_a_resumed_run_keeps_its_fusions_unless_a_flag_changes_them():
    before = {"fusions": ["matmul_gelu"]}
    assert chosen(GPU, before) == ("matmul_gelu",)
    assert chosen(GPU, before, fuse="none") == ()
    assert chosen(GPU, before, rung={"gelu.forward": "1"}) == ()
    assert chosen(GPU, {}) == ()  # a checkpoint of a time before there were any


# ---- whole runs ----


def test_a_rung_of_an_op_that_is_fused_away_is_refused_with_the_flag(tmp_path):
    flags = {"fuse": "all", "device": "emulated", "rungs": "naive"}
    with pytest.raises(LadderError, match=r"residual.forward=1: .*--fuse .* residual_layernorm$"):
        open_run(Flags(**settings(tmp_path, rung={"residual.forward": "1"}, **flags)))


@pytest.mark.costly
@pytest.mark.emulator
@pytest.mark.parametrize(
    ("recompute", "dtype", "tolerance"), [(2, "fp32", 1e-5), (0, "bf16", 5e-3)]
)
def test_a_fused_run_trains_and_samples_as_a_plain_one(tmp_path, recompute, dtype, tolerance):
    """The same kernels in another order of rounding: the losses agree, to the type's rounding."""
    kernels = {"device": "emulated", "rungs": "naive", "recompute": recompute, "dtype": dtype}
    losses = {}
    joined = ",".join(ALL[:4])
    for fuse in ("none", joined, "all"):
        flags = {"fuse": fuse, "output": str(tmp_path / fuse), **kernels}
        outcome, screen = run(tmp_path, steps=2, sample_every=2, sample_tokens=3, **flags)
        losses[fuse] = [loss for _, loss in outcome.val_losses]
        assert ("matmul_gelu.forward" in screen) == (fuse != "none")
        assert ("matmul_gelu.backward_input" in screen) == (fuse != "none")
        assert ("matmul_residual.forward" in screen) == (fuse == "all")
        assert ("matmul_crossentropy.forward" in screen) == (fuse == "all")
    for fuse in (joined, "all"):
        np.testing.assert_allclose(losses[fuse], losses["none"], rtol=tolerance)
        named = json.loads((tmp_path / fuse / "rungs.json").read_text())
        by_layernorm = fuse == joined and recompute < 2
        assert ("residual_layernorm.forward" in named) == by_layernorm
        assert "residual_layernorm.backward" in named and "residual.backward" not in named


def test_a_rung_of_what_recomputing_leaves_unfused_is_refused_with_what_helps(tmp_path):
    named = {"device": "emulated", "recompute": 2, "rung": {"residual_layernorm.forward": "1"}}
    names = "^--rung {}.forward=1: -r 2 .* -r 0 or -r 1, "
    with pytest.raises(LadderError, match=names.format("residual_layernorm")):
        open_run(Flags(**settings(tmp_path, **named)))
    dropping = dataclasses.replace(SHAPE, dropout=0.1)
    wanted = resolved_kernels("emulated", rung={f"{DROPPED}.forward": "1"})
    program = build(dropping, 2, 5, recompute=2, fusions=FUSIONS)
    with pytest.raises(LadderError, match=names.format(DROPPED)):
        rung_choice.choose(program.calls, wanted, EMULATED)
    program = build(SHAPE, 2, 5, fusions=FUSIONS)
    with pytest.raises(LadderError, match=f"{DROPPED}.forward=1: .*--fuse .* {DROPPED}$"):
        rung_choice.choose(program.calls, wanted, EMULATED)
    for changes in ({"fuse": "none"}, {"fuse": "all", "recompute": 0}):
        with pytest.raises(LadderError, match=r"norm.forward=1: .*--fuse .* residual_layernorm$"):
            open_run(Flags(**settings(tmp_path, **{**named, **changes})))


def test_a_fused_run_resumes_fused_and_bit_for_bit(tmp_path):
    common = {"checkpoint_every": 2, "sample_every": 0}
    run(tmp_path, steps=4, fuse="all", output=str(tmp_path / "whole"), **common)
    run(tmp_path, steps=2, fuse="all", **common)
    run(tmp_path, steps=4, resume=True, **common)  # --fuse auto
    whole, state = checkpoint.load(tmp_path / "whole", 4)
    resumed, again = checkpoint.load(tmp_path / "run", 4)
    assert state["kernels"]["fusions"] == again["kernels"]["fusions"] == list(FUSIONS)
    assert_same(dict(whole), dict(resumed))
