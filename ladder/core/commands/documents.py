"""What is made from the rest: `docs` renews the pages, `notebooks` runs the notebooks."""

import argparse

from ladder.core.commands import shared
from ladder.core.common.install import ROOT
from ladder.core.show import pages, working_copy


def add_to(commands: shared.Commands) -> None:
    if ROOT:  # an installed wheel has neither pages nor notebooks
        return
    parser = commands.add("docs", write_docs)
    shared.switch(parser, "--check", "write nothing; status 1 if out of date")

    parser = commands.add("notebooks", run_notebooks)
    parser.add_argument("name", nargs="*", help="such as 00_start; default: all")
    shared.switch(parser, "--copy", "only copy them to my/, where what you saved stays")


def write_docs(options: argparse.Namespace) -> int:
    """Renew what pages show of kernels and results; with --check only say what has drifted."""
    drifted = pages.update(write=not options.check)
    for line in drifted:
        print(line)
    if options.check and not drifted:
        print("the pages show what the code and the results say")
    return int(options.check and bool(drifted))


def run_notebooks(options: argparse.Namespace) -> int:
    """Run notebooks from top to bottom, and save them with what comes out."""
    if options.copy:
        print("\n".join([*working_copy.renew(), f"your notebooks: {working_copy.FOLDER}"]))
        return 0
    from ladder.core.show import execute  # which takes packages that the other commands do not

    for path in execute.notebooks(options.name):
        execute.renew(path)
        print(f"{path.relative_to(pages.ROOT)}: {path.stat().st_size >> 10} KB", flush=True)
    return 0
