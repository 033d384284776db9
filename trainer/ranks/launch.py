"""Which process of a group this one is: from flags, or from the variables that launchers set.

    python -m trainer --ranks 8                    sets torchrun's variables itself (supervise.py)
    torchrun --nproc-per-node 8 -m trainer         RANK, WORLD_SIZE, LOCAL_RANK
    mpirun -np 8 python -m trainer                 Open MPI: OMPI_COMM_WORLD_RANK, ...
                                                   MPICH, Intel MPI: PMI_RANK, PMI_SIZE
    srun --ntasks 8 python -m trainer              SLURM_PROCID, SLURM_STEP_NUM_TASKS
    python -m trainer -pn 8 -pr 3                  llm.c's flags, for processes started by hand

The programs of MPI start the processes, and carry no data between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from trainer.flags import Flags

SECRET = "KERNEL_LADDER_SECRET"
FOLDER = "KERNEL_LADDER_RANKS"  # where the processes of a supervisor meet (supervise.py)
PORT = "KERNEL_LADDER_PORT"  # where ranks meet at an address
DEFAULT_PORT = 12345  # llm.c's
MOST_RANKS = 4096


class Launcher(NamedTuple):
    """A program that starts ranks: the variables in which it tells each of them who it is."""

    name: str
    rank: str
    size: str
    local_rank: str


LAUNCHERS = (  # the first that is found counts: torchrun may itself be started by srun
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    Launcher(
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    Launcher("mpirun of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    # Not SLURM_NTASKS: sbatch sets that for the script, too, which is one process.
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


@dataclass(frozen=True)
class RankLaunch:
    """One process of a group, before it knows the others.

    local_rank  its number on its machine; None: follows from the names of the hosts
    told_by     who says so, for messages
    folder      where rank 0 leaves a file that says where it listens; None: at `address`
    alone_on_machine  whether all ranks are known to be on one machine
    """

    rank: int
    size: int
    local_rank: int | None
    told_by: str
    folder: Path | None
    address: str = ""
    port: int = 0
    alone_on_machine: bool = False


def find_launch(flags: Flags, environment: Mapping[str, str], output: Path) -> RankLaunch | None:
    """The process that this one is; None where it is the only one.

    output  the run's folder, where ranks meet if nothing else is said

    Raises LadderError where flags and variables do not fit together.
    """
    typed, launched = _by_flags(flags), _by_launcher(environment)
    by_launcher = flags.process_rank is None or flags.meeting == "mpi"  # where there is one
    if typed is not None and launched is not None and flags.meeting != "mpi":
        otherwise = f"{typed[3]}: {launched[3]} says otherwise"
        if launched[1] not in (1, typed[1]):
            raise LadderError(f"{otherwise}; leave -pn and -pr out")
        if launched[1] < typed[1] and by_launcher:
            raise LadderError(f"{otherwise}; say by -pr which of them each process is")
    identity = (launched if by_launcher else typed) or typed or launched
    if identity is None and flags.meeting == "mpi":
        raise LadderError("-pi mpi: no launcher has started it; use mpirun, --gpus N, or no -pi")
    if identity is None or identity[1] == 1:
        return None
    rank, size, local_rank, told_by = identity
    if not 0 <= rank < size <= MOST_RANKS:
        raise LadderError(f"rank {rank} of {size} ({told_by}): ranks count from 0 to {size - 1}")
    if flags.ranks not in (None, size):
        raise LadderError(
            f"--ranks {flags.ranks}: this process was started as one of {size} ({told_by}); leave "
            "--ranks out"
        )
    if (supervised := environment.get(FOLDER)) is not None:
        return RankLaunch(rank, size, local_rank, told_by, Path(supervised), alone_on_machine=True)
    if flags.meeting != "tcp":
        folder = Path(flags.meeting_folder) if flags.meeting_folder else output
        return RankLaunch(rank, size, local_rank, told_by, folder)
    address = flags.server or environment.get("MASTER_ADDR", "")
    if not address:
        raise LadderError("-pi tcp: name the machine of rank 0 by -ps ADDRESS")
    # Not MASTER_PORT, where torchrun itself listens.
    port = number_in(environment, PORT) or DEFAULT_PORT
    return RankLaunch(rank, size, local_rank, told_by, None, address, port)


def wants_supervisor(flags: Flags, environment: Mapping[str, str]) -> bool:
    """Whether --ranks asks this process to start the ranks, and no launcher has."""
    several = (flags.ranks or 1) > 1
    return several and _by_flags(flags) is None and _by_launcher(environment) is None


def in_group(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started several processes."""
    launched = _by_launcher(environment)
    return launched is not None and launched[1] > 1


Identity = tuple[int, int, int | None, str]  # rank, size, local rank, who says so


def _by_flags(flags: Flags) -> Identity | None:
    if flags.processes is None and flags.process_rank is None:
        return None
    if flags.processes is None:
        raise LadderError(f"-pr {flags.process_rank}: say of how many processes by -pn")
    rank, per_machine = flags.process_rank or 0, flags.gpus_per_node
    local = None if per_machine is None else rank % per_machine
    named = "without -pr" if flags.process_rank is None else f"-pr {rank}"
    return rank, flags.processes, local, f"-pn {flags.processes} {named}"


def _by_launcher(environment: Mapping[str, str]) -> Identity | None:
    for launcher in LAUNCHERS:
        rank = number_in(environment, launcher.rank)
        size = number_in(environment, launcher.size)
        if rank is not None and size is not None:
            local = number_in(environment, launcher.local_rank)
            return rank, size, local, f"{launcher.name}: {launcher.size}={size}"
    return None


def number_in(environment: Mapping[str, str], name: str) -> int | None:
    """A variable that a launcher sets; None where it has not. Raises LadderError for no number."""
    value = environment.get(name, "")
    if value and not value.isdecimal():
        raise LadderError(f"{name}={value} in the environment is no number; a launcher sets it")
    return int(value) if value else None
