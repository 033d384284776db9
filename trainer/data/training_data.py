"""What a run is trained and evaluated on, by its flags: token files, and batches from them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from trainer.data.benchmarks import prepare_benchmark
from trainer.data.datasets import play_instead, prepare, token_files
from trainer.data.download import DownloadError, data_directory
from trainer.data.multiple_choice import Example
from trainer.data.token_files import (
    Loader,
    RandomOffsetLoader,
    TokenLoader,
    find_shards,
    is_text,
    pair_of,
    read_count,
    spelled_out,
)
from trainer.data.tokenizers import GPT2Tokenizer, Tokenizer, get_tokenizer
from trainer.flags import Flags, TrainConfig


@dataclass(frozen=True)
class Data:
    """What is trained on: patterns of token files, and the vocabulary of their tokenizer, which is
    None where only its name is known."""

    name: str
    train: str
    val: str
    tokenizer_name: str
    tokenizer: Tokenizer | None
    vocab: int
    note: str | None = None
    parts: tuple[str, str] = "", ""  # what an error calls the two

    @property
    def names(self) -> dict[str, str]:
        names = {"dataset": self.name, "tokenizer": self.tokenizer_name}
        return {**names, "train_data": self.train, "val_data": self.val}

    def count(self, overfit: bool) -> int:
        pattern = self.val if overfit else self.train
        return sum(read_count(path) for path in find_shards(pattern))


def with_available_text(flags: Flags) -> tuple[Flags, list[str]]:
    """Flags of the text that is trained on, which are others, with a note, where tinyshakespeare
    cannot be downloaded: a run is named for its text."""
    if flags.uses_dataset:
        note = play_instead(flags.value("dataset"), data_directory(flags.data_dir))
        if note is not None:
            return dataclasses.replace(flags, dataset="play", tokenizer="bytes"), [note]
    return flags, []


def open_data(flags: Flags, data_dir: Path, name: str) -> Data:
    """The token files named by -i and -j, or those prepared from --dataset by the tokenizer of this
    name; of a text that -j names, those made of it."""
    if flags.uses_dataset:
        prepared = prepare(flags.value("dataset"), data_dir, name)
        used = Path(prepared.train).parent.name  # another one if --dataset could not be downloaded
        made_by, val, parts = prepared.tokenizer, prepared.val, prepared.parts
        if flags.val_data is not None:
            val = token_files(flags.val_data, data_dir, made_by)
            parts = parts[0], flags.val_data if is_text(flags.val_data) else ""
        patterns = (used, prepared.train, val)
        return Data(*patterns, made_by.name, made_by, made_by.vocab, prepared.note, parts)
    train, val = _token_files(flags)
    patterns = (train, train, val)
    try:
        tokenizer = get_tokenizer(name, data_dir)
        patterns = (train, train, token_files(val, data_dir, tokenizer))
    except DownloadError as error:
        if name != "gpt2" or is_text(val):
            raise
        # The size of the vocabulary is known without the file, and only samples need the rest.
        note = f"{error}: there will be no text samples"
        return Data(*patterns, name, None, GPT2Tokenizer.vocab, note)
    return Data(*patterns, name, tokenizer, tokenizer.vocab)


def _token_files(flags: Flags) -> tuple[str, str]:
    """The patterns of -i and -j; where one is missing, the other split of the same set."""
    if is_text(text := flags.train_data or flags.val_data or ""):
        flag = "-i" if flags.train_data else "-j"
        raise LadderError(f"{flag} {text} is a text; name the text to train on by --dataset")
    splits, names = {"train": flags.train_data, "val": flags.val_data}, {"train": "-i", "val": "-j"}
    files = {split: spelled_out(name, split) for split, name in splits.items() if name is not None}
    if len(files) == 1:
        ((split, pattern),) = files.items()
        other = "val" if split == "train" else "train"
        find_shards(pattern)  # where there are none, that is the error
        if (pair := pair_of(pattern, split, other)) is None:
            raise LadderError(
                f"{names[split]} {pattern}: there are no {other} files of the same name; "
                f"{names[other]} must name the matching ones as well"
            )
        files[other] = pair
    return files["train"], files["val"]


def open_examples(flags: Flags, data: Data, data_dir: Path) -> tuple[Sequence[Example], list[str]]:
    """HellaSwag's examples where `-h 1` asks for them; none, and a note, where they are not here
    and cannot be downloaded."""
    if not flags.value("hellaswag"):
        return (), []
    try:
        _, examples = prepare_benchmark(
            "hellaswag", data.tokenizer_name, data_dir, vocab=data.vocab
        )
    except DownloadError as error:
        return (), [f"HellaSwag is not evaluated: {error}"]
    return examples, []


def open_loaders(
    config: TrainConfig, vocab: int, rank: int = 0, parts: tuple[str, str] = ("", "")
) -> tuple[Loader, TokenLoader, TokenLoader | None]:
    """Batches for training, for validation, and with --eval-train those of the training text in
    order. Overfitting takes the first batch of validation, as in llm.c, on all ranks.

    parts  what an error calls the files of the two texts; "": their paths
    """
    turns: dict[str, Any] = {"vocab": vocab, "rank": rank, "ranks": config.ranks}
    size = config.batch, config.sequence

    def for_training() -> Loader:
        data, seed = config.train_data, config.seed
        if config.overfit:
            return TokenLoader(config.val_data, *size, vocab=vocab, shuffle=False, text=parts[1])
        named = {**turns, "text": parts[0]}
        if config.random_offsets:
            return RandomOffsetLoader(data, *size, seed=seed, **named)
        shuffle, llmc_order = config.shuffle, config.llmc_order
        return TokenLoader(data, *size, shuffle=shuffle, seed=seed, llmc_order=llmc_order, **named)

    # A text that is shorter than a batch is validated by fewer rows.
    rows = [(read_count(path) - 1) // config.sequence for path in find_shards(config.val_data)]
    few = max(1, min(config.batch, *rows)), config.sequence
    val = TokenLoader(config.val_data, *few, shuffle=False, text=parts[1], **turns)
    train_split = None
    if config.eval_train:
        train_split = TokenLoader(config.train_data, *size, shuffle=False, **turns)
    return for_training(), val, train_split
