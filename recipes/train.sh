# What the recipes share: training that resumes after a crash. They source this file and call
#
#   train NAME FLAGS...
#
# which runs `python -m trainer FLAGS...` into $RUNS/NAME until it has taken its last step. After a
# crash it goes on from the newest checkpoint. It gives up where a flag or a file is wrong, and
# after three attempts that have left no new checkpoint. Ctrl-C ends it; the same command resumes.
#
#   TOKENS=FOLDER  take the token files of this folder, *train*.bin and *val*.bin, not --dataset
#   GPUS=N         train on so many; default all that nvidia-smi lists
#   RUNS=FOLDER    where the run's folder is; default runs
#   PYTHON=PATH    default .venv/bin/python
#   PAUSE=SECONDS  between a crash and the next attempt; default 10
#
# Where `launch` is a function, it starts the ranks, on several machines (on_*.sh): `launch COMMAND`.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

train() {
    local folder=${RUNS:-runs}/$1 data=() failures=0 status before after
    shift
    [ -n "${TOKENS:-}" ] && data=(-i "$TOKENS/*train*.bin" -j "$TOKENS/*val*.bin")
    local gpus=${GPUS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')}
    [ "$gpus" -ge 1 ] || gpus=1
    local run=("${PYTHON:-.venv/bin/python}" -m trainer)
    if [ "$(type -t launch)" = function ]; then run=(launch "${run[@]}"); else run+=(--gpus "$gpus"); fi

    while :; do
        before=$(newest "$folder")
        "${run[@]}" "${data[@]}" -o "$folder" -y 1 "$@"
        status=$?
        after=$(newest "$folder")
        [ "$after" != "$before" ] && failures=0 || failures=$((failures + 1))
        case $status in
            0 | 130 | 143) return $status ;;              # done; Ctrl-C; SIGTERM
            2) [ "$failures" -eq 0 ] || return 2 ;;       # the message names what to fix
            *) [ "$failures" -lt 3 ] || return $status ;;
        esac
        echo "status $status: resuming from ${after:-the start} in ${PAUSE:-10} s" >&2
        sleep "${PAUSE:-10}"
    done
}

newest() {  # the folder of the newest checkpoint of a run; nothing if there is none
    find "$1" -maxdepth 1 -name 'step_*' 2>/dev/null | sort | tail -n 1
}
