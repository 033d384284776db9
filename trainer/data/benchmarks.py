"""Multiple-choice benchmarks as token files: `python -m trainer prepare hellaswag`.

    hellaswag   10,042 endings of everyday scenes, the validation split (Zellers et al. 2019)
    mmlu        14,042 exam questions of 57 subjects, the test split (Hendrycks et al. 2021)

Context and completions are tokenized apart, a space before each completion, as llm.c's
dev/data/hellaswag.py and mmlu.py do. The file is DATA/NAME/TOKENIZER_SPLIT.bin in llm.c's format
(multiple_choice.py); for HellaSwag with GPT-2's tokens it is llm.c's hellaswag_val.bin.
"""

import csv
import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from ladder.core.common.errors import LadderError
from ladder.core.common.files import alone_in, read_text
from trainer.data import download
from trainer.data.download import Source
from trainer.data.multiple_choice import Example, read_examples, write_examples
from trainer.data.tokenizers import Tokenizer, get_tokenizer

# As text: the context, four ways to go on, and which of them is right.
Question = tuple[str, list[str], int]


@dataclass(frozen=True)
class Benchmark:
    """Where a benchmark comes from, the split that is used, and how its file is read."""

    source: Source
    split: str
    questions: Callable[[Path], Iterator[Question]]


def hellaswag_questions(path: Path) -> Iterator[Question]:
    for line in read_text(path).splitlines():
        item = json.loads(line)
        yield item["ctx"], item["endings"], item["label"]


def mmlu_questions(path: Path) -> Iterator[Question]:
    """The questions of MMLU's archive, subject by subject in the order of their names.

    Cells are taken as they are written. llm.c reads them with pandas, which makes a number of a
    cell in a column of numbers, so that "0.50" becomes "0.5", and "nan" of a cell such as "None".
    """
    with tarfile.open(path) as archive:
        members = {m.name: m for m in archive if m.isfile() and m.name.startswith("data/test/")}
        for name in sorted(name for name in members if name.endswith(".csv")):
            file = archive.extractfile(members[name])
            assert file is not None  # it is a regular file
            for row in csv.reader(io.TextIOWrapper(file, "utf-8", newline="")):
                question, *endings, answer = row
                yield f"Question: {question}\n\nAnswer:", endings, "ABCD".index(answer)


BENCHMARKS = {
    "hellaswag": Benchmark(
        Source(
            "hellaswag/hellaswag_val.jsonl",
            "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
            "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
        ),
        "val",
        hellaswag_questions,
    ),
    "mmlu": Benchmark(
        Source(
            "mmlu/data.tar",
            "https://people.eecs.berkeley.edu/~hendrycks/data.tar",
            "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b",
        ),
        "test",
        mmlu_questions,
    ),
}


def prepare_benchmark(
    name: str, tokenizer_name: str, data_dir: str | Path, *, vocab: int
) -> tuple[Path, list[Example]]:
    """A benchmark's examples in the tokens of a tokenizer, which has `vocab` of them, and their
    file. It is made where it is missing or damaged.

    Raises DownloadError where benchmark or vocabulary are not here and cannot be downloaded, and
    LadderError where the tokenizer is of characters or the file cannot be written.
    """
    if tokenizer_name.partition(":")[0] == "chars":  # before anything is downloaded
        raise LadderError(f"{name} has characters that a model of the tokenizer chars cannot read")
    benchmark = BENCHMARKS[name]
    relative = f"{name}/{tokenizer_name}_{benchmark.split}.bin"
    for path in download.places(data_dir, relative):
        if path.exists():
            try:
                return path, read_examples(path, vocab=vocab)
            except LadderError as error:
                print(f"making {path} again: {error}", file=sys.stderr)
    tokenizer = get_tokenizer(tokenizer_name, data_dir)
    questions = list(benchmark.questions(download.fetch(benchmark.source, data_dir)))
    console = Console(stderr=True)
    examples = [
        tokenized(question, tokenizer)
        for question in track(
            questions, f"tokenizing {name}", console=console, disable=not console.is_terminal
        )
    ]
    path = download.writable_place(data_dir, relative)
    try:
        with alone_in(path.parent, wait=True):
            write_examples(path, examples)
    except OSError as error:
        raise LadderError(
            f"cannot write {path} ({error.strerror}); give a writable folder by --data-dir"
        ) from None
    return path, examples


def tokenized(question: Question, tokenizer: Tokenizer) -> Example:
    context, endings, label = question
    completions = [tokenizer.encode(f" {ending}") for ending in endings]
    return Example(tokenizer.encode(context), completions, label)
