#!/usr/bin/env bash
# GPT-2 774M on 150 billion tokens of FineWeb, in 286,102 steps of 524,288 tokens.
# The settings are those of llm.c's scripts/run_gpt2_774M.sh. Further flags may follow.

source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train gpt2_774M \
    --dataset fineweb-100B \
    -e gpt2:d36 -b 32 -t 1024 -d 524288 -x 286102 \
    -l 0.00025 -u 700 -q 0.0 -c 0.1 \
    -v 250 -h 1 -s 300000 -g 144 \
    -n 4000 -nk 2 "$@"
