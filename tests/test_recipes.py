"""The recipes have the settings of llm.c's scripts, and go on after a crash."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.ranks.test_meeting import free_port
from tests.trainer.test_llmc_commands import SCRIPTS
from tests.trainer.tiny import save_model
from trainer.commands.parser import parse

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.stem for path in (ROOT / "recipes").glob("gpt*.sh"))


def start(recipe, tmp_path, behaviour, *flags, **environment):
    """Run a recipe with a trainer of our own: a shell script that is given the attempt's number
    and the run's folder."""
    trainer = tmp_path / "python"
    trainer.write_text(
        "#!/bin/sh\n"
        f'printf "%s\\n" "$@" > {tmp_path}/words; echo x >> {tmp_path}/attempts\n'
        f"attempt=$(wc -l < {tmp_path}/attempts); folder={tmp_path}/recipes/../runs/{recipe}\n"
        f"{behaviour}\n"
    )
    trainer.chmod(0o755)
    (tmp_path / "recipes").mkdir()
    for name in ("train", recipe):
        text = (ROOT / "recipes" / f"{name}.sh").read_text(encoding="utf-8")
        (tmp_path / "recipes" / f"{name}.sh").write_text(text, encoding="utf-8")
    common = {"PYTHON": str(trainer), "PAUSE": "0", "TOKENS": "/tokens", "GPUS": "8"}
    return subprocess.run(
        ["bash", str(tmp_path / "recipes" / f"{recipe}.sh"), *flags],
        env={"PATH": os.environ["PATH"], **common, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def attempts(tmp_path):
    return len((tmp_path / "attempts").read_text().splitlines())


def test_there_is_a_recipe_for_every_script_of_llmc_that_trains_a_model_of_its_own():
    assert set(SCRIPTS) == set(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_the_settings_of_llmc(recipe, tmp_path):
    done = start(recipe, tmp_path, "exit 0", "--seed", "5")
    assert (done.returncode, done.stderr) == (0, "")
    module, trainer, *words = (tmp_path / "words").read_text().splitlines()
    assert (module, trainer) == ("-m", "trainer")
    ours, llmc = parse(words), parse(SCRIPTS[recipe].split())
    assert ours.seed == 5, "flags can be added"
    assert (ours.ranks, ours.output) == (8, f"runs/{recipe}")
    assert ours.train_data == "/tokens/*train*.bin"
    same = (
        *("batch", "sequence", "total_tokens", "lr", "warmup", "final_lr", "weight_decay"),
        *("val_every", "hellaswag", "sample_every", "sample_tokens", "checkpoint_every", "resume"),
        *("loss_outlier", "grad_outlier", "major_every"),
    )
    for name in same:
        assert getattr(ours, name) == getattr(llmc, name), name
    assert ours.model in (llmc.model, f"gpt2:{llmc.model}")
    assert ours.value("schedule") == llmc.value("schedule")
    if llmc.steps is not None:  # without, it trains for an epoch
        assert ours.steps == llmc.steps


@pytest.mark.parametrize(
    ("recipe", "dataset"),
    [("gpt2_124M", "fineweb"), ("gpt2_1558M", "fineweb-edu-100B"), ("gpt3_125M", "fineweb-100B")],
)
def test_without_token_files_a_recipe_prepares_its_data_set(recipe, dataset, tmp_path):
    assert start(recipe, tmp_path, "exit 0", TOKENS="").returncode == 0
    flags = parse((tmp_path / "words").read_text().splitlines()[2:])
    assert (flags.dataset, flags.train_data) == (dataset, None)


def test_after_a_crash_it_goes_on_as_long_as_there_are_new_checkpoints(tmp_path):
    crashes = "mkdir -p $folder/step_0000000$attempt; [ $attempt -ge 5 ] || exit 139"
    done = start("gpt2_124M", tmp_path, crashes)
    assert done.returncode == 0
    assert attempts(tmp_path) == 5
    assert len(re.findall(" 139: .* runs/gpt2_124M/step_", done.stderr)) == 4


@pytest.mark.parametrize(
    ("behaviour", "status", "tries"),
    [
        ("exit 139", 139, 3),  # crashes without a checkpoint
        ("exit 2", 2, 1),  # a wrong flag
        ("mkdir -p $folder/step_00000001; exit 2", 2, 2),  # a fault of the GPU, and again
        ("exit 130", 130, 1),  # Ctrl-C
    ],
)
def test_it_gives_up_where_another_attempt_is_of_no_use(tmp_path, behaviour, status, tries):
    done = start("gpt2_124M", tmp_path, behaviour)
    assert done.returncode == status
    assert attempts(tmp_path) == tries


# What stands in for a launcher: it starts the ranks of two machines, of one GPU each, here.
RANKS = """
    for rank in 0 1; do env $1=$rank $2=2 "${@:3}" & ranks="$ranks $!"; done
    for rank in $ranks; do wait $rank || exit $?; done"""
LAUNCHERS = {
    "mpirun": '[ "$1 $2 $3 $4" = "--host node1:1,node2:1 -x PATH" ] || exit 9; shift 4'
    f'; set -- OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE "$@"{RANKS}',
    "srun": '[ "$SRUN_CPUS_PER_TASK" = 2 ] || exit 9'
    f'; set -- SLURM_PROCID SLURM_STEP_NUM_TASKS "$@"{RANKS}',
    "ssh": '[ "$1" = localhost ] || exit 9; exec bash -c "cd /; $2"',
}


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "launcher", "settings"),
    [
        ("on_mpirun", "mpirun", {"HOSTS": "node1:1,node2:1"}),
        ("on_slurm", "srun", {"SLURM_CPUS_PER_TASK": "2"}),
        ("on_ssh", "ssh", {"HOSTS": "localhost localhost", "GPUS": "1", "MEET": "tcp"}),
    ],
)
def test_a_recipe_trains_on_several_machines(script, launcher, settings, tmp_path):
    (tmp_path / launcher).write_text(f"#!/usr/bin/env bash\n{LAUNCHERS[launcher]}\n")
    (tmp_path / launcher).chmod(0o755)
    model = save_model(tmp_path / "model")
    tiny = f"-e {model} --dataset play --tokenizer bytes --data-dir {tmp_path} -b 1 -t 16 -d 32 "
    tiny += "-x 2 -u 0 -v 0 -m 1 -s 0 -h 0 -n 2 --device cpu --no-plot --no-model"
    own = {"PYTHON": sys.executable, "RUNS": str(tmp_path), "KERNEL_LADDER_PORT": str(free_port())}
    own |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [ROOT / "recipes" / f"{script}.sh", "gpt2_124M", *tiny.split()],
        env={**os.environ, **own, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks" in done.stdout
    assert (tmp_path / "gpt2_124M" / "step_00000002").is_dir()
