// adamw update, rung 3: what all weights share, once per thread
// Before: rung 2 starts a thread for every four weights; each reads hyper and norm and divides by
//         them, and divides v by its correction for every weight.
// Change: as many threads as the GPU holds at once walk over the weights together. What depends on
//         the step alone is computed before the loop; sqrt(v / c) = sqrt(v) * (1 / sqrt(c)).
// Expect: a thread's first load no longer waits for hyper, except at the very start; one division
//         less per weight. Bound by memory before and after, so there is little to win.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: adamw_update<<<min(ceil_div(N, 4 * BLOCK), 8 * multiprocessors), BLOCK>>>
// Left:   nothing but the bytes: fewer of them (moments in 16 bits), or none of the gradient's, if
//         whoever computes it last updates the weight on its way.

#include "portable.cuh"

// What all elements of a step share.
struct Step {
    float beta1, beta2, eps;
    float grad_scale;   // undoes the loss scale, and clips
    float shrink;       // what weight decay leaves of a weight
    float rate;         // lr / (1 - beta1^t)
    float root;         // 1 / sqrt(1 - beta2^t)
};

// `hyper` in the order of reference.adamw.HYPER; `norm` is that of the gradients as they are.
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
    s.root = rsqrtf(hyper[7]);
    return s;
}

// The new weight; m and v move too.
__device__ float move(float weight, float& m, float& v, float grad, const Step& s) {
    float g = grad * s.grad_scale;
    m = s.beta1 * m + (1.0f - s.beta1) * g;
    v = s.beta2 * v + (1.0f - s.beta2) * g * g;
    return weight * s.shrink - s.rate * m / (sqrtf(v) * s.root + s.eps);
}

__device__ float4 load4(const float* address) {
    return *reinterpret_cast<const float4*>(address);
}

__device__ void store4(float* address, float4 x) { *reinterpret_cast<float4*>(address) = x; }

// Four neighbouring reals: 8 or 16 bytes.
struct alignas(4 * sizeof(real)) Quad {
    real at[4];
};

__device__ Quad to_quad(float4 x) {
    return {{to_real(x.x), to_real(x.y), to_real(x.z), to_real(x.w)}};
}

__device__ float4 to_float4(Quad x) {
    return {to_float(x.at[0]), to_float(x.at[1]), to_float(x.at[2]), to_float(x.at[3])};
}

__device__ float4 move4(float4 w, float4& m, float4& v, float4 g, const Step& s) {
    return {move(w.x, m.x, v.x, g.x, s), move(w.y, m.y, v.y, g.y, s),
            move(w.z, m.z, v.z, g.z, s), move(w.w, m.w, v.w, g.w, s)};
}

extern "C" __global__ void adamw_update(
    real* __restrict__ weight,        // (N)
    float* __restrict__ m,            // (N)  average of gradients
    float* __restrict__ v,            // (N)  average of their squares
    float* __restrict__ master,       // (N)  or null: weight itself is updated
    const float* __restrict__ grad,   // (N)
    const float* __restrict__ norm,   // (1)
    const float* __restrict__ hyper,  // (9)
    int N, float decay) {
    Step s = read_step(hyper, norm, decay);
    size_t stride = (size_t)gridDim.x * BLOCK * 4;
    for (size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 4; i < N; i += stride) {
        if (i + 4 <= N && (size_t)grad % 16 == 0) {
            float4 ms = load4(m + i), vs = load4(v + i), gs = load4(grad + i);
            if (master != nullptr) {
                float4 ws = move4(load4(master + i), ms, vs, gs, s);
                store4(master + i, ws);
                *reinterpret_cast<Quad*>(weight + i) = to_quad(ws);
            } else {
                Quad& quad = *reinterpret_cast<Quad*>(weight + i);
                quad = to_quad(move4(to_float4(quad), ms, vs, gs, s));
            }
            store4(m + i, ms);
            store4(v + i, vs);
            continue;
        }
        // The last few weights; and all of them where the gradient, a part of the vector of all
        // gradients, begins at an address that is not a multiple of 16 bytes.
        for (size_t j = i; j < min(i + 4, (size_t)N); j++) {
            if (master != nullptr) {
                master[j] = move(master[j], m[j], v[j], grad[j], s);
                weight[j] = to_real(master[j]);
            } else {
                weight[j] = to_real(move(to_float(weight[j]), m[j], v[j], grad[j], s));
            }
        }
    }
}
