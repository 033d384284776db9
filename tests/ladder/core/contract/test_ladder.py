"""How a rung is named: by its id, by a number that only one rung has, or by a file."""

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import PACKAGE, find, find_rung, ladders
from ladder.core.contract.rung_file import TRACKS, Rung, id_of
from ladder.core.contract.target import Target

MATMUL = find("matmul.forward")


def test_climbing_order_is_reference_trunk_tracks_libraries():
    ids = [rung.id for rung in MATMUL.rungs]
    assert ids[:5] == ["0", "1", "2", "3", "4"]
    tracks = [rung.track for rung in MATMUL.rungs if rung.track]
    assert tracks == sorted(tracks, key=TRACKS.index)
    assert ids[-4:] == ["cublas", "cublas-tf32", "cublaslt", "cublaslt-tf32"]


def test_ids_are_unique_and_lead_back_to_their_rungs():
    for ladder in ladders().values():
        assert len({rung.id for rung in ladder.rungs}) == len(ladder.rungs)
        assert all(ladder.rung(rung.id) is rung for rung in ladder.rungs)


def test_every_kernel_file_of_a_layer_is_a_rung():
    known = {rung.path for ladder in ladders().values() for rung in ladder.rungs}
    files = {*PACKAGE.glob("*/*/**/*.cu")} - {*PACKAGE.glob("core/**/*.cu")}
    assert files == known - {None}


@pytest.mark.parametrize("op", ladders())
def test_every_rung_can_be_launched_at_a_measured_shape(op):
    ladder = find(op)
    for rung in ladder.rungs:
        amd = ("gfx942", 64, 304, 64 << 10)
        place = amd if rung.track == "amd" else ("sm_90a", 32, 132, 227 << 10)
        plans = [
            rung.plan(dims, Target(*place, DTYPES[real]))
            for real in ladder.op.reals
            for dims in ladder.op.bench.values()
        ]
        if rung.path is not None:
            assert any(plan.launches for plan in plans if plan.refusal is None), rung.id


def test_a_number_is_enough_where_only_one_rung_has_it():
    assert MATMUL.rung("16").id == MATMUL.rung(16).id == "16bit-16"
    assert MATMUL.rung(4).id == "4"


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("5", "several rungs 5, 16bit-5, float32-5 and amd-5: choose one of them"),
        ("99", "no rung '99'; it has 0 to 4, 16bit-5 to 16bit-17, float32-5 to "),
        ("float32-99", "no rung 'float32-99'; did you mean float32-"),
        ("fp32-5", "did you mean float32-5"),
        ("cubls", "did you mean cublas"),
        ("x", "no rung 'x'; 'python -m ladder list matmul.forward' names all"),
        ("9" * 5000, "no rung '999"),
        ("", "no rung ''"),
    ],
)
def test_what_names_no_rung_is_refused_with_what_is_near(which, says):
    with pytest.raises(LadderError) as refused:
        MATMUL.rung(which)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("rung", "name", "track", "number"),
    [
        (Rung("3", "an idea"), "rung 3", "", 3),
        (Rung("float32-5", "an idea"), "float32 rung 5", "float32", 5),
        (Rung("amd-5", "an idea"), "amd rung 5", "amd", 5),
        (Rung("cublas", "cuBLAS"), "cublas", "", None),
    ],
)
def test_what_a_rung_is_called_follows_from_its_id(rung, name, track, number):
    assert (rung.name, rung.track, rung.number) == (name, track, number)
    assert rung.label == f"{name} ({rung.idea})"


def test_a_file_outside_a_ladder_has_its_path_as_its_id(tmp_path):
    original = find("layernorm.forward").rung(3)
    copy = tmp_path / original.path.name
    copy.write_text(original.source)
    mine = find_rung("layernorm.forward", copy)
    assert mine.id == str(copy.resolve()) and mine.is_own_file and mine.number is None
    assert mine.name == original.path.name
    assert find_rung("layernorm.forward", original.path) is original


def test_a_file_in_a_ladder_without_a_number_is_refused(tmp_path):
    with pytest.raises(LadderError, match="named by number and idea"):
        id_of(tmp_path / "idea.cu")
    assert id_of(tmp_path / "float32" / "12_idea.cu") == "float32-12"
    assert id_of(tmp_path / "forward" / "12_idea.cu") == "12"


def test_a_parent_is_named_by_the_header():
    layernorm = find("layernorm.forward")
    assert layernorm.parent(layernorm.rung(11)) is layernorm.rung(8)
    assert layernorm.parent(layernorm.rung(1)) is None
    assert MATMUL.parent(MATMUL.rung("float32-5")) is MATMUL.rung(4)
