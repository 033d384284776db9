"""`python -m trainer prepare NAME`: a data set or a benchmark as files of tokens."""

from collections.abc import Sequence
from pathlib import Path

from ladder.core.common.command_line import Parser
from ladder.core.common.errors import LadderError
from trainer.data import datasets, download, hub_texts
from trainer.data.benchmarks import BENCHMARKS, prepare_benchmark
from trainer.data.token_files import TokenLoader
from trainer.data.tokenizers import get_tokenizer
from trainer.flags import DATASETS, TOKENIZERS


def main(argv: Sequence[str]) -> int:
    what = "Prepare a data set or a benchmark as token files."
    parser = Parser(prog="python -m trainer prepare", description=what)
    names = ", ".join((*DATASETS, *BENCHMARKS))
    parser.add_argument(
        "name", metavar="NAME", help=f"one of {names}, a text file, or Parquet files"
    )
    parser.add_argument(
        "--tokenizer", choices=TOKENIZERS, default="gpt2", help="default %(default)s"
    )
    parser.add_argument(
        "--data-dir", help=f"default: ${download.VARIABLE}, else ./data; the cache if read-only"
    )
    numbers = {
        "--max-tokens": "of tinystories, fineweb and Parquet files: end the training set early",
        "--shard-tokens": f"tokens in a file; default {hub_texts.SHARD_TOKENS}",
        "--threads": "that tokenize such a text; default: all cores",
        "--shards": f"of {' and '.join(hub_texts.READY)}: download the first N training shards and "
        "the validation shard, tokenized already",
    }
    for flag, text in numbers.items():
        before = ["--processes"] * (flag == "--threads")  # its name in version 0.1
        parser.add_argument(flag, *before, type=int, metavar="N", help=text)
    chosen = parser.parse_args(argv)
    for flag in ("max_tokens", "shard_tokens", "threads"):
        shards = chosen.name in hub_texts.HUB_TEXTS or hub_texts.is_parquet(Path(chosen.name))
        if getattr(chosen, flag) is not None and not shards:
            known = ", ".join((*hub_texts.HUB_TEXTS, "Parquet files"))
            raise LadderError(f"--{flag.replace('_', '-')} is for {known}, not for {chosen.name}")
    data_dir = download.data_directory(chosen.data_dir)
    if chosen.name in BENCHMARKS and chosen.shards is None:
        vocab = get_tokenizer(chosen.tokenizer, data_dir).vocab
        path, examples = prepare_benchmark(chosen.name, chosen.tokenizer, data_dir, vocab=vocab)
        print(f"{BENCHMARKS[chosen.name].split:5}  {len(examples):,} questions  {path}")
        return 0
    if chosen.shards is not None:
        if (chosen.tokenizer, chosen.max_tokens, chosen.shard_tokens) != ("gpt2", None, None):
            raise LadderError("--shards: these have GPT-2's tokens and their own sizes")
        prepared = hub_texts.prepare_ready(chosen.name, chosen.shards, data_dir)
    else:
        prepared = datasets.prepare(
            chosen.name,
            data_dir,
            chosen.tokenizer,
            fallback=False,
            max_tokens=chosen.max_tokens,
            shard_tokens=chosen.shard_tokens,
            threads=chosen.threads,
        )
    for which, pattern in (("train", prepared.train), ("val", prepared.val)):
        loader = TokenLoader(pattern, 1, 1, vocab=prepared.tokenizer.vocab, shuffle=False)
        print(f"{which:5}  {loader.tokens:>13,} tokens  {pattern}")
    return 0
