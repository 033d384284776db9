// decode linear_gelu, rung 2: gelu in the epilogue
// Before: in rung 1, a second kernel loads each output that the first has stored. The threads of
//         decode.linear rung 5 have the outputs in registers.
// Change: the kernel of decode.linear rung 5, whose threads apply gelu to the outputs before they
//         store them.
// Expect: one launch and one wait for memory less, and nothing else to see: the gelu of a column
//         takes some ten instructions.
// Needs:  C % vector == 0; N <= 8; IN_FLIGHT <= 16
// Define: WARPS = 8; ROWS = N; ENOUGH = 16 * multiprocessors;
//         PARTS = 1 if OC >= 2 * ENOUGH else 2 if OC >= ENOUGH else 4; COLUMNS = WARPS // PARTS;
//         SPAN = PARTS * warp * vector; IN_FLIGHT = ceil_div(C, SPAN)
// Launch: decode_linear_gelu<<<ceil_div(OC, COLUMNS), WARPS * warp>>>
// After:  decode.linear 5
// Left:   the launch and the wait for the weights -> rung 3.

#include "fast_math.cuh"
#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the sigmoid of 2u, as in gelu.forward rung 3.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) decode_linear_gelu(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    __shared__ float parts[ROWS][WARPS];
    int column = blockIdx.x * COLUMNS + warp_id() / PARTS;
    int own = (warp_id() % PARTS * WARP_SIZE + lane_id()) * VECTOR;  // the lane's first channel
    const real* w = weight + (size_t)column * C;                     // (C)

    Vec factors[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        factors[j] = own + j * SPAN < C && column < OC ? load_vec(w + own + j * SPAN) : Vec{};
    }
    int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;  // an output of this thread
    int to = blockIdx.x * COLUMNS + c;
    float offset = to < OC ? to_float(bias[to]) : 0.0f;

#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        Vec xs[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            bool inside = own + j * SPAN < C;
            xs[j] = inside ? load_vec(inp + (size_t)row * C + own + j * SPAN) : Vec{};
        }
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            for (int k = 0; k < VECTOR; k++) {
                sum += to_float(xs[j][k]) * to_float(factors[j][k]);
            }
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) parts[row][warp_id()] = sum;
    }
    __syncthreads();  // all warps have left their parts before they are added up
    if (r < ROWS && to < OC) {
        float sum = offset;
        for (int part = 0; part < PARTS; part++) {
            sum += parts[r][c * PARTS + part];
        }
        out[(size_t)r * OC + to] = to_real(gelu(sum));
    }
}
