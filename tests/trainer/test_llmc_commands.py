"""Command lines of llm.c (karpathy/llm.c at f1e2ace) work here as they stand: the flags that the
parser of train_gpt2.cu knows, and those of scripts/."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.trainer.tiny import resolved
from trainer.__main__ import main
from trainer.commands.parser import parse
from trainer.commands.sweep import read_trials
from trainer.flags import Flags
from trainer.model.registry import SIZES

# flag: a value, and what it sets. -j, -pm and -pp are in llm.c's help; its parser wants -pi, -pf.
PARSER = {
    "-i": ("train*.bin", {"train_data": "train*.bin"}),
    "-j": ("val*.bin", {"val_data": "val*.bin"}),
    "-e": ("d12", {"model": "d12"}),
    "-o": ("log124M", {"output": "log124M"}),
    "-lg": ("100", {"log_gpu": 100}),
    "-n": ("5000", {"checkpoint_every": 5000}),
    "-nk": ("5", {"keep": 5}),
    "-nm": ("50000", {"major_every": 50000}),
    "-y": ("1", {"resume": True}),
    "-b": ("64", {"batch": 64}),
    "-t": ("1024", {"sequence": 1024}),
    "-d": ("524288", {"total_tokens": 524288}),
    "-x": ("-1", {"steps": -1}),
    "-k": ("cosine", {"schedule": "cosine"}),
    "-l": ("0.0006", {"lr": 0.0006}),
    "-u": ("700", {"warmup": 700}),
    "-q": ("0.0", {"final_lr": 0.0}),
    "-c": ("0.1", {"weight_decay": 0.1}),
    "-sl": ("7.0", {"loss_outlier": 7.0}),
    "-sg": ("7.0", {"grad_outlier": 7.0}),
    "-v": ("250", {"val_every": 250}),
    "-m": ("20", {"val_batches": 20}),
    "-s": ("20000", {"sample_every": 20000}),
    "-g": ("144", {"sample_tokens": 144}),
    "-h": ("1", {"hellaswag": True}),
    "-a": ("1", {"overfit": True}),
    "-f": ("1", {"tf32": True}),
    "-w": ("1", {"master_weights": True}),
    "-ge": ("2", {"gelu_fusion": 2}),
    "-z": ("1", {"zero": 1}),
    "-r": ("2", {"recompute": 2}),
    "-pn": ("16", {"processes": 16}),
    "-pr": ("3", {"process_rank": 3}),
    "-pg": ("8", {"gpus_per_node": 8}),
    "-pi": ("tcp", {"meeting": "tcp"}),
    "-pm": ("mpi", {"meeting": "mpi"}),
    "-pf": ("/shared", {"meeting_folder": "/shared"}),
    "-pp": ("/shared", {"meeting_folder": "/shared"}),
    "-ps": ("10.0.1.220", {"server": "10.0.1.220"}),
}

# What scripts/run_NAME.sh gives the program, each rank of eight; the files' folders shortened.
DATA = "-i data/train_*.bin -j data/val_*.bin -o log"
SCRIPTS = {
    "gpt2_124M": f"{DATA} -v 250 -s 20000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 "
    "-l 0.0006 -q 0.0 -u 700 -n 5000 -y 1 -e d12",
    "gpt2_350M": f"{DATA} -v 250 -s 100000 -g 144 -h 1 -b 64 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 "
    "-l 0.0003 -q 0.0 -u 700 -n 2000 -x 60000 -y 1 -e d24",
    "gpt2_774M": f"{DATA} -v 250 -s 300000 -g 144 -h 1 -b 32 -t 1024 -d 524288 -r 0 -z 1 -c 0.1 "
    "-l 0.00025 -q 0.0 -u 700 -n 4000 -x 286102 -y 1 -e d36",
    "gpt2_1558M": f"{DATA} -v 250 -s 300000 -g 384 -h 1 -b 16 -t 1024 -d 1048576 -r 0 -z 1 -c 0.1 "
    "-k cosine -l 0.0006 -q 0.1 -u 700 -n 2000 -x 32000 -ge 1 -y 1 -e d48",
    "gpt3_125M": f"{DATA} -v 250 -s 20000 -g 144 -h 1 -b 32 -t 2048 -d 524288 -r 0 -z 1 -c 0.1 "
    "-l 0.0006 -q 0.1 -u 700 -n 10000 -nk 5 -nm 50000 -ge 1 -sl 7.0 -sg 7.0 -y 1 -x 572204 "
    "-e gpt3:c768",
}


def typed(flags: Flags) -> dict:
    return {name: v for name, v in dataclasses.asdict(flags).items() if v is not None}


@pytest.mark.parametrize("flag", PARSER)
def test_every_flag_of_llmcs_parser_is_known(flag):
    value, meaning = PARSER[flag]
    beside = {"-i": ["-j", "val*.bin"], "-j": ["-i", "train*.bin"]}.get(flag, [])
    settings = typed(parse([*beside, flag, value]))
    assert {name: settings[name] for name in meaning} == meaning
    assert len(settings) == len(meaning) + len(beside) // 2


DOC = Path(__file__).parents[2] / "doc"
PAGES = [DOC / "training.md", *sorted((DOC / "training").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
(TABLE,) = re.findall(r"^## From llm.c\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
PLACEHOLDERS = {"FLAGS": "-b 4", "MODEL": "d12", "...": "", "…": ""}


def commands_of_the_pages(program):
    """The command lines of the table, and those that stand in blocks of their own."""
    quoted = re.findall(rf"`(?:OMP_NUM_THREADS=8 )?python -m {program} ([^`]*)`", TABLE)
    blocks = re.findall(rf"^    \$ python -m {program} (.*?)(?: +#.*)?$", TEXT, re.MULTILINE)
    return sorted({*quoted, *blocks})


@pytest.mark.parametrize("command", commands_of_the_pages("trainer"))
def test_the_commands_of_the_pages_are_understood(command, capsys):
    words = [w for word in command.split() for w in PLACEHOLDERS.get(word, word).split()]
    if words[0] == "sweep":
        trials, _ = read_trials(words[1:])
        assert len(trials) > 1
    elif words[0].startswith("-"):
        parse(words)
    else:
        with pytest.raises(SystemExit):
            main([words[0], "--help"])
        flags = re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out)
        assert [w for w in words if re.match("--?[a-z]", w) and w not in flags] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_llmcs_scripts_are_understood(name):
    line = SCRIPTS[name]
    flags = parse(line.split())
    written = [word for word in line.split() if word.startswith("-")]
    assert len(typed(flags)) == len(written), "each flag sets something"
    shape = SIZES[flags.model].config.with_vocab(50257)
    config = resolved("cuda", shape.context, **typed(flags))
    assert config.sequence == flags.sequence
    assert config.accumulation == flags.total_tokens // (flags.batch * flags.sequence)
    assert (config.beta2, config.grad_clip, config.dtype) == (0.95, 1.0, "bf16")


@pytest.mark.parametrize(
    ("name", "layers", "heads", "channels", "context"),
    [
        ("gpt2-xl", 48, 25, 1600, 1024),
        ("d6", 6, 6, 384, 1024),
        ("gpt2:d48", 48, 25, 1600, 1024),
        ("gpt3:c384", 6, 6, 384, 2048),
        ("gpt3:c12288", 96, 96, 12288, 2048),
    ],
)
def test_sizes_and_llmcs_descriptors_are_models(name, layers, heads, channels, context):
    shape = SIZES[name].config.with_vocab(50257)
    sizes = shape.layers, shape.heads, shape.channels, shape.context, shape.padded_vocab
    assert sizes == (layers, heads, channels, context, 50304)
    assert shape.refusal() is None and shape.dropout == 0
