#!/usr/bin/env bash
# A recipe on several machines, started on one of them by Open MPI's mpirun:
#
#   recipes/on_mpirun.sh gpt2_124M [FLAGS...]
#
# Each machine has this checkout at the same path, set up. The ranks meet in the run's folder.

HOSTS=${HOSTS:-node1:8,node2:8}  # each with its number of GPUs
RUNS=${RUNS:-/shared/runs}       # on a file system that all machines see

launch() {  # one process in each slot of the hosts
    mpirun --host "$HOSTS" -x PATH "$@" -pi mpi
}

source "$(dirname "$0")/${1:?name a recipe, such as gpt2_124M}.sh" "${@:2}"
