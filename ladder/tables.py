"""What pages show of the ladder is written into them from the files, never typed.

Between two comments of a Markdown file stands what the first one asks for:

    <!-- ladder:begin table layernorm.forward -->
    ...
    <!-- ladder:end -->

`python -m ladder docs` writes it anew, and `docs --check` says where a page has drifted from the
kernels and the results. What can be asked for, with `key=value` options where the default will not
do (device=nvidia-h200 dtype=bfloat16 shape="N=65536 C=768"):

    rungs OP        the ladder: number, idea, what a rung needs
    header OP N     what the header of a rung says: before, change, expectation, what is left
    diff OP N M     the change from one rung to the next; context=2 lines around it
    source OP N     the whole file
    table OP        what was measured
    roofline OP     a picture: every rung under the roof
    bars OP         a picture: bytes per second of every rung and peer
    overview        every op that was measured: its best rung beside the library and PyTorch
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ladder import listing, plots, results
from ladder.contract import PACKAGE, find, ladders
from ladder.errors import LadderError
from ladder.rungfile import Rung

ROOT = PACKAGE.parent
_BLOCK = re.compile(
    r"(?P<begin><!-- ladder:begin (?P<request>[^>]*?) -->\n)(?P<body>.*?)"
    r"(?P<end><!-- ladder:end -->)",
    re.DOTALL,
)


def update(write: bool, root: Path = ROOT) -> list[str]:
    """Bring README.md and doc/*.md up to date, or only look; what differs, one line each.

    Raises LadderError, with file and line, for a request that is not understood.
    """
    drifted = []
    for page in pages(root):
        old = page.read_text(encoding="utf-8")
        new = render(old, page, write)
        if new != old:
            drifted.append(f"{page.relative_to(root)}: the generated parts have changed")
            if write:
                page.write_text(new, encoding="utf-8")
        drifted += [
            f"{page.relative_to(root)}: {picture} is missing or older than its numbers"
            for picture in _stale_pictures(new, page)
        ]
    return drifted


def pages(root: Path) -> list[Path]:
    return [
        page
        for page in (root / "README.md", *sorted((root / "doc").rglob("*.md")))
        if page.exists()
    ]


def render(text: str, page: Path, draw: bool) -> str:
    """The page with every block renewed; `draw`: the pictures too."""

    def renew(block: re.Match) -> str:
        words = shlex.split(block["request"])
        options = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        try:
            body = BLOCKS[words[0]](*words[1:], page=page, draw=draw, **options)
        except (KeyError, TypeError, LadderError) as error:
            line = text.count("\n", 0, block.start()) + 1
            why = error if isinstance(error, LadderError) else f"see ladder/tables.py ({error})"
            raise LadderError(f"{page}:{line}: ladder:begin {block['request']}: {why}") from None
        return f"{block['begin']}{body.strip()}\n{block['end']}"

    return _BLOCK.sub(renew, text)


# ---- from the kernels ---------------------------------------------------------------------------


def rungs(op: str, page: Path, draw: bool) -> str:
    """The rungs of a ladder, each with a link to its file."""
    lines = ["| rung | idea | needs |", "|---|---|---|"]
    for rung in find(op).rungs:
        number = _link(rung, page)
        needs = "; ".join(f"`{condition}`" for condition in rung.conditions())
        lines.append(f"| {number} | {rung.idea}{_remarks(rung)} | {needs} |")
    return "\n".join(lines)


def header(op: str, number: str, page: Path, draw: bool) -> str:
    """What a rung's header says to a reader."""
    rung = find(op).rung(int(number))
    lines = []
    for key in ("before", "change", "expect", "deterministic", "accurate", "pays", "left"):
        lines += [f"- **{key.capitalize()}:** {_prose(text)}" for text in rung.header.get(key, ())]
    return "\n".join(lines)


def diff(op: str, before: str, after: str, page: Path, draw: bool, context: str = "2") -> str:
    ladder = find(op)
    text = listing.diff(ladder, ladder.rung(int(before)), ladder.rung(int(after)), int(context))
    return f"```diff\n{text.rstrip()}\n```"


def source(op: str, number: str, page: Path, draw: bool) -> str:
    ladder = find(op)
    text, language = listing.source(ladder, ladder.rung(int(number)))
    return f"```{'cpp' if language == 'cuda' else language}\n{text.rstrip()}\n```"


# ---- from the results ---------------------------------------------------------------------------


def table(op: str, page: Path, draw: bool, **which: str) -> str:
    """One measurement: time, gain, bytes or FLOPs per second, beside the roof and the library."""
    device, measurement = _find(op, **which)
    ladder = find(op)
    rows = measured_rows(measurement)
    reference = best_peer(measurement)
    unit = "TFLOP/s" if measurement["roof"]["matrix_tflops"] else "GB/s"
    against = f" | % of {reference['name']}" if reference else ""
    lines = [
        f"| rung | µs | × previous | {unit} | % of roof{against} |",
        "|---|--:|--:|--:|--:|" + ("--:|" if reference else ""),
    ]
    for row in rows:
        name = row["name"]
        if row["number"] is not None:
            rung = ladder.rung(row["number"])
            changed = "" if results.code_digest(rung) == row["code"] else " (file changed since)"
            name = f"{_link(rung, page)} {rung.idea}{_remarks(rung)}{changed}"
        cells = [
            name,
            f"{row['us']:,.2f}" if row["us"] < 100 else f"{row['us']:,.1f}",
            f"{row['gain']:.2f}" if row["gain"] else "",
            f"{row['rate']:,.0f}",
            f"{row['of_roof']:.0%}",
        ]
        if reference:
            cells.append(f"{reference['us'] / row['us']:.0%}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", _caption(device, measurement)])


def overview(page: Path, draw: bool, device: str = "", dtype: str = "") -> str:
    """The best rung of every op that was measured, one line each, at the op's first shape."""
    lines = [
        "| op | shape | best rung | µs | % of roof | % of PyTorch or library |",
        "|---|---|---|--:|--:|--:|",
    ]
    captions = set()
    for op in ladders():
        try:
            which = {"device": device, "dtype": dtype}
            found, measurement = _find(op, **{k: v for k, v in which.items() if v})
        except LadderError:
            continue  # not measured yet
        ours = [row for row in measured_rows(measurement) if row["number"] and not row["library"]]
        if not ours:
            continue
        best = min(ours, key=lambda row: row["us"])
        peer = best_peer(measurement)
        against = f"{peer['us'] / best['us']:.0%} of {peer['name']}" if peer else ""
        rung = find(op).rung(best["number"])
        lines.append(
            f"| {op} | {measurement['shape']}, {measurement['dtype']} | {_link(rung, page)} "
            f"{rung.idea} | {best['us']:,.1f} | {best['of_roof']:.0%} | {against} |"
        )
        captions.add(_machine(found))
    if not captions:
        return "_Nothing has been measured yet: `python -m ladder bench --all` on a GPU does._"
    return "\n".join([*lines, "", f"Measured on {', '.join(sorted(captions))}."])


def measured_rows(measurement: results.Measurement) -> list[dict[str, Any]]:
    """The rows with what follows from their times: rungs in order, then library and peers.

    Each has name, number (None for a peer), library, code, us, gain (over the rung before), rate
    (GB/s, or TFLOP/s where the matrix rate is the roof), of_roof.
    """
    matrix = measurement["roof"]["matrix_tflops"]
    work = measurement["flops"] / 1e6 if matrix else measurement["bytes"] / 1e3
    roof = matrix or measurement["roof"]["copy_gbps"]
    known = {rung.number for rung in find(measurement["op"]).rungs}
    rows, before = [], None
    for row in measurement["rows"]:
        number, us = row.get("rung"), row["median_us"]
        if number is not None and number not in known:
            continue  # a rung that is there no more
        library = row.get("library", False)
        gain = before / us if before and number is not None and not library else None
        if number and not library:
            before = us
        rate = work / us
        rows.append(
            {
                "name": row.get("peer") or row["idea"],
                "number": number,
                "library": library,
                "code": row.get("code"),
                "us": us,
                "gain": gain,
                "rate": rate,
                "of_roof": rate / roof,
            }
        )
    return sorted(rows, key=lambda row: (row["number"] is None, row["library"]))


def best_peer(measurement: results.Measurement) -> dict[str, Any] | None:
    """The library rung if there is one, else the fastest peer."""
    rows = measured_rows(measurement)
    library = [row for row in rows if row["library"]]
    return min(
        library or [row for row in rows if row["number"] is None],
        key=lambda row: row["us"],
        default=None,
    )


def roofline(op: str, page: Path, draw: bool, **which: str) -> str:
    return _picture("roofline", plots.roofline, op, page, draw, **which)


def bars(op: str, page: Path, draw: bool, **which: str) -> str:
    return _picture("bars", plots.bars, op, page, draw, **which)


def _picture(
    kind: str, plot: Callable[..., None], op: str, page: Path, draw: bool, **which: str
) -> str:
    device, measurement = _find(op, **which)
    rows = measured_rows(measurement)
    name = "-".join([op.replace(".", "-"), kind, results.slug(device["gpu"])])
    if which.get("dtype") or which.get("shape"):
        name += f"-{measurement['dtype']}-{results.slug(measurement['shape'])}"
    doc = page.parent if page.parent.name == "doc" else page.parent / "doc"
    picture = doc / "img" / f"{name}.svg"
    title = f"{op}, {measurement['shape']}, {measurement['dtype']}, {device['gpu']}"
    digest = plots.digest(kind, title, rows, measurement)
    if draw and plots.drawn_from(picture) != digest:
        picture.parent.mkdir(parents=True, exist_ok=True)
        plot(picture, title, rows, measurement, digest)
    best = min(
        (row for row in rows if row["number"] and not row["library"]),
        key=lambda row: row["us"],
        default=rows[0],
    )
    text = f"{title}: {best['name']} reaches {best['of_roof']:.0%} of the measured roof"
    link = Path(os.path.relpath(picture, page.parent)).as_posix()
    return f"![{text}]({link})\n<!-- drawn from {digest} -->"


def _stale_pictures(text: str, page: Path) -> Iterator[str]:
    for picture, digest in re.findall(r"\(([^)\s]+\.svg)\)\n<!-- drawn from (\w+) -->", text):
        if plots.drawn_from(page.parent / picture) != digest:
            yield picture


def _find(
    op: str, device: str = "", dtype: str = "", shape: str = ""
) -> tuple[Mapping[str, Any], results.Measurement]:
    """The measurement that was asked for; by default the op's first shape, in bfloat16."""
    wanted_shape = shape or next(iter(find(op).op.bench))
    for slug, content in results.load_all().items():
        if device and slug != device:
            continue
        found = {
            m["dtype"]: m
            for m in content["measurements"]
            if m["op"] == op and m["shape"] == wanted_shape and m["rows"]
        }
        for name in (dtype,) if dtype else ("bfloat16", "float16", "float32"):
            if name in found:
                return content["device"], found[name]
    wanted = " ".join(filter(None, (wanted_shape, dtype, device)))
    raise LadderError(f"{op} has not been measured at {wanted}: python -m ladder bench {op}")


def _caption(device: Mapping[str, Any], measurement: results.Measurement) -> str:
    roof = measurement["roof"]
    least = measurement["bytes"] / 1e6
    text = (
        f"{measurement['shape']}, {measurement['dtype']}: at least {least:,.1f} MB; roof: "
        f"{roof['copy_gbps']:,.0f} GB/s, a copy on the same card"
    )
    if roof["matrix_tflops"]:
        text += f", and {roof['matrix_tflops']:,.0f} TFLOP/s, a 4096³ product"
    if measurement["in_cache"]:
        text += "; everything fits in the L2 cache"
    return f"{text}. {_machine(device)}, {measurement['date']}."


def _machine(device: Mapping[str, Any]) -> str:
    return f"{device['gpu']}, driver {device.get('driver', '?')}, NVRTC {device.get('nvrtc', '?')}"


def _remarks(rung: Rung) -> str:
    remarks = [] if rung.pays else ["does not pay"]
    remarks += [] if rung.deterministic else ["not deterministic"]
    return f" _({', '.join(remarks)})_" if remarks else ""


def _link(rung: Rung, page: Path) -> str:
    if rung.path is None:
        return str(rung.number)
    up = "../" * len(page.parent.relative_to(ROOT).parts) if page.is_relative_to(ROOT) else ""
    return f"[{rung.number}]({up}{rung.path.relative_to(ROOT).as_posix()})"


def _prose(text: str) -> str:
    """Header text as Markdown: stars and angle brackets are not meant as markup."""
    return re.sub(r"([*<>_|])", r"\\\1", text)


BLOCKS: dict[str, Callable[..., str]] = {
    "rungs": rungs,
    "header": header,
    "diff": diff,
    "source": source,
    "table": table,
    "roofline": roofline,
    "bars": bars,
    "overview": overview,
}
