// adamw update: two vectors of weights for each thread
// Needs:  nothing
// Define: BLOCK = 256; QUADS = 2
// Launch: adamw_update<<<ceil_div(N, 4 * BLOCK * QUADS), BLOCK>>>
// After:  2

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

// Four neighbouring weights. A float4 holds four of their float32 companions.
struct alignas(4 * sizeof(real)) Reals {
    real x, y, z, w;
};

__device__ void move_four(
    Reals& weight, float4& m, float4& v, float4* master, float4 g, const Step& s,
    const unsigned* rng, unsigned stream, size_t i) {
    float4 ms = m, vs = v, exact;
    if (master != nullptr) {
        exact = *master;
    } else {
        Reals old = weight;
        exact = {to_float(old.x), to_float(old.y), to_float(old.z), to_float(old.w)};
    }
    exact.x = move(exact.x, ms.x, vs.x, g.x, s);
    exact.y = move(exact.y, ms.y, vs.y, g.y, s);
    exact.z = move(exact.z, ms.z, vs.z, g.z, s);
    exact.w = move(exact.w, ms.w, vs.w, g.w, s);
    m = ms;
    v = vs;
    if (master != nullptr) *master = exact;
    if (rng == nullptr) {
        weight = {to_real(exact.x), to_real(exact.y), to_real(exact.z), to_real(exact.w)};
    } else {
        uint4 words = random_words(rng, stream, (unsigned)(i / 4));
        weight = {round_at_random(exact.x, words.x), round_at_random(exact.y, words.y),
                  round_at_random(exact.z, words.z), round_at_random(exact.w, words.w)};
    }
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
    Step s = read_step(hyper, norm, decay);
#pragma unroll
    for (int k = 0; k < QUADS; k++) {
        size_t i = (((size_t)blockIdx.x * QUADS + k) * BLOCK + threadIdx.x) * 4;
        if (i + 4 <= N && (size_t)grad % 16 == 0) {
            float* exact = master != nullptr ? master + i : nullptr;
            move_four(reinterpret_cast<Reals&>(weight[i]), reinterpret_cast<float4&>(m[i]),
                      reinterpret_cast<float4&>(v[i]), reinterpret_cast<float4*>(exact),
                      reinterpret_cast<const float4&>(grad[i]), s, rng, stream, first + i);
        } else {
            // The last few weights; and all of them where the gradient, a part of the array of all
            // gradients, begins at an address that is not a multiple of 16 bytes.
            for (size_t j = i; j < i + 4 && j < N; j++) {
                float* exact = master != nullptr ? master + j : nullptr;
                move_one(weight[j], m[j], v[j], exact, grad[j], s, rng, stream, first + j);
            }
        }
    }
}
