"""Which rank a process is, from what launchers set, and from llm.c's flags."""

import pytest

from ladder.core.common.errors import LadderError
from trainer.commands.parser import parse
from trainer.ranks.launch import find_launch, wants_supervisor
from trainer.ranks.supervise import PARENT, stay_with_supervisor

# As the launchers set them; variables that do not count here are among them.
ENVIRONMENTS = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMIX_RANK": "3",
    },
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
    "srun": {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
    },
    # srun starts one torchrun on each machine.
    "torchrun in srun": {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "2",
    },
}


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_the_variables_of_every_launcher_say_which_rank_this_is(launcher, tmp_path):
    launch = find_launch(parse([]), ENVIRONMENTS[launcher], tmp_path)
    assert (launch.rank, launch.size, launch.local_rank) == (3, 4, 1)
    assert launch.folder == tmp_path
    assert launcher.split()[0] in launch.told_by
    assert not wants_supervisor(parse(["--ranks", "4"]), ENVIRONMENTS[launcher])


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0"},  # some clusters set it for purposes of their own
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # the script of sbatch, without srun
    ],
)
def test_one_process_is_alone(environment, tmp_path):
    assert find_launch(parse([]), environment, tmp_path) is None
    assert find_launch(parse(["-pn", "1", "-pr", "0"]), environment, tmp_path) is None


def test_ranks_ask_for_a_supervisor_where_no_launcher_has_started_them():
    assert wants_supervisor(parse(["--ranks", "2"]), {})
    assert wants_supervisor(parse(["--gpus", "2"]), {})
    assert not wants_supervisor(parse(["--ranks", "1"]), {})
    assert not wants_supervisor(parse([]), {})


def test_flags_of_llmc_say_which_rank_this_is(tmp_path):
    words = ["-pn", "16", "-pr", "11", "-pg", "8", "-ps", "10.0.0.1", "-pi", "tcp"]
    launch = find_launch(parse(words), {}, tmp_path)
    assert (launch.rank, launch.size, launch.local_rank) == (11, 16, 3)
    assert (launch.folder, launch.address, launch.port) == (None, "10.0.0.1", 12345)
    other = find_launch(parse(words), {"KERNEL_LADDER_PORT": "4711", "MASTER_PORT": "1"}, tmp_path)
    assert other.port == 4711
    folder = find_launch(parse(["-pn", "2", "-pi", "fs", "-pf", "/shared"]), {}, tmp_path)
    assert (folder.rank, folder.local_rank, str(folder.folder)) == (0, None, "/shared")


@pytest.mark.parametrize("words", ["-pn 4", "-pi mpi", "-pn 2 -pr 0 -pi mpi"])
def test_a_launcher_says_which_of_them_a_process_is_that_is_told_how_many(words, tmp_path):
    launch = find_launch(parse(words.split()), ENVIRONMENTS["Open MPI"], tmp_path)
    assert (launch.rank, launch.size, launch.folder) == (3, 4, tmp_path)


@pytest.mark.parametrize(
    ("words", "environment", "names"),
    [
        ("-pr 1", {}, "-pr 1: .*-pn"),
        ("-pn 2 -pr 2", {}, "-pn 2 -pr 2.* 0 to 1"),
        ("-pn 2", ENVIRONMENTS["torchrun"], "-pn 2 .*WORLD_SIZE=4 .*-pn and -pr "),
        ("-pn 2", {"RANK": "0", "WORLD_SIZE": "1"}, "-pn 2 .*WORLD_SIZE=1 .*-pr "),
        ("--ranks 2", ENVIRONMENTS["srun"], "--ranks 2: .* 4 .*--ranks "),
        ("-pi mpi", {}, "-pi mpi: .*mpirun, --gpus N"),
        ("-pn 2 -pi tcp", {}, "-pi tcp: .*-ps ADDRESS"),
        ("", {"RANK": "first", "WORLD_SIZE": "2"}, "^RANK=first "),
    ],
)
def test_what_does_not_fit_together_is_refused(words, environment, names, tmp_path):
    with pytest.raises(LadderError, match=names):
        find_launch(parse(words.split()), environment, tmp_path)


def test_a_supervisor_that_is_no_process_is_refused():
    with pytest.raises(LadderError, match=f"^{PARENT}=abc "):
        stay_with_supervisor({PARENT: "abc"})
