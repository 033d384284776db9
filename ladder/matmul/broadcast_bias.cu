// broadcast bias: every row of out becomes the bias
// Change: no rung: it runs before a cuBLAS product that is added to out (library_rungs.py).
// Define: WIDTH = vector if OC % vector == 0 else 1
// Launch: broadcast_bias<<<(ceil_div(OC, WIDTH * 128), min(N, 8 * multiprocessors)), 128>>>

#include "portable.cuh"

struct alignas(WIDTH * sizeof(real)) Piece { real at[WIDTH]; };  // moved by one load or store

extern "C" __global__ void broadcast_bias(
    real* __restrict__ out,         // (N, OC)
    const real* __restrict__ bias,  // (OC)
    int N, int OC) {
    int column = (blockIdx.x * 128 + threadIdx.x) * WIDTH;
    if (column >= OC) return;
    Piece piece = *reinterpret_cast<const Piece*>(bias + column);
    for (int row = blockIdx.y; row < N; row += gridDim.y) {
        *reinterpret_cast<Piece*>(out + (size_t)row * OC + column) = piece;
    }
}
