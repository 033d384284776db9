"""Settings, their flags, and how a wrong one is refused."""

import dataclasses
import errno
import json
import os
import re
import subprocess
import sys

import pytest

from ladder.core.common.command_line import run
from ladder.core.common.errors import LadderError
from tests.trainer.tiny import resolved, resolved_kernels
from trainer import flags
from trainer.commands import completion
from trainer.commands.parser import parse
from trainer.data.datasets import prepare
from trainer.flags import Flags
from trainer.model import fusion


def test_what_is_not_typed_is_none():
    assert parse([]) == Flags()
    assert set(dataclasses.asdict(Flags()).values()) == {None}


def test_every_setting_has_a_long_flag_that_sets_it():
    values = {
        "rung": ("matmul.forward@C:768=a=b.cu", {"matmul.forward@C:768": "a=b.cu"}),
        "fuse": ("none", "none"),
        "report_to": ("wandb", "wandb"),
    }
    for f in dataclasses.fields(Flags):
        flag, choices, kind = f.metadata["names"][0], f.metadata.get("choices"), str(f.type)
        assert flag.startswith("--")
        if "bool" in kind:
            words, expected = [], not flag.startswith("--no-")
        else:
            number = (choices or ["some"])[-1] if "str" in kind else 0.5 if "float" in kind else 1
            word, expected = values.get(f.name, (str(number), number))
            words = [word]
        assert getattr(parse([flag, *words]), f.name) == expected, flag


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("-b 0", "--batch/-b"),
        ("-l 0", "--lr/-l"),
        ("-l nan", "--lr/-l"),
        ("-q 2", "--final-lr/-q"),
        ("-k cosin", "--schedule/-k"),
        ("-k constant -u 5", "-k linear"),
        ("-y 2", "--resume/-y"),
        ("--beta2 1", "--beta2"),
        ("--grad-clip -1", "--grad-clip"),
        ("--seed -1", "--seed"),
        ("--dtype int8", "--dtype"),
        ("--llmc-order --no-shuffle", "--llmc-order"),
        ("--random-offsets --no-shuffle", "--random-offsets"),
        ("--random-offsets --llmc-order", "--random-offsets"),
        ("--eval-train -a 1", "--overfit"),
        ("--rung gelu", "OP=FILE.cu"),
        ("--rung gelu.forward@N=1", "gelu.forward@N"),
        ("--rung gelu.forward=1 --rung gelu.forward=2", "gelu.forward"),
        ("--fuse nonsense", "--fuse"),
        ("--fuse matmul_gelu,none", "--fuse"),
        (f"-d {1 << 40}", str(1 << 31)),
        ("--bacth 4", "--batch"),
        ("--learning 4", "--learning"),
        ("-x 5 play", "'play'"),
        ("--output=", "--output/-o"),
        ("--model=", "--model/-e"),
    ],
)
def test_a_wrong_value_is_refused_by_flag_and_remedy(line, names):
    with pytest.raises(LadderError) as refused:
        parse(line.split())
    assert names in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_shell_completes_flags_and_commands():
    pytest.importorskip("shtab")
    script = completion.script("bash", {"chat": "trainer.commands.chat"})
    for words, known in (("ch", "chat"), ("chat --te", "--temperature"), ("--dtype b", "bf16")):
        line = (
            f"COMP_WORDS=(_ {words}); COMP_CWORD={1 + words.count(' ')}; _shtab_kernel_ladder_train"
        )
        command = ["bash", "-c", f'{script}\n{line}; echo "${{COMPREPLY[@]}}"']
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [known]


def test_later_flags_replace_those_of_a_config_op_by_op(tmp_path):
    path = tmp_path / "config.json"
    before = parse(["--rung", "gelu.forward=1", "--rung", "a=b.cu", "--no-plot", "-x", "-1", "-f"])
    path.write_text(json.dumps({"flags": before.typed, "steps": 40}))
    assert parse(["--config", str(path)]) == before
    after = parse(["--config", str(path), "--rung", "gelu.forward=2", "-f", "0", "--prompt", "-"])
    rung = {"gelu.forward": "2", "a": "b.cu"}
    assert after == dataclasses.replace(before, rung=rung, tf32=False, prompt="-")
    assert parse(["--config", str(tmp_path)]) == before  # the folder of the run


def test_a_config_says_which_text_has_changed_since(tmp_path, capsys):
    (text := tmp_path / "book.txt").write_text("bell")
    files = prepare(str(text), tmp_path, "bytes").train
    record = {"flags": {"dataset": str(text)}, "train_data": files}
    (tmp_path / "config.json").write_text(json.dumps(record))
    for now, other, notes in (("bell", (), 0), ("tower", ("--dataset", "play"), 0), ("sea", (), 1)):
        text.write_text(now)
        parse(["--config", str(tmp_path), *other])
        assert capsys.readouterr().err.count(str(text)) == notes


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "line 1 column 2"),
        ('{"flags": [1]}', '"flags"'),
        ('{"n_layer": 12}', '"flags"'),
        ('{"flags": {"bacth": 4}}', "--batch?"),
        ('{"flags": {"batch": [4]}}', "--batch/-b: "),
        ('{"flags": {"rung": 3}}', "--rung 3: "),
    ],
)
def test_a_config_that_is_no_runs_is_refused_in_one_line(tmp_path, text, names):
    (path := tmp_path / "config.json").write_text(text)
    with pytest.raises(LadderError) as refused:
        parse(["--config", str(path)])
    assert str(refused.value).startswith(f"--config {path}: ") and names in str(refused.value)


def test_the_names_that_flags_know_are_those_of_what_there_is():
    assert tuple(fusion.FUSIONS) == flags.FUSIONS  # in this order


@pytest.mark.parametrize("words", [["-h"], ["-b", "8", "-h"], ["-h", "-b", "8"]])
def test_h_alone_asks_for_help_and_with_a_value_for_hellaswag(capsys, words):
    assert parse(["-h", "1", "-b", "8"]) == Flags(hellaswag=True, batch=8)
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 0
    assert "--learning" not in (out := capsys.readouterr().out)
    assert re.search(r"--batch( N)?, -b N", out)  # Python 3.13 names the value once


def test_the_device_fills_in_what_was_left_open():
    cpu, cuda = resolved("cpu"), resolved("cuda")
    assert (cpu.batch, cpu.sequence, cpu.steps, cpu.lr) == (4, 64, 40, 1e-4)
    assert (cuda.batch, cuda.sequence, cuda.lr) == (4, 1024, 1e-4)
    assert cuda.steps == (1 << 20) // 4096  # an epoch of so many tokens
    assert cpu.total_tokens == 256
    assert resolved("cpu", batch=3).batch == 3


@pytest.mark.parametrize("kind", ["cpu", "emulated", "cuda"])
def test_a_resolved_run_leaves_nothing_open(kind):
    config, wanted = resolved(kind), resolved_kernels(kind)
    assert None not in dataclasses.asdict(config).values()
    assert None not in dataclasses.asdict(wanted).values()
    assert -1 not in (config.steps, config.total_tokens)
    assert resolved(kind, steps=-1, total_tokens=1 << 22).steps == 1  # more than the data has


def test_the_default_length_fits_a_short_context_but_a_given_one_is_held_to_it():
    assert resolved("cuda", 256).sequence == 256
    with pytest.raises(LadderError, match=r"^-t 512 .* -t 256 "):
        resolved("cuda", 256, sequence=512)


def test_accumulation_is_counted_and_must_come_out_even():
    config = resolved("cpu", 64, batch=2, sequence=8, total_tokens=48)
    assert config.accumulation == 3
    with pytest.raises(LadderError, match=r"-d 50 .*-d 48"):
        resolved("cpu", 64, batch=2, sequence=8, total_tokens=50)


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"steps": 0}, "-x 0"), ({"val_batches": 0}, "-m 0"), ({"dtype": "fp16"}, "-w 0")],
)
def test_settings_that_do_not_go_together_are_refused(changes, names):
    with pytest.raises(LadderError, match=names):
        resolved("cpu", 64, master_weights=False, **changes)


def test_the_command_prints_one_line_and_exits_with_2():
    command = [sys.executable, "-m", "trainer", "trian"]
    done = subprocess.run(command, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("error: ") and "'trian'" in line


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (IsADirectoryError(errno.EISDIR, "Is a directory", "there"), "there: Is a directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (MemoryError("Unable to allocate 10.1 MiB"), "Unable to allocate 10.1 MiB"),
        (RuntimeError("can't start new thread"), "ulimit -u"),  # Python's words
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
    ],
)
def test_what_the_system_refuses_is_one_line(capsys, error, names):
    def main(argv):
        raise error

    assert run(main, []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and names in line


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a bug"), OSError("about no file"), BlockingIOError(errno.EAGAIN, "write", 0)],
)
def test_an_error_that_is_a_bug_is_raised_again(error):
    def main(argv):
        raise error

    with pytest.raises(type(error)) as raised:
        run(main, [])
    assert raised.value is error
