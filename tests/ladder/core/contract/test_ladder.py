"""How a rung is named: by its id, by a number that only one rung has, or by a file."""

import pytest

from ladder.core.common.errors import LadderError
from ladder.core.contract import ladder as ladder_module
from ladder.core.contract.ladder import PACKAGE, Ladder, find, find_rung, ladders
from ladder.core.contract.op import DTYPES
from ladder.core.contract.rung_file import TRACKS, id_of
from ladder.core.contract.target import Target

MATMUL = find("matmul.forward")


def test_climbing_order_is_reference_trunk_tracks_libraries():
    ids = [rung.id for rung in MATMUL.rungs]
    assert ids[:6] == ["0", "1", "1b", "2", "3", "4"]
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
    ("which", "names"),
    [
        ("5", " 5, 16bit-5, float32-5 and amd-5:"),
        ("99", "'99'.* 0 to 4, 16bit-5 to 16bit-18, float32-5 to "),
        ("float32-99", r"'float32-99'.* float32-\d"),
        ("fp32-5", "'fp32-5'.* float32-5"),
        ("cubls", "'cubls'.* cublas"),
        ("16bit/ping_pog", "'16bit/ping_pog'.* 16bit/ping_pong"),
        ("double_buffering", " double_buffering, 16bit-6, float32-5 and amd-6:"),
        ("x", "'x'.*'python -m ladder list matmul.forward'"),
        ("9" * 5000, "'999"),
        ("", "''"),
    ],
)
def test_what_names_no_rung_is_refused_with_what_is_near(which, names):
    with pytest.raises(LadderError, match=names):
        MATMUL.rung(which)


def test_a_name_stands_for_the_number():
    layernorm = find("layernorm.forward")
    assert layernorm.rung("warp_per_row") is layernorm.rung(3)
    assert MATMUL.rung("ping_pong").id == MATMUL.rung("16bit/ping_pong").id == "16bit-16"
    assert find_rung("matmul.forward", "float32/double_buffering").id == "float32-5"
    for ladder in ladders().values():
        for rung in ladder.rungs:
            if rung.track:
                assert ladder.rung(f"{rung.track}/{rung.slug}") is rung


@pytest.fixture
def ladder_of(tmp_path, monkeypatch):
    """Makes a ladder of files, each with lines for its header."""

    def made(**files):
        op = find("start.add").op
        for name, lines in files.items():
            path = tmp_path / "start" / "add" / f"{name.replace('__', '/').removeprefix('n')}.cu"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"// start add: an idea\n// Launch: {op.kernel}<<<1, 1>>>\n{lines}")
        monkeypatch.setattr(ladder_module, "PACKAGE", tmp_path)
        return Ladder(op)

    return made


def test_a_rung_between_two_has_a_letter_and_stands_behind_the_first(ladder_of):
    ladder = ladder_of(n10_d="", n2_c="// After:  1b\n", n1b_b="// After:  1\n", n1_a="")
    assert [rung.id for rung in ladder.rungs] == ["0", "1", "1b", "2", "10"]
    assert ladder.parent(ladder.rung(2)) is ladder.rung("1b") is ladder.rung("b")
    assert ladder.spans() == ["0 to 2", "10"]


def test_a_rung_that_is_gone_names_its_successor(ladder_of):
    gone = "// Replaces: 16bit-6 tile_shape; 16bit-7 wgmma\n"
    ladder = ladder_of(n1_a="", **{"16bit__5_b": "", "16bit__8_c": gone, "float32__6_d": ""})
    for which in ("16bit-6", "16bit/tile_shape", "tile_shape"):
        with pytest.raises(LadderError, match=r"start\.add 16bit-6 \(tile shape\) .* 16bit-8\b"):
            ladder.rung(which)
    with pytest.raises(LadderError, match=r" 16bit-7 \(wgmma\) .* 16bit-8\b"):
        ladder.rung(7)
    with pytest.raises(LadderError, match=" 6, 16bit-6 and float32-6:"):  # as when there were two
        ladder.rung(6)
    assert ladder.spans() == ["0", "1", "16bit-5", "16bit-8", "float32-6"]


@pytest.mark.parametrize(
    ("name", "taken"), [("1_b", "1"), ("1b_a", "a"), ("2_gone", "gone"), ("3_other", "3")]
)
def test_no_number_and_no_name_is_given_twice(ladder_of, name, taken):
    ladder = ladder_of(n1_a="// Replaces: 3 gone\n", **{f"n{name}": ""})
    with pytest.raises(LadderError, match=rf"\.cu: {taken} .*\.cu$"):
        _ = ladder.rungs


def test_a_file_outside_a_ladder_has_its_path_as_its_id(tmp_path):
    original = find("layernorm.forward").rung(3)
    copy = tmp_path / original.path.name
    copy.write_text(original.source)
    mine = find_rung("layernorm.forward", copy)
    assert mine.id == str(copy.resolve()) and mine.is_own_file and not mine.number
    assert mine.name == original.path.name
    assert find_rung("layernorm.forward", original.path) is original


def test_a_file_in_a_ladder_without_a_number_is_refused(tmp_path):
    with pytest.raises(LadderError, match=r"\bidea\.cu: .*\b3_warp_per_row\.cu"):
        id_of(tmp_path / "idea.cu")
    assert id_of(tmp_path / "float32" / "12_idea.cu") == "float32-12"
    assert id_of(tmp_path / "forward" / "12_idea.cu") == "12"
    assert id_of(tmp_path / "16bit" / "5b_idea.cu") == "16bit-5b"


def test_a_parent_is_named_by_the_header():
    layernorm = find("layernorm.forward")
    assert layernorm.parent(layernorm.rung(11)) is layernorm.rung(8)
    assert layernorm.parent(layernorm.rung(1)) is None
    assert MATMUL.parent(MATMUL.rung("float32-5")) is MATMUL.rung(4)
    fused = find("matmul.backward_weight_bias")
    assert fused.parent(fused.rung(2)) is find("matmul.backward_weight").rung(2)


def test_times_are_compared_within_a_ladder():
    fused = find("matmul.backward_weight_bias")
    assert fused.predecessor(fused.rung("float32-4")) is fused.rung("float32-3")
    assert fused.predecessor(fused.rung("float32-3")) is fused.rung(2)
    assert MATMUL.predecessor(MATMUL.rung("float32-9")).id == "16bit-14"  # its parent
