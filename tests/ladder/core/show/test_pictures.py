"""What the pictures draw, as data: who writes what, who reads which bank. No pixels."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES
from ladder.core.emulator.emulated import Emulated
from ladder.core.show import pages, pictures, trace
from ladder.core.show.pictures import (
    banks,
    charts,
    drawing,
    fragments,
    links,
    recording,
    ring,
    timeline,
)
from ladder.core.show.pictures.drawing import Drawing
from tests.ladder.emulation import array, run, zeros


def contrast(one, other):
    """Contrast ratio of two colours, 1 to 21; 4.5 is enough for text. Source: WCAG 2.2."""
    darker, lighter = sorted((drawing.luminance(one), drawing.luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_text_can_be_read_on_every_fill_on_light_and_dark_pages():
    pale = [name for name in drawing.COLOURS if name.startswith("pale ")]
    for page in (0, 1):
        for fill in ("paper", "panel", *pale):
            for text in ("ink", "muted") if fill in ("paper", "panel") else ("ink",):
                pair = drawing.COLOURS[text][page], drawing.COLOURS[fill][page]
                assert contrast(*pair) >= 4.5, (text, fill, page)
    for colour in (drawing.distinct(i, 32) for i in range(32)):
        assert contrast(drawing.text_on(colour), colour) >= 4.5


def test_a_chart_can_be_read_on_dark_pages():
    figure = Figure()
    axes = figure.subplots()
    axes.set_title("sums & <products>")
    axes.bar([0], [1], color=drawing.COLOURS["blue"][0])
    axes.set_yscale("log")  # its ticks are formulas
    chart = charts.svg(figure)
    assert chart == charts.svg(figure)
    root = ET.fromstring(chart)
    assert root.attrib["aria-label"] == "sums & <products>"
    rules = dict(re.findall(r'\[style\*="(\w+: #\w+)"\]\{\w+:(#\w+)!important\}', chart))
    assert rules["fill: #ffffff"] == drawing.COLOURS["paper"][1]
    assert rules["fill: #1f6fb4"] == drawing.COLOURS["blue"][1]
    assert rules.keys() == set(re.findall(r"\b((?:fill|stroke): #[0-9a-f]{6})", chart))
    styles = [part.attrib["style"] for part in root.iter() if "font" in part.get("style", "")]
    assert len(styles) > 10 and all("fill: #" in style for style in styles)


def test_a_drawing_has_a_name_and_a_description_for_screen_readers():
    drawing = Drawing("a < b", "who & what")
    drawing.box(0, 100, 10, 20)
    root = ET.fromstring(drawing.svg("0123456789ab"))
    texts = {child.tag.partition("}")[2]: child.text for child in root}
    assert root.attrib["role"] == "img" and list(texts)[:2] == ["title", "desc"]
    assert texts["title"] == "a < b" and texts["desc"] == "who & what"
    assert float(root.attrib["height"]) == 132  # as high as what is drawn, and a margin
    assert "prefers-color-scheme:dark" in texts["style"]


RING = ("matmul.forward", "16bit-8", "bfloat16", {"N": 32, "C": 192, "OC": 32})


def record(source_changes=()):
    op, rung, dtype, dims = RING
    chosen = find(op).rung(rung)
    source = chosen.source
    for was, becomes in source_changes:
        assert source.count(was) == 1
        source = source.replace(was, becomes)
    return ring.record(find(op), dataclasses.replace(chosen, source=source), dtype, dims)


@pytest.mark.emulator
def test_a_ring_of_four_stages_copies_three_tiles_ahead_and_waits_for_each_tile_that_it_reads():
    seen = record()
    assert seen.stage == (0, 1, 2, 3, 0, 1)
    assert [step.read for step in seen.steps] == [[], [0], [1], [2], [3], [4], [5]]
    assert [step.copied for step in seen.steps] == [[0, 1, 2], [3], [4], [5], [], [], []]
    assert [step.arrived for step in seen.steps] == [-1, 0, 1, 2, 3, 4, 5]
    assert [step.flight for step in seen.steps] == [None, 3, 3, 3, 2, 1, 0]
    assert seen.early() == []
    names = [[state for state, _ in states] for states in ring.states_of(seen, 1)]
    expected = ["copy", "flight", "read", "copy", "flight", "flight", "read"]
    assert names == [[name] for name in expected]


@pytest.mark.emulator
def test_a_wait_that_allows_one_group_too_many_reads_tiles_that_have_not_arrived():
    seen = record([("cp_async_wait<STAGES - 2>", "cp_async_wait<STAGES - 1>")])
    assert seen.early() == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    drawing = ring.of_ring("wrong", seen)
    assert "In step 0 it reads tile 0, " in drawing.description


@pytest.mark.emulator
def test_banks_agree_with_what_the_emulator_counts():
    """Rung 2 pads its tiles: a column of the tile is read in one wavefront."""
    ladder, dims = find("matmul.forward"), {"N": 32, "C": 32, "OC": 32}
    report = trace.trace(ladder, ladder.rung("2"), "float32", dims)
    column, *_ = banks.requests(report, ladder.rung("2"), "b[x][k]", "b")
    served = banks.wavefronts(column)
    assert len(served.passes) == served.ideal == 1
    assert sorted(lane for (lane,) in served.passes[0]) == list(range(32))


@pytest.mark.emulator
def test_lanes_that_read_16_bytes_in_pairs_take_half_the_wavefronts(tmp_path):
    """By the rule that others measured; the emulator and the picture count alike."""
    patterns = (
        "lane",
        "lane / 2",
        "lane & 1 | lane / 4 * 2",
        "0",
        "lane ^ lane / 4",
        "lane / 4 * 8",
    )
    takes = [4, 2, 2, 2, 4, 8]
    cases = "".join(
        f"*(float4*)(out + 128 * {i} + 4 * lane) = a[{pattern}];\n"
        for i, pattern in enumerate(patterns)
    )
    source = f"""
extern "C" __global__ void k(float* out) {{
    __shared__ float4 a[64];
    int lane = threadIdx.x;
    for (int i = lane; i < 64; i += 32) a[i] = float4{{1, 2, 3, 4}};
    __syncthreads();
    {cases}}}
"""
    device = Emulated(counting=True, trace=1)
    run(device, tmp_path, source, 1, 32, zeros(128 * len(patterns)))
    report = device.report()
    assert report.problems == []
    reads = [x for x in report.lines if x.space == "shared" and x.kind == "read"]
    assert [x.wavefronts for x in sorted(reads, key=lambda x: x.line)] == takes
    requests = [x for x in report.accesses if x.space == "shared" and x.kind == "read"]
    shown = [len(banks.wavefronts(x).passes) for x in sorted(requests, key=lambda x: x.line)]
    assert shown == takes


def test_a_pictures_words_are_no_markup_of_its_page(tmp_path, monkeypatch):
    monkeypatch.setitem(pictures.KINDS, "mma", lambda op, rung: Drawing("a [b]", "3 * 5"))
    request = "<!-- ladder:begin picture mma matmul.forward 3 -->\n<!-- ladder:end -->\n"
    text = pages.render(request, tmp_path / "matmul.md", draw=True)
    assert r"![a \[b\]. 3 \* 5](" in text


def test_a_roofline_says_that_a_link_is_the_limit_and_refuses_an_op_without_flops():
    drawing = pictures.make("roofline", "all_reduce.sum")
    assert re.search(r"\blink\b", drawing.description)
    with pytest.raises(LadderError, match=r"decode\.append .* FLOPs"):
        pictures.make("roofline", "decode.append")


FRAGMENTS = """
#include "mma.cuh"
extern "C" __global__ void k(
    ushort2* a_out, ushort2* b_out, float* d_out,  // (32, 4), (32, 2), (32, 4) of each lane
    const unsigned short* a_in, const unsigned short* b_in) {  // (16, 16), (8, 16)
    __shared__ __align__(16) unsigned short tile_a[256], tile_b[128];
    int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) tile_a[i] = a_in[i];
    for (int i = lane; i < 128; i += 32) tile_b[i] = b_in[i];
    __syncthreads();
    unsigned a[4], b[2];
    float d[4] = {};
    ldmatrix_x4(a, tile_a + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x2(b, tile_b + lane % 8 * 16 + lane / 8 % 2 * 8);
    mma_m16n8k16_bf16(d, a, b);
    for (int i = 0; i < 4; i++) ((unsigned*)a_out)[lane * 4 + i] = a[i];
    for (int i = 0; i < 2; i++) ((unsigned*)b_out)[lane * 2 + i] = b[i];
    for (int i = 0; i < 4; i++) d_out[lane * 4 + i] = d[i];
}
"""


@pytest.mark.emulator
def test_fragments_are_those_of_ldmatrix_and_mma_sync(tmp_path):
    expected = fragments.mma_fragments()
    lanes, registers = fragments.owners(expected.a, (16, 16), 2)
    assert (np.bincount(lanes.ravel()) == 8).all() and set(registers.ravel()) == {0, 1, 2, 3}

    a, b, d = zeros(32, 8, dtype=np.uint16), zeros(32, 4, dtype=np.uint16), zeros(32, 4)
    numbers = (array(np.arange(size), np.uint16) for size in (256, 128))
    run(Emulated(), tmp_path, FRAGMENTS, 1, 32, a, b, d, *numbers)
    assert (a == expected.a).all() and (b == expected.b).all()
    left, right = np.zeros((16, 16)), np.zeros((8, 16))
    left[:, 0], right[:, 0] = 8 * np.arange(16), 1  # D = 8 * row + column
    left[:, 1], right[:, 1] = 1, np.arange(8)
    factors = (array(one, DTYPES["bfloat16"]) for one in (left, right))
    run(Emulated(), tmp_path, FRAGMENTS, 1, 32, a, b, d, *factors)
    assert (d == expected.d).all()


@pytest.mark.emulator
def test_ping_pong_multiplies_for_one_tile_while_it_stores_another():
    rung, dims = find("matmul.forward").rung("16bit-16"), {"N": 256, "C": 256, "OC": 768}
    events = recording.record("matmul.forward", rung, "bfloat16", dims)
    spans = timeline.Replay(events, 2, timeline.Durations(copy=5, product=2, store=2)).spans

    def of(kind, row):
        return [span for span in spans if (span.kind, span.row) == (kind, row)]

    first, second = (of("product", ("consumer", group)) for group in (0, 1))
    both = sorted((span.start, span.end) for span in first + second)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(both))
    stores = of("store", ("consumer", 0))
    assert stores[0].start < second[-1].end and second[0].start < stores[-1].end
    for stage in range(2):  # a stage is copied, used, and only then copied again
        copies, uses = of("copy", ("stage", stage)), of("held", ("stage", stage))
        for copy, use, again in zip(copies, uses, copies[1:], strict=False):
            assert copy.end == use.start and use.end <= again.start


def test_a_replay_starts_a_copy_only_when_its_stage_is_empty():
    """One stage, a producer (lane 0 of warp 4) and a consumer warp, two rounds."""
    E = recording.Event
    events = [E(0, 0, "init", "full", "f", 1), E(0, 0, "init", "empty", "e", 1)]
    for turn in (0, 1):
        events += [E(0, 128, "wait", "", "e", 1 - turn), E(0, 128, "expect", "", "f", 8)]
        events += [E(0, 128, "load", "", "f", 0), E(0, 0, "wait", "", "f", turn)]
        events += [E(0, 0, "product"), E(0, 0, "product-wait"), E(0, 0, "arrive", "", "e", -1)]
    spans = timeline.Replay(events, 1, timeline.Durations(copy=5, product=2, store=1)).spans
    shown = [(span.kind, span.start, span.end) for span in spans if span.row == ("stage", 0)]
    assert shown == [("copy", 0, 5), ("held", 5, 7), ("copy", 7, 12), ("held", 12, 14)]
    drawing = timeline.of_events("a kernel", events, timeline.Durations(5, 2, 1))
    numbers = " 1 stage .* 1 consumer .* 14 .* 4 .* 5, .* 14, .* 44%"
    assert re.search(numbers, drawing.description)
    svg = drawing.svg()
    assert svg.count(">tensor cores</text>") == 1 and "idle, or empty" in svg
    assert svg.count("product: 5 to 7") == 2  # in the consumer's row, and the tensor cores'
    asks = [span.start for span in spans if span.kind == "ask"]
    assert asks == [0, 7] and all(f"copy: starts at {time}<" in svg for time in (0, 7))


def test_products_that_are_issued_wait_for_the_tensor_cores():
    """Two warpgroups start products at the same time: the second one's wait for the first one's."""
    E = recording.Event
    events = [E(0, 0, "init", "full", "f", 1), E(0, 256, "arrive", "", "f", -1)]
    for first in (0, 128):
        events += [E(0, first, "wait", "", "f", 0), E(0, first, "product")]
        events += [E(0, first, "product-wait")]
    spans = timeline.Replay(events, 1, timeline.Durations(copy=5, product=2, store=1)).spans
    shown = [(span.row, span.kind, span.start, span.end) for span in spans if span.end > 0]
    second = ("consumer", 1)
    assert (second, "queue", 0, 2) in shown and (second, "product", 2, 4) in shown
    assert not [kind for row, kind, *_ in shown if row == ("consumer", 0) and kind == "queue"]


def test_a_replay_that_cannot_go_on_says_so():
    """The consumer waits for a phase that nobody ends."""
    E = recording.Event
    events = [E(0, 0, "init", "full", "f", 1), E(0, 0, "wait", "", "f", 0), E(0, 0, "product")]
    with pytest.raises(LadderError, match="barriers"):
        timeline.Replay(events, 1, timeline.Durations(copy=5, product=2, store=1))


@pytest.mark.emulator
def test_in_a_cluster_each_row_is_asked_for_once_and_reaches_all_who_need_it():
    rung, dims = find("matmul.forward").rung("16bit-16"), {"N": 256, "C": 256, "OC": 768}
    events = recording.record("matmul.forward", rung, "bfloat16", dims)
    seen = recording.copies(events, rung, "bfloat16", dims)
    first = [copy for copy in seen if copy.asks < 2 and copy.step == 0]
    for name, needed in (
        ("inp", ([*range(128)], [*range(128, 256)])),
        ("weight", ([*range(128)],) * 2),
    ):
        parts = [copy for copy in first if copy.array == name]
        rows = [row for copy in parts for row in range(copy.row, copy.row + copy.rows)]
        assert len(rows) == len(set(rows))
        for block in (0, 1):
            got = [range(c.row, c.row + c.rows) for c in parts if block in c.receives]
            assert sorted(row for part in got for row in part) == needed[block]
    asked = {block: sum(copy.bytes for copy in first if copy.asks == block) for block in (0, 1)}
    assert asked == {0: 24 << 10, 1: 24 << 10}


@pytest.mark.emulator
def test_links_carry_what_the_rungs_of_an_all_reduce_promise():
    """In vectors; 3 ranks: the floor is 4/3."""
    ladder, dims, vector = find("all_reduce.sum"), {"R": 3, "N": 3072}, 3072 * 4

    def carried(which):
        given = ladder, ladder.rung(which), "float32", dims
        vectors = links.crossed(trace.trace(*given, keep=trace.ALL), *given) / vector
        assert vectors.sum(axis=0) == pytest.approx(vectors.sum(axis=1))  # what goes in comes out
        return vectors

    one_shot, ring, two_shot = carried("2"), carried("3"), carried("4")
    apart = 1 - np.eye(3)
    assert one_shot == pytest.approx(apart, abs=0.01)
    assert ring == pytest.approx(np.roll(np.eye(3), 1, axis=1) * 4 / 3, abs=0.01)
    assert two_shot == pytest.approx(apart * 2 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("picture", "shape", "names"),
    [
        ("tiles matmul.forward 3", None, "tiles; .* access, banks"),
        ("banks matmul.forward 3", None, "banks .* op rung line"),
        ("ring matmul.forward 3", "N=1 C=1 OC=1", r"matmul\.forward rung 3 .* async\.cuh"),
        ("timeline matmul.forward 3", "N=64 C=64 OC=64", r"matmul\.forward, rung 3 .* mbarrier"),
        ("links residual.forward 1", "N=8", r"residual\.forward .* ranks"),
    ],
)
def test_what_has_no_such_picture_is_refused(picture, shape, names):
    with pytest.raises(LadderError, match=names):
        pictures.make(*picture.split(), **({"shape": shape} if shape else {}))
