#!/usr/bin/env bash
# GPT-2 124M on 10 billion tokens of FineWeb, in 18,865 steps of 524,288 tokens.
# The settings are those of llm.c's scripts/run_gpt2_124M.sh. Further flags may follow.

source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train gpt2_124M \
    --dataset fineweb \
    -e gpt2:d12 -b 64 -t 1024 -d 524288 -x 18865 \
    -l 0.0006 -u 700 -q 0.0 -c 0.1 \
    -v 250 -h 1 -s 20000 -g 144 \
    -n 5000 "$@"
