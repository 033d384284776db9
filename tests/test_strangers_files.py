"""Every reader of a file refuses what is none, or a damaged one, with one line, without waiting."""

import contextlib
import os
import resource
import signal
import stat

import numpy as np
import pytest

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_bytes, read_json, read_text
from ladder.core.contract.device_code import code_identity
from ladder.core.contract.ladder import find, find_rung
from ladder.core.emulator.source import prepare
from ladder.core.measure import results
from tests.trainer.tiny import resolved_kernels
from trainer.data import datasets
from trainer.data.multiple_choice import read_examples
from trainer.data.token_files import TokenLoader
from trainer.data.tokenizers import CharTokenizer
from trainer.files import checkpoint, huggingface, llmc_files, logs, weights
from trainer.files.tensor_file import write_tensors

GELU = find("gelu.forward").rung("1").path


def header(path):
    """A file that a rung includes."""
    rung = path.with_name("includes.cu")
    rung.write_text(f'{GELU.read_text()}\n#include "{path.name}"\n')
    return rung


def with_weights(path):
    """A good file of weights beside what is to be read."""
    with open(path.with_name("model.safetensors"), "wb") as file:
        write_tensors(file, {"a": lambda: np.zeros(3, np.float32)})


def saved(path):
    """A checkpoint; the file of it that is called as `path` is to be replaced by what is there."""
    folder = path.parent / "run"
    place = checkpoint.save(folder, 1, {"a": lambda: np.zeros(3, np.float32)}, {"tokenizer": None})
    os.remove(place / path.name)
    if os.path.lexists(path):
        os.rename(path, place / path.name)
    return folder


def opened(path):
    tensors, _ = checkpoint.load(saved(path), 1)
    return dict(tensors)


READERS = {  # by the name of the file: how it is read, and what a good one begins with
    "mine.cu": (lambda path: find_rung("gelu.forward", path), b"// gelu forward, rung 1: "),
    "included.h": (lambda path: code_identity(find_rung("gelu.forward", header(path))), None),
    "flat.h": (lambda path: prepare(header(path), header(path).read_text(), []), None),
    "rungs.json": (lambda path: resolved_kernels("cpu", rungs=str(path)), b'{"gelu.forward": '),
    "tensors.safetensors": (opened, None),
    "checkpoint.json": (lambda path: checkpoint.load(saved(path), 1), b'{"format": '),
    "latest/checkpoint.json": (lambda path: weights.tokenizer_of(str(saved(path))), b"{"),
    "a.safetensors": (weights.open_file, None),
    "config.json": (
        lambda path: (with_weights(path), huggingface.load_huggingface(path.parent)),
        b'{"model_type": "gpt2", ',
    ),
    "gpt2.bin": (llmc_files.load_model, b"\x66\x7f\x34\x01\x03\0\0\0"),
    "tokens.bin": (lambda path: TokenLoader(path, 1, 1, vocab=9, shuffle=False), None),
    "examples.bin": (lambda path: read_examples(path, vocab=9), None),
    "book.txt": (lambda path: datasets.prepare(str(path), path.parent / "data", "bytes"), None),
    "chars.json": (CharTokenizer.load, b'["a", "b'),
    "log.jsonl": (logs.read_history, None),
    "results.json": (results.load, b'{"measurements": ['),
    "any.bin": (lambda path: read_bytes(path, 1 << 20), None),
    "any.txt": (read_text, None),
    "any.json": (read_json, b"{"),
}
# What these readers take from it is empty, or left to the compiler, which is no error here.
TAKEN = {
    ("log.jsonl", "empty"),
    ("log.jsonl", "random"),
    ("log.jsonl", "truncated"),
    *((name, kind) for name in ("included.h", "flat.h") for kind in ("empty", "truncated")),
    *((name, kind) for name in ("included.h", "flat.h") for kind in ("missing", "folder", "loop")),
    ("included.h", "random"),
    *(("any.bin", kind) for kind in ("empty", "random", "truncated")),
    *(("any.txt", kind) for kind in ("empty", "truncated")),
    ("book.txt", "truncated"),
}


KINDS = {
    "missing": lambda path, begin: None,
    "pipe": lambda path, begin: os.mkfifo(path),
    "folder": lambda path, begin: path.mkdir(),
    "socket": lambda path, begin: os.mknod(path, stat.S_IFSOCK | 0o600),
    "endless device": lambda path, begin: path.symlink_to("/dev/zero"),
    "endless file": lambda path, begin: (path.touch(), os.truncate(path, 1 << 42)),
    "kernel's log": lambda path, begin: path.symlink_to("/proc/kmsg"),
    "loop": lambda path, begin: path.symlink_to(path.name),
    "empty": lambda path, begin: path.touch(),
    "truncated": lambda path, begin: path.write_bytes(begin or b"abc"),
    "random": lambda path, begin: path.write_bytes(np.random.default_rng(1).bytes(3000)),
}


@contextlib.contextmanager
def at_most(seconds, more_bytes):
    """Fails a block that takes longer, or that takes more memory."""

    def late(signum, frame):
        raise TimeoutError(f"longer than {seconds} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - before < more_bytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_what_is_no_good_file_with_one_line(tmp_path, name, kind):
    read, begin = READERS[name]
    path = tmp_path / name.rpartition("/")[2]
    KINDS[kind](path, begin)
    with at_most(seconds=5, more_bytes=256 << 20):
        if (name, kind) in TAKEN:
            read(path)
            return
        with pytest.raises(LadderError) as refused:
            read(path)
    message = str(refused.value)
    assert path.name in message
    assert len(message.splitlines()) == 1
