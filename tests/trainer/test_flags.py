"""Settings, their flags, and how a wrong one is refused."""

import dataclasses
import errno
import os
import re
import subprocess
import sys

import pytest

from ladder.core.common.errors import LadderError
from tests.trainer.tiny import resolved, resolved_kernels
from trainer import flags
from trainer.__main__ import COMMANDS
from trainer.commands import sample
from trainer.commands.command import run
from trainer.commands.parser import parse
from trainer.engine import schedule
from trainer.flags import FUSIONS, Flags
from trainer.model import fusion


def test_what_is_not_typed_is_none():
    assert parse([]) == Flags()
    assert set(dataclasses.asdict(Flags()).values()) == {None}


def test_an_llmc_command_line_works():
    """The reproduction of GPT-2 124M in llm.c's scripts, on two machines of eight GPUs."""
    line = (
        "-i train*.bin -j val*.bin -o log124M -v 250 -s 20000 -g 144 -b 64 -t 1024 -d 524288 "
        "-c 0.1 -l 0.0006 -q 0.0 -u 700 -n 5000 -nk 5 -nm 50000 -y 1 -e d12 -k cosine -x -1 "
        "-m 20 -a 0 -w 1 -sl 7.0 -sg 7.0 -r 0 -z 1 -h 1 "
        "-pn 16 -pr 3 -pg 8 -ps 10.0.0.1 -pi tcp"
    )
    expected = Flags(
        train_data="train*.bin",
        val_data="val*.bin",
        output="log124M",
        val_every=250,
        sample_every=20000,
        sample_tokens=144,
        batch=64,
        sequence=1024,
        total_tokens=524288,
        weight_decay=0.1,
        lr=0.0006,
        final_lr=0.0,
        warmup=700,
        checkpoint_every=5000,
        keep=5,
        major_every=50000,
        resume=True,
        recompute=0,
        model="d12",
        schedule="cosine",
        steps=-1,
        val_batches=20,
        hellaswag=True,
        overfit=False,
        master_weights=True,
        loss_outlier=7.0,
        grad_outlier=7.0,
        zero=1,
        processes=16,
        process_rank=3,
        gpus_per_node=8,
        meeting="tcp",
        server="10.0.0.1",
    )
    assert parse(line.split()) == expected


def test_every_setting_has_a_long_flag_that_sets_it():
    values = {
        "shuffle": ([], False),
        "plot": ([], False),
        "overfit": ([], True),
        "recompute": (["2"], 2),
        "zero": (["0"], 0),
        "overlap": ([], True),
        "exchange": (["p2p"], "p2p"),
        "deterministic": ([], True),
        "tf32": ([], True),
        "debug_nan": ([], True),
        "debug_sync": ([], True),
        "resume": ([], True),
        "hellaswag": ([], True),
        "master_weights": (["0"], False),
        "stochastic_rounding": ([], True),
        "llmc_order": ([], True),
        "random_offsets": ([], True),
        "eval_train": ([], True),
        "rung": (["gelu.forward=1"], {"gelu.forward": "1"}),
        "steps": (["-1"], -1),
        "fuse": (["residual_layernorm"], "residual_layernorm"),
        "gelu_fusion": (["1"], 1),
    }
    for f in dataclasses.fields(Flags):
        flag = f.metadata["names"][0]
        assert flag.startswith("--")
        if f.name in values:
            words, expected = values[f.name]
        elif "choices" in f.metadata:
            expected = f.metadata["choices"][-1]
            words = [expected]
        elif "str" in str(f.type):
            words, expected = ["some"], "some"
        elif "float" in str(f.type):
            words, expected = ["0.5"], 0.5
        else:
            words, expected = ["3"], 3
        assert getattr(parse([flag, *words]), f.name) == expected, flag


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("-b 0", "--batch/-b must be at least 1, not 0"),
        ("-b two", "--batch/-b: must be a whole number, not 'two'"),
        ("-b", "--batch/-b: expected one argument"),
        ("-l 0", "--lr/-l must be above 0.0"),
        ("-l nan", "--lr/-l must be finite"),
        ("-l x", "--lr/-l: must be a number, not 'x'"),
        ("-q 2", "--final-lr/-q must be at most 1.0"),
        ("-k cosin", "--schedule/-k must be one of cosine, linear, constant, wsd, not 'cosin'"),
        ("-k constant -u 5", "constant schedule has no warm-up"),
        ("-y 2", "--resume/-y: must be 0 or 1"),
        ("--beta2 1", "--beta2 must be below 1.0"),
        ("--grad-clip -1", "--grad-clip must be at least 0"),
        ("--seed -1", "--seed must be at least 0"),
        ("--dtype int8", "--dtype must be one of fp32, fp16, bf16"),
        ("--llmc-order --no-shuffle", "--llmc-order is a shuffled order"),
        ("--random-offsets --no-shuffle", "--random-offsets and --no-shuffle are two orders"),
        ("--random-offsets --llmc-order", "--random-offsets and --llmc-order are two orders"),
        ("--eval-train -a 1", "--overfit trains on validation text"),
        ("--rung gelu", "write OP=N or OP=FILE.cu"),
        ("--rung gelu.forward=1 --rung gelu.forward=2", "choose one of them"),
        ("--fuse nonsense", "--fuse nonsense: choose auto, none or all, or fusions"),
        ("--fuse matmul_gelu,none", "--fuse matmul_gelu,none: choose auto, none or all"),
        (f"-d {1 << 40}", "--total-tokens/-d must be at most"),
        ("--bacth 4", "did you mean --batch?"),
        ("--learning 4", "there is no flag --learning"),
        ("--dataset play -j a_val.bin", "-j a_val.bin would train on the train files beside it"),
        ("-x 5 play", "'play' is one word too many"),
        ("--output=", "--output/-o must not be empty"),
        ("--model=", "--model/-e must not be empty"),
    ],
)
def test_a_wrong_value_is_refused_by_flag_and_remedy(line, says):
    with pytest.raises(LadderError) as refused:
        parse(line.split())
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_names_that_flags_know_are_those_of_what_there_is():
    assert set(flags.SCHEDULES) == set(schedule.SCHEDULES)
    assert tuple(fusion.FUSIONS) == flags.FUSIONS  # in this order


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"Other commands: {', '.join(COMMANDS)}, each with its own --help." in text


@pytest.mark.parametrize("words", [["-h"], ["-b", "8", "-h"], ["-h", "-b", "8"]])
def test_h_alone_asks_for_help_and_with_a_value_for_hellaswag(capsys, words):
    assert parse(["-h", "1", "-b", "8"]) == Flags(hellaswag=True, batch=8)
    with pytest.raises(SystemExit) as left:
        parse(words)
    assert left.value.code == 0
    assert "--learning" not in (out := capsys.readouterr().out)
    assert re.search(r"--batch( N)?, -b N", out)  # Python 3.13 names the value once


def test_another_command_takes_h_for_help_too(capsys):
    with pytest.raises(SystemExit) as left:
        sample.parse(["-h"])
    assert left.value.code == 0
    assert "--temperature" in (out := capsys.readouterr().out) and "--lr" not in out


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


def test_what_fusions_are_wanted_is_settled_one_by_one():
    def fuse(**typed):
        return list(resolved_kernels("cpu", **typed).fuse.values())

    before = FUSIONS.index("matmul_gelu")  # and behind it matmul_gelu_backward
    behind = len(FUSIONS) - before - 2

    def around(answer, *gelu):
        return [answer] * before + [*gelu] + [answer] * behind

    assert fuse() == ["auto"] * len(FUSIONS)
    assert fuse(fuse="all") == ["yes"] * len(FUSIONS)
    assert fuse(fuse="none") == ["no"] * len(FUSIONS)
    assert fuse(fuse="matmul_gelu") == around("no", "yes", "no")
    assert fuse(gelu_fusion=1) == around("auto", "yes", "no")
    assert fuse(gelu_fusion=2) == around("auto", "yes", "yes")
    assert fuse(fuse="all", gelu_fusion=0) == around("yes", "no", "no")


def test_the_default_length_fits_a_short_context_but_a_given_one_is_held_to_it():
    assert resolved("cuda", 256).sequence == 256
    with pytest.raises(LadderError, match="choose -t 256 or less"):
        resolved("cuda", 256, sequence=512)


def test_accumulation_is_counted_and_must_come_out_even():
    config = resolved("cpu", 64, batch=2, sequence=8, total_tokens=48)
    assert config.accumulation == 3
    with pytest.raises(LadderError, match=r"-d 50 is no multiple of .* choose e\.g\. -d 48"):
        resolved("cpu", 64, batch=2, sequence=8, total_tokens=50)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"steps": 0}, "-x 0"), ({"val_batches": 0}, "-m 0"), ({"dtype": "fp16"}, "-w 0")],
)
def test_settings_that_do_not_go_together_are_refused(changes, says):
    with pytest.raises(LadderError, match=says):
        resolved("cpu", 64, master_weights=False, **changes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-b", "0"], "error: --batch/-b must be at least 1, not 0\n"),
        (
            ["trian"],
            "error: unknown command 'trian'; the commands are prepare, doctor, ",
        ),
        (["-e", "no/such.bin", "--device", "cpu"], "error: -e no/such.bin: no such file or folder"),
    ],
)
def test_the_command_prints_one_line_and_exits_with_2(words, says, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "trainer", "--dataset", "play", "--tokenizer", "bytes", *words]
        if words[0].startswith("-")
        else [sys.executable, "-m", "trainer", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "KERNEL_LADDER_DATA": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


def test_a_path_that_the_system_refuses_is_one_line_too(tmp_path, capsys):
    def look(path):
        return lambda argv: open(path)

    assert run(look(tmp_path), []) == 2
    says = f"error: {tmp_path}: Is a directory; fix the path or its permissions\n"
    assert capsys.readouterr().err == says
    assert run(look("a" * 300), []) == 2
    assert capsys.readouterr().err.startswith("error: aaa")
    with pytest.raises(OSError, match="about no file"):  # not a user's to put right: a bug
        run(lambda argv: (_ for _ in ()).throw(OSError("about no file")), [])


def test_output_to_a_full_disk_is_one_line(capsys):
    def main(argv):
        with open("/dev/full", "w") as file:
            print("a step", file=file, flush=True)

    assert run(main, []) == 2
    says = "error: the output cannot be written: No space left on device; make room where it goes\n"
    assert capsys.readouterr().err == says


def test_memory_that_runs_out_in_passing_is_one_line(capsys):
    def main(argv):
        raise MemoryError("Unable to allocate 10.1 MiB for an array")

    assert run(main, []) == 2
    says = "error: out of memory (Unable to allocate 10.1 MiB for an array); choose a smaller batch"
    assert capsys.readouterr().err.startswith(says)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),  # Python's words
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),  # of fork
    ],
)
def test_a_limit_on_threads_or_processes_is_one_line(capsys, error):
    def main(argv):
        raise error

    says = "the system starts no more threads or processes; raise the limit (ulimit -u, or the "
    assert run(main, []) == 2
    assert capsys.readouterr().err == f"error: {says}container's), or end others\n"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug"),
        BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0),
    ],
)
def test_other_errors_of_these_types_are_raised_again(error):
    def main(argv):
        raise error

    with pytest.raises(type(error)) as raised:
        run(main, [])
    assert raised.value is error
