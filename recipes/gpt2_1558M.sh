#!/usr/bin/env bash
# GPT-2 1558M on 34 billion tokens of FineWeb-Edu, in 32,000 steps of 1,048,576 tokens.
# The settings are those of llm.c's scripts/run_gpt2_1558M.sh. Further flags may follow.

source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train gpt2_1558M \
    --dataset fineweb-edu-100B \
    -e gpt2:d48 -b 16 -t 1024 -d 1048576 -x 32000 \
    -k cosine -l 0.0006 -u 700 -q 0.1 -c 0.1 \
    -v 250 -h 1 -s 300000 -g 384 \
    -n 2000 -nk 2 "$@"
