"""Which rung an op gets, and which choices are refused."""

import json
import re
from dataclasses import replace

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.contract.target import Target
from ladder.core.device.open import Cpu
from ladder.core.measure.pick import Choice as Picked
from tests.trainer.tiny import resolved_kernels
from trainer.engine import rung_choice, rung_map
from trainer.engine.rung_choice import AS_BEFORE, BY_FLAG
from trainer.model.calls import Call

OPS = ("layernorm.forward", "layernorm.backward", "gelu.forward")


class Pretended(Cpu):
    """A device that says of itself what a choice depends on."""

    def __init__(self, kind, arch):
        self.kind, self.arch = kind, arch
        self.is_gpu, self.runs_reference, self.runs_kernels = kind == "cuda", kind != "cuda", True
        if self.is_gpu:
            self.library_rungs = frozenset({"cublas-tf32", "cublaslt-tf32"})

    def target(self, real):
        return Target(self.arch, 32, 132, 232448, real)


EMULATED, GPU = Pretended("emulated", "emulated"), Pretended("cuda", "sm_90a")


def choose(device, before=None, /, **settings):
    given = {"rungs": "reference", "dtype": "fp32", "unconfined": True, **settings}
    wanted = resolved_kernels(device.kind, **given)
    calls = [Call(op, (), {"N": 4, "C": 8}, {}, "") for op in OPS]
    return rung_choice.choose(calls, wanted, device, before)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A kernel of the user's that is right; the check itself is tested with the ladder."""
    path = tmp_path / "mine.cu"
    path.write_text(find("layernorm.forward").rung(1).path.read_text())
    monkeypatch.setattr(rung_choice.sandbox, "require", lambda op, rung, device, _: None)
    return path


def lowest(op):
    return next((rung.id for rung in find(op).rungs if rung.path is not None), "0")


def test_naive_is_the_lowest_kernel_or_else_the_reference():
    choices = choose(EMULATED, rungs="naive")
    assert {op: choice.rung.id for op, choice in choices.items()} == {op: lowest(op) for op in OPS}


def test_one_rung_is_swapped_by_number_or_by_file(mine):
    by_number = choose(EMULATED, rung={"layernorm.forward": "2"})["layernorm.forward"]
    by_file = choose(EMULATED, rung={"layernorm.forward": str(mine)})["layernorm.forward"]
    assert (by_number.rung.id, by_number.reason) == ("2", BY_FLAG)
    assert by_file.rung.path == mine


def test_a_users_kernel_is_checked_first_and_refused_if_wrong(mine, monkeypatch):
    def require(op, rung, device, _):
        raise LadderError(f"{op}: {rung.name} is wrong on {device}")

    monkeypatch.setattr(rung_choice.sandbox, "require", require)
    with pytest.raises(LadderError, match=r"layernorm\.forward: mine\.cu is wrong on emulated"):
        choose(EMULATED, rung={"layernorm.forward": str(mine)})
    with pytest.raises(LadderError, match=r"wrong on cuda:1$"):
        choose(GPU, rung={"layernorm.forward": str(mine)}, device="cuda:1", rungs="naive")
    # The repository's own are checked by the tests.
    choose(EMULATED, rung={"layernorm.forward": "1"}, unconfined=False)


def test_a_users_kernel_runs_with_all_rights_on_the_emulator_only_if_the_user_says_so(mine):
    with pytest.raises(LadderError, match=r"/mine.cu .*--unconfined"):
        choose(EMULATED, rung={"layernorm.forward": str(mine)}, unconfined=False)


@pytest.mark.parametrize("allowed", [{}, {"deterministic": True}, {"tf32": True}], ids=str)
def test_best_asks_the_picker_for_the_shapes_of_the_run_and_for_what_it_allows(
    monkeypatch, allowed
):
    asked = []

    def pick(ladder, device, dtype, *shapes, **allowed):
        asked.append((ladder.op.name, dtype, shapes, allowed))
        return [Picked(ladder.op.name, "1", 1e-6, {})] * len(shapes)

    monkeypatch.setattr(rung_choice, "pick", pick)
    choices = choose(GPU, rungs="best", **allowed)
    assert ids(choices) == dict.fromkeys(OPS, "1")
    assert all(" 1.0 us" in choice.reason for choice in choices.values())
    passed = {"library": False, "deterministic": False, "tf32": False, **allowed}
    assert ("gelu.forward", "float32", ({"N": 4, "C": 8},), passed) in asked


def test_what_a_run_has_chosen_can_be_chosen_again(tmp_path, mine):
    chosen = choose(EMULATED, rung={"layernorm.forward": str(mine)})
    saved = tmp_path / "rungs.json"
    saved.write_text(json.dumps(rung_choice.as_json(chosen)))
    flag = re.escape(f"--rung layernorm.forward='{mine}'")
    with pytest.raises(LadderError, match=f"/rungs.json: .*{flag}"):
        choose(EMULATED, rungs=str(saved))
    again = choose(EMULATED, rungs=str(saved), rung={"layernorm.forward": str(mine)})
    assert rung_choice.as_json(again) == rung_choice.as_json(chosen)
    assert again["layernorm.forward"].rung.path == mine


@pytest.mark.parametrize(
    ("device", "settings", "names"),
    [
        (Cpu(), {"rung": {"gelu.foward": "1"}}, "'gelu.foward'; .*gelu.forward"),
        (Cpu(), {"rung": {"softmax.forward": "0"}}, "--rung softmax.forward=0: .* gelu.forward"),
        (Cpu(), {"rung": {"layernorm.forward": "1"}}, "rung 1 .*--device emulated"),
        (Cpu(), {"rung": {"layernorm.forward": "99"}}, "layernorm.forward .*'99'; .*0 to 11"),
        (Cpu(), {"rung": {"layernorm.forward": "fast"}}, "'fast'; .*python -m ladder list"),
        (EMULATED, {"rung": {"layernorm.forward": "no.cu"}}, "^no.cu: "),
        (Cpu(), {"rungs": "fastest"}, "--rungs fastest: .*reference, naive, best, library"),
        (EMULATED, {"rungs": "best"}, "--rungs best .*--rungs reference"),
        (GPU, {"rungs": "naive", "rung": {"gelu.forward": "0"}}, "rung 0 .*--device cuda"),
        (GPU, {"rungs": "reference"}, "--rungs reference .*--device cuda"),
    ],
)
def test_choices_that_cannot_run_are_refused(device, settings, names):
    with pytest.raises(LadderError, match=names):
        choose(device, **settings)


def test_the_ops_that_do_the_work_of_another_are_named():
    wanted = resolved_kernels("cpu", rung={"softmax.forward": "0"})
    ops = ("attention_dropout.forward", "crossentropy.fused", "gelu.forward")
    with pytest.raises(LadderError) as refused:
        rung_choice.choose([Call(op, (), {"N": 4}, {}, "") for op in ops], wanted, Cpu())
    assert [str(refused.value).count(op) for op in ops] == [2, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"gelu.forward": [1]}',
        "{",
        '{"gelu.foward": 1}',
        '{"gelu.forward": 99}',
        '{"gelu.forward": "no.cu"}',
        '{"gelu.forward@N": 1}',
        '{"gelu.forward@N:4:5": 1}',
        '{"gelu.foward@N:4": 1}',
        '{"gelu.forward": {"N:4": 1}}',
    ],
)
def test_a_file_of_rungs_must_make_sense(tmp_path, text):
    path = tmp_path / "rungs.json"
    path.write_text(text)
    with pytest.raises(LadderError) as refused:
        choose(Cpu(), rungs=str(path))
    assert str(refused.value).startswith(f"--rungs {path}: ") and "\n" not in str(refused.value)


def test_deterministic_takes_the_lowest_rung_that_is():
    free = choose(EMULATED, rungs="naive")["layernorm.backward"]
    same = choose(EMULATED, rungs="naive", deterministic=True)["layernorm.backward"]
    assert not free.rung.deterministic and same.rung.deterministic
    assert "deterministic" in same.reason
    rungs_below = find("layernorm.backward").rungs[1 : int(same.rung.id)]
    assert not any(rung.deterministic for rung in rungs_below)


def test_deterministic_refuses_a_named_rung_that_is_not():
    with pytest.raises(LadderError, match=r"^--deterministic: layernorm.backward rung 1 "):
        choose(EMULATED, deterministic=True, rung={"layernorm.backward": "1"})


# ---- a rung for some shapes ----

SHAPES = (
    {"N": 64, "C": 768, "OC": 2304},
    {"N": 64, "C": 768, "OC": 768},
    {"N": 8, "C": 384, "OC": 96},
)
LINEAR = [Call("matmul.forward", (), dims, {}, "") for dims in (*SHAPES, SHAPES[0])]
QKV = "matmul.forward@C:768,OC:2304"


def choose_linear(device=EMULATED, before=None, **settings):
    """By key, the ids for linear layers of three shapes, the first of them called twice."""
    wanted = resolved_kernels(device.kind, **{"rungs": "naive", "dtype": "bf16", **settings})
    return rung_choice.choose(LINEAR, wanted, device, before)


def ids(choices):
    return rung_choice.as_json(choices)


def test_a_rung_is_named_for_some_shapes():
    named = {QKV: "2", "matmul.forward@C:768": "3"}
    choices = choose_linear(rung=named)
    assert [rung_map.rung_of(choices, call).rung.id for call in LINEAR] == ["2", "3", "1", "2"]
    assert choices["matmul.forward"].reason == BY_FLAG
    named["matmul.forward"] = "4"
    choices = choose_linear(rung=named)
    assert [rung_map.rung_of(choices, call).rung.id for call in LINEAR] == ["2", "3", "4", "2"]


def test_a_shape_that_no_call_has_is_refused_with_those_there_are():
    names = "--rung matmul.forward@C:5=2: .* matmul.forward@N:64,C:768,OC:2304"
    with pytest.raises(LadderError, match=names):
        choose_linear(rung={"matmul.forward@C:5": "2"})


def test_the_picker_chooses_for_each_shape(monkeypatch):
    def pick(ladder, device, dtype, *shapes, **allowed):
        assert [*shapes] == [*SHAPES], "each once"
        return [Picked("", "3" if d["OC"] == 768 else "4", 2e-6, {}, kept=True) for d in shapes]

    monkeypatch.setattr(rung_choice, "pick", pick)
    choices = choose_linear(GPU, rungs="best")
    one, rest = "matmul.forward@N:64,C:768,OC:768", "matmul.forward"
    assert ids(choices) == {rest: "4", one: "3"}
    assert re.search(r" 6.0 us .* 3 .*\(doc/results/picks\)", choices[rest].reason)
    assert re.search(r" 2.0 us \(doc/results/picks\)", choices[one].reason)


def test_rungs_for_some_shapes_are_chosen_again_from_a_file_and_from_a_checkpoint(tmp_path):
    chosen = choose_linear(rung={QKV: "2"})
    assert len(chosen) == 2
    saved = tmp_path / "rungs.json"
    saved.write_text(json.dumps(ids(chosen)))
    assert ids(choose_linear(rungs=str(saved))) == ids(chosen)
    again = choose_linear(before=as_saved(chosen))
    assert ids(again) == ids(chosen) and again["matmul.forward"].reason == AS_BEFORE
    assert ids(choose_linear(rungs=str(saved), rung={"matmul.forward": "3"})) == {
        "matmul.forward": "3"
    }


@pytest.mark.parametrize(
    ("op", "both", "other", "few"),
    [
        ("matmul.forward", "16bit-17", "16bit-16", "C"),
        ("matmul.backward_input", "16bit-15", "16bit-14", "OC"),
    ],
)
def test_what_held_two_kernels_is_read_as_the_one_that_fits(tmp_path, op, both, other, few):
    """In files and flags of a time when one rung had both; a shape that is named is refused."""
    short, long = ({"N": 64, "C": 512, "OC": 512} | {few: size} for size in (384, 392))
    calls = [Call(op, (), dims, {}, "") for dims in (short, long)]
    saved = tmp_path / "rungs.json"
    saved.write_text(json.dumps({op: both}))
    _, identity = rung_choice.FORMERLY_BOTH[op, both]
    for before, settings in (
        (None, {"rungs": str(saved)}),
        (None, {"rung": {op: both}}),
        ({"rungs": {op: both}, "digests": {op: identity}}, {}),
    ):
        wanted = resolved_kernels("cuda", dtype="bf16", **{"rungs": "naive", **settings})
        choices = rung_choice.choose(calls, wanted, GPU, before)
        assert [rung_map.rung_of(choices, call).rung.id for call in calls] == [both, other]
        again = rung_choice.choose(calls, wanted, GPU, as_saved(choices))
        assert ids(again) == ids(choices)
    target = GPU.target(DTYPES["bfloat16"])
    assert f"{few} <= 384" in find(op).rung(both).plan(long, target).refusal
    named = resolved_kernels("cuda", rungs="naive", dtype="bf16", rung={f"{op}@{few}:392": both})
    assert {choice.rung.id for choice in rung_choice.choose(calls, named, GPU).values()} >= {both}


# ---- TF32 ----


def choose_product(device, **settings):
    """The choice for a linear layer, in fp32."""
    wanted = resolved_kernels(device.kind, **{"dtype": "fp32", **settings})
    dims = {"N": 64, "C": 64, "OC": 64}
    return rung_choice.choose([Call("matmul.forward", (), dims, {}, "")], wanted, device)


@pytest.mark.parametrize("rung", [rung.id for rung in find("matmul.forward").rungs if rung.tf32])
def test_a_tf32_rung_can_be_named_only_where_the_run_allows_tf32(rung):
    named = {"rung": {"matmul.forward": rung}, "rungs": "naive"}
    with pytest.raises(LadderError, match=r"^matmul.forward .* TF32, .* -f 1"):
        choose_product(GPU, **named)
    assert choose_product(GPU, **named, tf32=True)["matmul.forward"].rung.tf32


def test_a_file_of_rungs_cannot_bring_tf32_into_a_run(tmp_path):
    path = tmp_path / "rungs.json"
    path.write_text('{"matmul.forward": "float32-8"}')
    with pytest.raises(LadderError, match=r"/rungs.json: .*float32 rung 8 .* -f 1"):
        choose_product(GPU, rungs=str(path))


def test_naive_takes_no_tf32_rung_where_tf32_is_not_allowed(monkeypatch):
    ladder = find("matmul.forward")
    only = replace(ladder)
    only.__dict__["rungs"] = tuple(rung for rung in ladder.rungs if rung.tf32)
    monkeypatch.setattr(rung_choice, "find", lambda op: only)
    with pytest.raises(LadderError, match=r"^matmul.forward .* float32 on cpu$"):
        choose_product(GPU, rungs="naive")
    assert choose_product(GPU, rungs="naive", tf32=True)["matmul.forward"].rung.id == "float32-8"


# ---- going on from a checkpoint ----


def as_saved(choices):
    return json.loads(json.dumps(rung_choice.record(choices)))


def test_a_checkpoint_runs_no_code_that_the_user_does_not_name(mine, monkeypatch):
    before = as_saved(choose(EMULATED, rungs="naive", rung={"layernorm.forward": str(mine)}))
    monkeypatch.setattr(rung_choice, "find_rung", lambda op, which: pytest.fail("it was read"))
    flag = re.escape(f"--rung layernorm.forward='{mine}'")
    with pytest.raises(LadderError, match=f"the checkpoint .*{flag}"):
        choose(EMULATED, before)
    monkeypatch.undo()
    monkeypatch.setattr(rung_choice.sandbox, "require", lambda op, rung, device, _: None)
    again = choose(EMULATED, before, rung={"layernorm.forward": str(mine)})
    assert again["layernorm.forward"].rung.path == mine
    assert again["gelu.forward"].reason == AS_BEFORE


def test_a_rung_edited_since_the_checkpoint_is_refused_unless_chosen_again(mine, monkeypatch):
    before = as_saved(choose(EMULATED, rungs="naive"))
    edited = replace(find("layernorm.forward").rung("1"), path=mine, source=mine.read_text())
    layernorm = {"1": edited, str(mine): edited}

    def find_rung(op, which):
        return layernorm[which] if op == "layernorm.forward" else find(op).rung(which)

    monkeypatch.setattr(rung_choice, "find_rung", find_rung)
    layernorm["1"] = replace(edited, source=edited.source + "// a remark changes nothing\n")
    choose(EMULATED, before)
    with pytest.raises(LadderError, match=r"gelu.forward rung 1 .*layernorm.f.* --rungs"):
        choose(EMULATED, {**before, "digests": {}})
    layernorm["1"] = replace(edited, source=edited.source + "int changed;\n")
    with pytest.raises(LadderError, match=r"^(?!.*gelu).*layernorm.forward rung 1 .*--rungs"):
        choose(EMULATED, before)
    again = choose(EMULATED, before, rung={"layernorm.forward": str(mine)})
    assert again["layernorm.forward"].reason == BY_FLAG
    assert again["gelu.forward"].reason == AS_BEFORE


def test_a_rung_that_is_gone_is_refused_unless_another_is_chosen():
    before = as_saved(choose(EMULATED, rungs="naive"))
    before["rungs"]["layernorm.forward"] = "99"
    with pytest.raises(
        LadderError, match=r"layernorm.forward .*'99'; .*--rung layernorm.forward=N"
    ):
        choose(EMULATED, before)
    choose(EMULATED, before, rung={"layernorm.forward": "1"})


@pytest.mark.parametrize("key", ["layernorm.forward@", "layernorm.forward@C:x", "no.such@C:8"])
def test_a_checkpoint_that_names_nonsense_is_refused(key):
    before = as_saved(choose(EMULATED, rungs="naive"))
    before["rungs"][key] = "1"
    with pytest.raises(LadderError, match=key):
        choose(EMULATED, before)
