"""A data set as token files in the data directory: complete or made, never half of one.

The files are written to DATA/NAME/: LABEL_train*.bin, LABEL_val*.bin, and last of all
LABEL_prepared.json, which lists the files of the set. A set without it is incomplete and is made
again. The label is the tokenizer's name.
"""

import glob
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in, read_json, write_json
from trainer.data import download
from trainer.data.token_files import read_count
from trainer.data.tokenizers import OWN_CHARS, Tokenizer

Write = Callable[[Path, Tokenizer], dict[str, int]]  # place, tokenizer -> {file name: tokens}


@dataclass(frozen=True)
class Prepared:
    """Glob patterns of the token files, the tokenizer that made them, and, if something else than
    was asked for is used, one line that says what and why. `parts`: what an error calls the two."""

    train: str
    val: str
    tokenizer: Tokenizer
    note: str | None = None
    parts: tuple[str, str] = "", ""


def use_or_make(
    name: str,
    data_dir: str | Path,
    tokenizer: Tokenizer,
    source: str,
    write: Write,
    note: str | None = None,
    size: str = "",
    wanted: str | None = None,
) -> Prepared:
    """Use a complete set made from the same `source`, in either place; else let `write` make it.

    size    of what `write` makes, in words
    wanted  the size that a set must have to be used; None: any will do
    """
    own_characters = tokenizer.name == f"{OWN_CHARS}{name}"
    label = "chars" if own_characters else tokenizer.name.replace(":", "-")
    relative = f"{name}/{label}"
    for place in download.places(data_dir, relative):
        if _is_complete(place, source, wanted):
            break
    else:
        place = download.writable_place(data_dir, relative)
        try:
            with alone_in(place.parent, wait=True):
                if not _is_complete(place, source, wanted):  # another process may just have made it
                    note_complete(place, source, size, write(place, tokenizer))
        except OSError as error:
            raise LadderError(
                f"cannot write the token files in {place.parent} ({error.strerror}); "
                "give a writable folder by --data-dir"
            ) from None
    files = glob.escape(str(place))  # a data directory may be called "data[1]"
    return Prepared(f"{files}_train*.bin", f"{files}_val*.bin", tokenizer, note)


def note_complete(place: Path, source: str, size: str, counts: dict[str, int]) -> None:
    """Write the manifest, by which these files are a set."""
    write_json(_manifest(place), {"source": source, "size": size, "tokens": counts})


def remove_others(place: Path, kept: Collection[str]) -> None:
    """Remove the manifest and the other token files of an earlier set: a smaller set must not be
    read together with the rest of a larger one. Before this call the earlier set stays usable, so
    that a request that cannot be met leaves it as it is."""
    _manifest(place).unlink(missing_ok=True)
    for stale in place.parent.glob(f"{glob.escape(place.name)}_*.bin"):
        if stale.name not in kept:
            stale.unlink()


def _manifest(place: Path) -> Path:
    return place.with_name(f"{place.name}_prepared.json")


def _is_complete(place: Path, source: str, wanted: str | None) -> bool:
    """Whether the manifest exists and describes `source` in the size that is wanted, and every file
    in it is complete."""
    try:
        manifest = read_json(_manifest(place))
        same = manifest["source"] == source and wanted in (None, manifest["size"])
        return same and all(
            read_count(place.with_name(file)) == count for file, count in manifest["tokens"].items()
        )
    except (ValueError, TypeError, KeyError, AttributeError, LadderError):
        return False
