#!/usr/bin/env bash
# GPT-2 350M on 31 billion tokens of FineWeb, in 60,000 steps of 524,288 tokens.
# The settings are those of llm.c's scripts/run_gpt2_350M.sh. Further flags may follow.

source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train gpt2_350M \
    --dataset fineweb-100B \
    -e gpt2:d24 -b 64 -t 1024 -d 524288 -x 60000 \
    -l 0.0003 -u 700 -q 0.0 -c 0.1 \
    -v 250 -h 1 -s 100000 -g 144 \
    -n 2000 -nk 2 "$@"
