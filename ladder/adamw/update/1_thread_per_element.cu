// adamw update, rung 1: one thread per element
// Before: the NumPy reference, which goes over its arrays once for every operation.
// Change: one thread for each of the N weights does all of its arithmetic in registers. m, v, the
//         weight and the gradient are read once, and what has changed is written once.
// Expect: memory-bound: some twenty operations for 28 bytes or more. Every thread has several loads
//         in flight at once, so even narrow ones may be nearly enough.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: adamw_update<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"
#include "rounding.cuh"

// The values that all elements of a step share.
struct Step {
    float beta1, beta2, eps;
    float grad_scale;   // 1 / loss scale, times the factor of gradient clipping
    float shrink;       // the factor of weight decay
    float rate;         // lr / (1 - beta1^t)
    float correction2;  // 1 - beta2^t
};

// hyper (9): in the order of reference.adamw.HYPER; norm (1): of the gradients, still scaled.
__device__ Step read_step(const float* hyper, const float* norm, float decay) {
    float lr = hyper[0], weight_decay = hyper[4], clip = hyper[5], inv_scale = hyper[8];
    Step s;
    s.beta1 = hyper[1];
    s.beta2 = hyper[2];
    s.eps = hyper[3];
    s.grad_scale = inv_scale;
    if (clip > 0.0f) s.grad_scale *= fminf(1.0f, clip / (norm[0] * inv_scale + 1e-6f));
    s.shrink = 1.0f - lr * weight_decay * decay;
    s.rate = lr / hyper[6];
    s.correction2 = hyper[7];
    return s;
}

// Returns the new weight, and updates m and v.
__device__ float move(float weight, float& m, float& v, float grad, const Step& s) {
    float g = grad * s.grad_scale;
    m = s.beta1 * m + (1.0f - s.beta1) * g;
    v = s.beta2 * v + (1.0f - s.beta2) * g * g;
    return weight * s.shrink - s.rate * m / (sqrtf(v / s.correction2) + s.eps);
}

// Updates a weight, element i of its tensor. `master`, if not null, is its exact value in float32
// (a master weight).
__device__ void move_one(
    real& weight, float& m, float& v, float* master, float grad, const Step& s,
    const unsigned* rng, unsigned stream, size_t i) {
    float exact = move(master != nullptr ? *master : to_float(weight), m, v, grad, s);
    if (master != nullptr) *master = exact;
    weight = rng == nullptr ? to_real(exact) : round_at_random(exact, random_word(rng, stream, i));
}

// The weights are a tensor, or a piece of one from its element `first` on, a multiple of four.
extern "C" __global__ void adamw_update(
    real* __restrict__ weight,        // (N)
    float* __restrict__ m,            // (N)  running average of gradients
    float* __restrict__ v,            // (N)  running average of their squares
    float* __restrict__ master,       // (N)  or null: weight itself is updated
    const float* __restrict__ grad,   // (N)
    const float* __restrict__ norm,   // (1)
    const float* __restrict__ hyper,  // (9)
    const unsigned* __restrict__ rng, // (4)  or null: weights are rounded to nearest
    int N, float decay, unsigned stream, unsigned first) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are weights left
    Step s = read_step(hyper, norm, decay);
    float* exact = master != nullptr ? master + i : nullptr;
    move_one(weight[i], m[i], v[i], exact, grad[i], s, rng, stream, first + i);
}
