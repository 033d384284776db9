#!/usr/bin/env bash
# A model of the size of GPT-3 125M on 300 billion tokens of FineWeb, in 572,204 steps of 524,288
# tokens, in sequences of 2,048. Updates whose loss or gradient is an outlier are skipped.
# The settings are those of llm.c's scripts/run_gpt3_125M.sh. Further flags may follow.

source "$(dirname "${BASH_SOURCE[0]}")/train.sh"

train gpt3_125M \
    --dataset fineweb-100B \
    -e gpt3:c768 -b 32 -t 2048 -d 524288 -x 572204 \
    -l 0.0006 -u 700 -q 0.1 -c 0.1 -sl 7.0 -sg 7.0 \
    -v 250 -h 1 -s 20000 -g 144 \
    -n 10000 -nk 5 -nm 50000 "$@"
