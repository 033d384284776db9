#!/usr/bin/env bash
# A recipe on several machines of a cluster, submitted in this checkout, which all machines see:
#
#   sbatch recipes/on_slurm.sh gpt2_124M [FLAGS...]
#
# One task for each GPU. The ranks meet in the run's folder. Two minutes before the time is over, the
# run writes a checkpoint and ends; the same command goes on.

#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=8
#SBATCH --time=04:00:00 --signal=TERM@120 --requeue

RUNS=${RUNS:-/shared/runs}                                      # all machines see it
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}             # since 22.05, srun reads this alone
export KERNEL_LADDER_CACHE=${TMPDIR:-/tmp}/kernel-ladder-$USER  # a disk of each machine

launch() {
    srun "$@"
}

source "${SLURM_SUBMIT_DIR:-.}/recipes/${1:?name a recipe, such as gpt2_124M}.sh" "${@:2}"
