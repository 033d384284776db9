"""Texts and token files that are data sets of the Hugging Face Hub.

The Hub says of each file its SHA-256, by which the file is checked once it has come. $HF_ENDPOINT
names a mirror, as for the Hub's own library. Texts are Parquet files, which pyarrow reads; one of
them lies in the data directory at a time, some 2 GB.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from trainer.data import download
from trainer.data.download import DownloadError, Source

UNREAD = "unread"  # the folder of files that were downloaded and are not read to their end

Position = tuple[int, int]  # of a document: number of the file, number of the row in it


@dataclass(frozen=True)
class HubText:
    """A text: the repository, and how the paths of the files of each split begin. A set without
    its own validation split has none of that name. `strip`: whether documents lose the spaces at
    both ends."""

    repository: str
    splits: dict[str, str]
    strip: bool = False


def list_files(repository: str, prefix: str, suffix: str) -> list[tuple[str, str]]:
    """(path, SHA-256) of the files of a data set whose path begins and ends so, by path.

    Raises DownloadError where the Hub does not answer or has none.
    """
    import huggingface_hub  # takes a quarter of a second, and few runs need it

    folder = prefix.rpartition("/")[0] or None
    api, reason = huggingface_hub.HfApi(_endpoint()), f"no connection to {_endpoint()}"
    try:
        download.probe(_endpoint())  # without a network the client retries for half a minute
        reason = ""
        tree = list(api.list_repo_tree(repository, folder, repo_type="dataset"))
    except Exception as error:  # those of the client and of its HTTP library
        reason = reason or (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"cannot list the files of {repository} ({reason}); name a mirror of the Hub by "
            "HF_ENDPOINT, or train on token files by -i and -j"
        ) from None
    files = sorted(
        (item.path, item.lfs.sha256)
        for item in tree
        if isinstance(item, huggingface_hub.RepoFile) and item.lfs is not None
        if item.path.startswith(prefix) and item.path.endswith(suffix)
        if re.fullmatch(r"[\w-][\w.-]*", PurePosixPath(item.path).name)  # it becomes a name here
    )
    if not files:
        raise DownloadError(f"{repository} has no files {prefix}*{suffix}")
    return files


def fetch_file(repository: str, path: str, sha256: str, to: str, data_dir: str | Path) -> Path:
    """A file of a data set, at the path `to` below the data directory, downloaded if need be."""
    url = f"{_endpoint()}/datasets/{repository}/resolve/main/{path}"
    return download.fetch(Source(to, url, sha256), data_dir)


def documents(
    text: HubText, name: str, split: str, data_dir: str | Path, start: Position = (0, 0)
) -> Iterator[tuple[Position, str]]:
    """The documents of a split from `start` on, in the order of files and rows, each with its
    position.

    A file is downloaded into DATA/NAME/unread when it is needed, and removed when it is done; one
    of your own in DATA/NAME is used instead, and stays.
    """
    parquet = pyarrow_parquet()
    files = list_files(text.repository, text.splits[split], ".parquet")
    for number, (path, sha256) in list(enumerate(files))[start[0] :]:
        file = PurePosixPath(path).name
        own = any(place.is_file() for place in download.places(data_dir, f"{name}/{file}"))
        to = f"{name}/{file}" if own else f"{name}/{UNREAD}/{file}"
        local = fetch_file(text.repository, path, sha256, to, data_dir)
        for row, document in _rows(parquet, local, start[1] if number == start[0] else 0):
            yield (number, row), document.strip() if text.strip else document
        if not own:
            local.unlink()


def own_documents(
    files: Sequence[Path], start: Position = (0, 0)
) -> Iterator[tuple[Position, str]]:
    """The documents of Parquet files that are here, from `start` on, each with its position."""
    parquet = pyarrow_parquet()
    for number, path in list(enumerate(files))[start[0] :]:
        for row, document in _rows(parquet, path, start[1] if number == start[0] else 0):
            yield (number, row), document


def _rows(parquet: Any, path: Path, first: int) -> Iterator[tuple[int, str]]:
    """The column "text" of a Parquet file from row `first` on."""
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024, columns=["text"]):
                if row + batch.num_rows > first:
                    for i, document in enumerate(batch.column(0).to_pylist(), row):
                        if not isinstance(document, str):
                            raise ValueError(f"row {i} is no text")
                        if i >= first:
                            yield i, document
                row += batch.num_rows
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        NotImplementedError,  # for a compression or a type that pyarrow cannot read
    ) as error:
        raise LadderError(f"{path} is no Parquet file with a column text ({error})") from None


def pyarrow_parquet() -> Any:
    """The library that reads such files. Raises LadderError where it is missing."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise LadderError(
            "the text comes as Parquet files, which the library pyarrow reads; it is not "
            "installed: run " + install("data")
        ) from None
    return pyarrow.parquet


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
