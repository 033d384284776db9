#pragma once

#include "decode/append/cpu.h"
#include "decode/attention/cpu.h"

// decode.append of one token, then decode.attention
void decode_append_attention_cpu(
    double* out, double* kv, const double* qkv, const int* positions, int B, int P, int C, int NH) {
    decode_append_cpu(kv, qkv, positions, B, 1, P, C);
    decode_attention_cpu(out, qkv, kv, positions, B, P, C, NH);
}

void decode_append_attention_inputs(int* positions, int B, int P, std::mt19937& random) {
    decode_attention_inputs(positions, B, P, random);
}
