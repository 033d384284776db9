#!/usr/bin/env bash
# A recipe on several machines, without a launcher: ssh starts the ranks one by one.
#
#   recipes/on_ssh.sh gpt2_124M [FLAGS...]
#
# Each machine has this checkout at the same path, set up, and ssh enters it without a password.

HOSTS=${HOSTS:-node1 node2}  # start it on the first, which has rank 0
GPUS=${GPUS:-8}              # of each
MEET=${MEET:-fs}             # in the run's folder; tcp: at the first host, without a shared folder
RUNS=${RUNS:-/shared/runs}   # with fs, on a file system that all machines see

launch() {
    local hosts=($HOSTS) rank=0 status=0 stopped="" host gpu job command secret
    secret=$(openssl rand -hex 32)
    trap 'stopped=130; kill $(jobs -p)' INT TERM
    for host in "${hosts[@]}"; do
        for ((gpu = 0; gpu < GPUS; gpu++)); do
            command=$(printf '%q ' "$@" -pi "$MEET" -ps "${hosts[0]}" -pg "$GPUS" \
                -pn $((${#hosts[@]} * GPUS)) -pr "$rank")
            # By standard input: other users can see command lines.
            ssh "$host" "read -r KERNEL_LADDER_SECRET; export KERNEL_LADDER_SECRET
                cd $(printf '%q' "$PWD") && exec $command" <<<"$secret" &
            rank=$((rank + 1))
        done
    done
    for job in $(jobs -p); do
        wait "$job" || status=$?
    done
    trap - INT TERM
    return "${stopped:-$status}"
}

source "$(dirname "$0")/${1:?name a recipe, such as gpt2_124M}.sh" "${@:2}"
