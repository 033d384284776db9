"""HellaSwag and MMLU, made: from a local server to a file of tokens."""

import dataclasses
import hashlib
import io
import json
import tarfile

import pytest

from ladder.core.common.files import read_bytes
from tests.trainer.web_server import serve
from trainer.data import benchmarks, multiple_choice
from trainer.data.benchmarks import BENCHMARKS, prepare_benchmark
from trainer.data.download import Source
from trainer.data.multiple_choice import read_examples

SCENES = [
    {"ctx": "A man is on a roof. he", "endings": ["falls.", "sings.", "é.", "is a."], "label": 2},
    {"ctx": "Two dogs", "endings": ["run", "fly", "swim", "[header]"], "label": 0},
]
CSV = {"data/test/b.csv": '"What is, 1 + 1?",0.50,2,None,1e3,B\r\n', "data/dev/a.csv": "x\n"}
CSV["data/test/a.csv"] = 'Two\n""lines""?,a,b,c,d,D\n'.replace("Two", '"Two').replace("?", '?"')


def archive():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in CSV.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data directory, and made benchmarks on a server of this machine."""
    monkeypatch.setenv("KERNEL_LADDER_CACHE", str(tmp_path / "cache"))
    scenes = "".join(json.dumps(scene) + "\n" for scene in SCENES).encode()
    contents = {"hellaswag": scenes, "mmlu": archive()}
    with serve({f"/{name}": (200, c, len(c)) for name, c in contents.items()}) as server:
        for name, content in contents.items():
            made = hashlib.sha256(content).hexdigest()
            source = Source(BENCHMARKS[name].source.path, f"{server.url}/{name}", made)
            new = dataclasses.replace(BENCHMARKS[name], source=source)
            monkeypatch.setitem(benchmarks.BENCHMARKS, name, new)
        yield tmp_path / "data"


def prepared(name, data, tokenizer="bytes"):
    return prepare_benchmark(name, tokenizer, data, vocab=257)


def texts(examples):
    """Examples in byte tokens as text."""
    return [
        (bytes(e.context).decode(), [bytes(c).decode() for c in e.completions], e.label)
        for e in examples
    ]


def test_hellaswag_has_a_space_before_each_ending(data):
    path, examples = prepared("hellaswag", data)
    assert path == data / "hellaswag" / "bytes_val.bin"
    assert examples == read_examples(path, vocab=257)
    assert texts(examples) == [
        ("A man is on a roof. he", [" falls.", " sings.", " é.", " is a."], 2),
        ("Two dogs", [" run", " fly", " swim", " [header]"], 0),
    ]


def test_mmlu_has_the_questions_of_the_test_split_by_subject_with_cells_as_written(data):
    _, examples = prepared("mmlu", data)
    assert texts(examples) == [
        ('Question: Two\n"lines"?\n\nAnswer:', [" a", " b", " c", " d"], 3),
        ("Question: What is, 1 + 1?\n\nAnswer:", [" 0.50", " 2", " None", " 1e3"], 1),
    ]


def test_a_file_that_is_there_is_read_once(data, monkeypatch):
    """Such as llm.c's hellaswag_val.bin, without the vocabulary, and without a network."""
    path, examples = prepared("hellaswag", data)
    path.rename(path.with_name("gpt2_val.bin"))
    read = []
    monkeypatch.setattr(
        multiple_choice, "read_bytes", lambda path: read.append(path) or read_bytes(path)
    )
    assert prepared("hellaswag", data, "gpt2") == (path.with_name("gpt2_val.bin"), examples)
    assert read == [path.with_name("gpt2_val.bin")]


def test_a_damaged_file_is_made_again(data, capsys):
    path, examples = prepared("hellaswag", data)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    assert prepared("hellaswag", data) == (path, examples)
    assert path.read_bytes() == whole
    assert str(path) in capsys.readouterr().err
