"""`python -m trainer plot RUN ...`: draw the course of runs over each other, from their logs.

A run is the folder of a run of this trainer or of llm.c, or a log in it. The marks are those that
llm.c's notebook draws (karpathy/llm.c, dev/vislog.ipynb).
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_bytes
from trainer.files import logs
from trainer.plots.course import MARKS, SMOOTHED, draw, read_losses, table_of
from trainer.report import Display, open_console

PICTURES = (".png", ".svg", ".pdf")


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="python -m trainer plot",
        description="Draw losses, evaluations, time of a step, learning rate and gradient norm of "
        "one or more runs over each other, and print their best values and median speed.",
    )
    parser.add_argument(
        "run", type=Path, nargs="+", help="the folder of a run, also of llm.c's, or its log"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the picture; default loss.png in the folder of a single run, else runs.png",
    )
    parser.add_argument(
        "--smooth",
        type=int,
        metavar="N",
        help="show training loss and norm as moving averages over N steps; 1: as logged; default "
        f"1/{SMOOTHED} of the steps",
    )
    parser.add_argument(
        "--marks",
        choices=MARKS,
        metavar=" | ".join(MARKS),
        help="draw what GPT-2 and GPT-3 of that size reach on FineWeb and HellaSwag",
    )
    words = parser.parse_args(argv)
    if words.smooth is not None and words.smooth < 1:
        raise LadderError(f"--smooth {words.smooth}: choose 1 or more steps")
    logs_of = [logs.find_log(run) for run in words.run]
    beside = logs_of[0].parent / "loss.png" if len(logs_of) == 1 else Path("runs.png")
    output = words.output or beside
    if output.suffix not in PICTURES:
        raise LadderError(f"-o {output}: its name must end in {', '.join(PICTURES)}")
    shared = not words.output and len(logs_of) > 1
    if shared and output.exists() and b"Kernel Ladder" not in read_bytes(output):  # style.save
        raise LadderError(f"{output} is none of plot's; choose another, or replace it: -o FILE")
    runs = {name: read_losses(log) for name, log in zip(_names(logs_of), logs_of, strict=True)}
    values = (((name,), history) for name, history in runs.items())
    Display(open_console(), 0).table(*table_of(["run"], values))
    first = next(iter(runs.values())).train
    if len(same := [name for name, run in runs.items() if first and run.train == first]) > 1:
        print(f"{', '.join(same)}: the same training losses at every step; their curves coincide")
    print("written to", draw(runs, output, words.smooth, words.marks))
    return 0


def _names(logs_of: Sequence[Path]) -> list[str]:
    """Names that tell runs apart: their folders, without what all paths begin with."""
    folders = [Path(os.path.abspath(log.parent)) for log in logs_of]
    if len(set(folders)) == 1:
        return [folders[0].name] if len(folders) == 1 else [str(log) for log in logs_of]
    if len({folder.name for folder in folders}) == len(folders):
        return [folder.name for folder in folders]
    common = os.path.commonpath(folders)
    return [os.path.relpath(folder, common) for folder in folders]
