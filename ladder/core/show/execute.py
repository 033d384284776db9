"""Run notebooks from top to bottom, and keep what comes out. Needs the extra `notebooks`."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets import default

from ladder.core.common.errors import LadderError
from ladder.core.show.pages import ROOT
from ladder.core.show.progress import VARIABLE

FOLDER = ROOT / "notebooks"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's sums do not depend on the number of cores


def notebooks(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks of these names ("00_start"), or all of them, in reading order.

    Raises LadderError where there is no such notebook.
    """
    paths = {path.stem: path for path in sorted(FOLDER.glob("[0-9]*.ipynb"))}
    if unknown := [name for name in names if name not in paths]:
        raise LadderError(f"no notebook is named {unknown[0]!r}; there are {', '.join(paths)}")
    return [path for name, path in paths.items() if name in (names or paths)]


def renew(path: Path) -> None:
    """Run a notebook and save it with its outputs.

    Raises LadderError where a cell fails; the file stays as it was.
    """
    try:
        notebook = execute(path)
    except CellExecutionError as error:
        raise LadderError(f"{path.name}: a cell fails: {error.ename}: {error.evalue}") from None
    nbformat.write(tidy(notebook), path)


class ThisPython(AsyncKernelManager):
    """Starts this very Python, whatever kernel the user has installed as "python3"."""

    @default("kernel_spec_manager")
    def _no_installed_kernels(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])


def execute(path: Path) -> Any:
    """The notebook with the outputs of a run in a new Python process. Nothing is written.

    Raises nbclient's CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as progress:  # neither the reader's, nor added to it
        NotebookClient(
            notebook,
            timeout=300,  # seconds of a cell
            kernel_name="python3",
            kernel_manager_class=ThisPython,
            resources={"metadata": {"path": str(path.parent)}},
            record_timing=False,
            coalesce_streams=True,  # lines come in one piece or in several, as chance has it
        ).execute(env={**os.environ, **ONE_THREAD, VARIABLE: progress})
    return notebook


def tidy(notebook: Any) -> Any:
    """The same without what differs from machine to machine, or from run to run."""
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in ("tags",) if key in cell.metadata}
        if cell.source.startswith("%%kernel"):
            cell.metadata["magics_language"] = "cuda"  # what nbconvert colours it as
    return notebook
