"""`--report-to`: the numbers of `log.jsonl`, also for TensorBoard, Weights & Biases or Trackio."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install


def require(names: str) -> None:
    """Raise LadderError where the library of one of these trackers, with commas between them, is
    not installed. An extra of pyproject.toml has the library's name."""
    for name in filter(None, names.split(",")):
        # A folder of that name counts as a module, but has no origin.
        if getattr(importlib.util.find_spec(name), "origin", None) is None:
            raise LadderError(f"--report-to {name}: it is not installed; {install(name)} adds it")


class Trackers:
    """The trackers of a run. One that fails meanwhile is told no more, and the run goes on."""

    def __init__(
        self,
        names: str,
        directory: Path,
        settings: dict[str, Any],
        resumed: bool,
        say: Callable[[str], None],
    ) -> None:
        """Raises LadderError where one cannot begin, such as wandb without a login.

        resumed  what the folder has told TensorBoard is of this run, too
        """
        self.say = say
        self.trackers: dict[str, Any] = {}
        name = ""
        try:
            for name in filter(None, names.split(",")):
                if name == "tensorboard":
                    self.trackers[name] = _TensorBoard(directory, resumed)
                    continue
                library = self.trackers[name] = importlib.import_module(name)
                place = {"dir": str(directory)} if name == "wandb" else {}
                place["name"] = directory.name
                library.init(project="kernel-ladder", config=settings, **place)
        except Exception as error:  # of a library: no network, no login, no room
            why = " ".join(str(error).split())
            raise LadderError(f"--report-to {name}: {why}") from None

    def log(self, entry: Mapping[str, Any]) -> None:
        """Tell the numbers of an entry of the log."""
        if numbers := {name: value for name, value in entry.items() if isinstance(value, float)}:
            self._tell(lambda tracker: tracker.log(numbers, step=entry["step"]))

    def close(self) -> None:
        self._tell(lambda tracker: tracker.finish())

    def _tell(self, what: Callable[[Any], None]) -> None:
        for name, tracker in list(self.trackers.items()):
            try:
                what(tracker)
            except Exception as error:  # noqa: PERF203  # the others are told all the same
                del self.trackers[name]
                self.say(f"note: {name} is told no more: {' '.join(str(error).split())}")


class _TensorBoard:
    """Writes TensorBoard's files into the run's folder; called like the other two libraries."""

    def __init__(self, directory: Path, resumed: bool) -> None:
        for old in () if resumed else directory.glob("events.out.tfevents.*"):
            old.unlink()
        self.writer = importlib.import_module("tensorboard.summary").Writer(str(directory))
        self.finish = self.writer.close

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)
        self.writer.flush()
