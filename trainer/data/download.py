"""Where data is stored, and how files that are not in the repository are downloaded.

The data directory is the one given by flag, else $KERNEL_LADDER_DATA, else ./data. It may be
read-only, on a shared disk for instance: files that lie there are used, and new ones are then made
in the user's cache directory (ladder/core/common/cache.py). A file is used only if its
SHA-256 is right.

Downloads go through pooch. It writes to a temporary file and renames it after checking the hash,
so that an interrupted download leaves nothing behind. It cannot resume a download: that starts
again.
"""

import os
import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ladder.core.common import cache
from ladder.core.common.errors import LadderError

VARIABLE = "KERNEL_LADDER_DATA"
CONNECT_SECONDS = 3.0  # to connect
READ_SECONDS = 10.0  # between two reads, once connected
PROBE_SECONDS = 4.0  # for any answer, including the lookup of the host's name


@dataclass(frozen=True)
class Source:
    """A file on the web: its path below the data directory, its address, its SHA-256."""

    path: str
    url: str
    sha256: str


TINYSHAKESPEARE = Source(
    "tinyshakespeare/input.txt",
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
# The address and the hash that tiktoken itself uses.
GPT2_MERGES = Source(
    "gpt2/vocab.bpe",
    "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/vocab.bpe",
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)


class DownloadError(LadderError):
    """A file is missing and cannot be downloaded; a caller may use something else."""


def data_directory(flag: str | Path | None = None) -> Path:
    """The data directory; it need not exist yet."""
    directory = Path(flag or os.environ.get(VARIABLE) or "data").expanduser()
    try:  # once: another rank may make the folder between two questions
        usable = stat.S_ISDIR(directory.stat().st_mode)
    except FileNotFoundError:
        usable = True
    except OSError:  # this user may not read a folder above it
        usable = False
    if not usable:
        raise LadderError(
            f"the data directory {directory} is not a readable folder; "
            f"give one by --data-dir or {VARIABLE}"
        )
    return directory


def places(data_dir: str | Path, path: str) -> tuple[Path, Path]:
    """The two places where a file of the data directory may lie: there, and in the user's cache."""
    return Path(data_dir) / path, cache.directory() / "data" / path


def writable_place(data_dir: str | Path, path: str) -> Path:
    """Where to make a new file: in the data directory if that can be written, else in the cache."""
    wished, instead = places(data_dir, path)
    existing = next(parent for parent in wished.absolute().parents if parent.exists())
    # The superuser may write anywhere, but a folder that is marked read-only is meant to stay so.
    marked_read_only = not existing.stat().st_mode & 0o222
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return wished if writable and not marked_read_only else instead


def fetch(source: Source, data_dir: str | Path, *copies: Path) -> Path:
    """The path of a file with the right content, downloaded if neither place nor a copy has it.

    A file with wrong content is reported on stderr, by name and hash, and replaced once the right
    one has come. Raises DownloadError where the file is not here and cannot be downloaded, and
    LadderError where it is here, is damaged, and cannot be replaced.
    """
    damaged = None
    for path in (*copies, *places(data_dir, source.path)):
        if path.is_file():
            if (sha256 := hash_of(path)) == source.sha256:
                return path
            damaged = f"{path} is damaged: its sha256 is {sha256}, and should be {source.sha256}"
    if damaged:
        print(f"{damaged}; downloading it again", file=sys.stderr)
    target = writable_place(data_dir, source.path)
    try:
        _download(source, target)
    except DownloadError as error:
        if damaged:
            raise LadderError(f"{damaged}; {error}; remove or replace it") from None
        remedy = f"get it elsewhere and put it at {places(data_dir, source.path)[0]}"
        raise DownloadError(f"{error}; {remedy}") from None
    return target


def hash_of(path: Path) -> str:
    """The SHA-256 of a file. Raises LadderError where it cannot be read."""
    import pooch

    try:
        return str(pooch.file_hash(str(path)))
    except OSError as error:
        raise LadderError(f"cannot read {path}: {error.strerror}") from None


def _download(source: Source, target: Path) -> None:
    import pooch
    import requests

    host = urlsplit(source.url).hostname
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), timeout=(CONNECT_SECONDS, READ_SECONDS), chunk_size=1 << 14
    )
    try:
        probe(source.url)
        pooch.retrieve(
            source.url,
            known_hash=f"sha256:{source.sha256}",
            fname=target.name,
            path=target.parent,
            downloader=downloader,
        )
    except requests.HTTPError as error:
        status = "an error" if error.response is None else f"status {error.response.status_code}"
        reason = f"{source.url} answers with {status}"
    except (requests.ConnectionError, requests.Timeout):
        reason = f"no connection to {host}"
    except requests.RequestException as error:
        reason = f"{source.url}: {type(error).__name__}"
    except ValueError:  # pooch's error for a wrong hash
        reason = f"the file at {source.url} does not have the sha256 {source.sha256}"
    except OSError as error:
        raise LadderError(f"cannot write {target}: {error.strerror or error}") from None
    else:
        return
    raise DownloadError(f"cannot download {source.path} ({reason})")


def probe(url: str) -> None:
    """Raise requests.ConnectionError within PROBE_SECONDS where no answer comes.

    On a machine without a network, looking up a host's name can alone take half a minute, which no
    timeout of a request covers. So the request runs in a thread that is abandoned.
    """
    import pooch
    import requests

    failures: list[Exception] = []

    def ask() -> None:
        try:
            # Any answer will do: the download itself reports what is wrong with it.
            pooch.HTTPDownloader(timeout=CONNECT_SECONDS)(url, None, None, check_only=True)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if failures:
        raise failures[0]
    if thread.is_alive():
        raise requests.ConnectionError(f"no answer within {PROBE_SECONDS:g} s")
