"""The kernels that notebook 11 plants into runs, by their op: one is slow, two are wrong.

The notebook shows a kernel once the reader has found its op.
"""

from ladder.core.contract.ladder import find

COLUMNS = r"""// matmul backward_bias: a sum for each column
// Define: WARPS = 4
// Launch: matmul_backward_bias<<<ceil_div(OC, WARPS), WARPS * warp>>>
#include "portable.cuh"

extern "C" __global__ void matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC) {
    int column = blockIdx.x * WARPS + warp_id();
    if (column >= OC) return;  // the whole warp

    float sum = 0.0f;
    for (int row = lane_id(); row < N; row += WARP_SIZE) {
        sum += to_float(dout[(size_t)row * OC + column]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) dbias[column] += sum;
}
"""

TOKENS = r"""// embedding backward: a block for each token
// Define: BLOCK = 64
// Launch: embedding_backward_tokens<<<V, BLOCK>>>
// Launch: embedding_backward_positions<<<T, BLOCK>>>
#include "portable.cuh"

extern "C" __global__ void embedding_backward_tokens(
    float* __restrict__ dwte, float* __restrict__ dwpe,           // (V, C), (P, C)  accumulate
    const real* __restrict__ dout, const int* __restrict__ tokens,  // (B, T, C), (B, T)
    int B, int T, int C, int V, int P) {
    int token = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int bt = 0; bt < B * T; bt++) {
            if (tokens[bt] == token) sum += to_float(dout[(size_t)bt * C + i]);
        }
        dwte[(size_t)token * C + i] = sum;
    }
}

extern "C" __global__ void embedding_backward_positions(
    float* __restrict__ dwte, float* __restrict__ dwpe,
    const real* __restrict__ dout, const int* __restrict__ tokens,
    int B, int T, int C, int V, int P) {
    int t = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int b = 0; b < B; b++) sum += to_float(dout[((size_t)b * T + t) * C + i]);
        dwpe[(size_t)t * C + i] += sum;
    }
}
"""


def slow() -> dict[str, str]:
    """A right kernel, parallel over rows and columns; but lanes read addresses OC apart."""
    return {"matmul.backward_bias": COLUMNS}


def wrong() -> dict[str, str]:
    """Rung 1 without the sum that the gradient of a softmax subtracts."""
    source, line = find("attention.backward").rung(1).source, "prob * (dprob - delta[row])"
    assert source.count(line) == 1
    return {"attention.backward": source.replace(line, "prob * dprob")}


def odd() -> dict[str, str]:
    """Right where the gradient is 0 before. But the model uses the embedding of tokens twice, at
    its beginning and its end, and adds up two gradients."""
    return {"embedding.backward": TOKENS}
