// adamw update, rung 2: 16-byte loads and stores
// Before: rung 1 moves 2 or 4 bytes per lane and instruction.
// Change: a thread owns four neighbouring weights, and moves each of their float32 companions with
//         one 16-byte access. Where N is not a multiple of four, the last few are taken one by one.
// Expect: a quarter of the memory instructions, four times the bytes in flight per warp, and a
//         quarter of the threads to read `hyper` and divide by the norm.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: adamw_update<<<ceil_div(N, 4 * BLOCK), BLOCK>>>
// Left:   two divisions and a root per weight, and hyper anew in every thread -> rung 3.

#include "portable.cuh"

// What all elements of a step share.
struct Step {
    float beta1, beta2, eps;
    float grad_scale;   // undoes the loss scale, and clips
    float shrink;       // what weight decay leaves of a weight
    float rate;         // lr / (1 - beta1^t)
    float correction2;  // 1 - beta2^t
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
    s.correction2 = hyper[7];
    return s;
}

// The new weight; m and v move too.
__device__ float move(float weight, float& m, float& v, float grad, const Step& s) {
    float g = grad * s.grad_scale;
    m = s.beta1 * m + (1.0f - s.beta1) * g;
    v = s.beta2 * v + (1.0f - s.beta2) * g * g;
    return weight * s.shrink - s.rate * m / (sqrtf(v / s.correction2) + s.eps);
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
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 4;
    Step s = read_step(hyper, norm, decay);
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
        return;
    }
    // The last few weights; and all of them where the gradient, a part of the vector of all
    // gradients, begins at an address that is not a multiple of 16 bytes.
    for (size_t end = min(i + 4, (size_t)N); i < end; i++) {
        if (master != nullptr) {
            master[i] = move(master[i], m[i], v[i], grad[i], s);
            weight[i] = to_real(master[i]);
        } else {
            weight[i] = to_real(move(to_float(weight[i]), m[i], v[i], grad[i], s));
        }
    }
}
