// The functions of <math.h> that the rungs use. tests/ladder/core/device/test_hip_math.py compiles this
// file for the CPU, too, and test_hip_math_executed.py executes its machine code; both measure the
// errors against float64.
#pragma once

// ---- by the compiler: LLVM expands these into v_exp_f32, v_log_f32, v_sqrt_f32 and corrections --

__device__ __forceinline__ float sqrtf(float x) { return __builtin_sqrtf(x); }
__device__ __forceinline__ float expf(float x) { return __builtin_expf(x); }
__device__ __forceinline__ float exp2f(float x) { return __builtin_exp2f(x); }
__device__ __forceinline__ float logf(float x) { return __builtin_logf(x); }
__device__ __forceinline__ float log2f(float x) { return __builtin_log2f(x); }
__device__ __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__device__ __forceinline__ float rintf(float x) { return __builtin_rintf(x); }
__device__ __forceinline__ float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
__device__ __forceinline__ float fminf(float x, float y) { return __builtin_fminf(x, y); }
__device__ __forceinline__ float fmaf(float x, float y, float z) {
    return __builtin_fmaf(x, y, z);
}

// ---- one instruction of the transcendental unit, with an error of 1 ulp ----
//
// They take subnormal numbers for 0, as CUDA's do with -ftz=true: __expf is 0 below -87.3, rsqrtf
// infinite below 1.2e-38.

__device__ __forceinline__ float rsqrtf(float x) { return __builtin_amdgcn_rsqf(x); }
__device__ __forceinline__ float __expf(float x) {
    return __builtin_amdgcn_exp2f(x * 1.442695041f);  // exp(x) = 2^(x * log2(e))
}
__device__ __forceinline__ float __fdividef(float x, float y) {
    return x * __builtin_amdgcn_rcpf(y);
}

// tanh(x) = 1 - 2 / (exp(2x) + 1) loses digits near 0, where the two terms cancel. There an odd
// polynomial stands in for it; its coefficients are those of Cephes' tanhf (Moshier).
// https://www.netlib.org/cephes/
__device__ __forceinline__ float tanhf(float x) {
    float size = fabsf(x), result;
    if (size < 0.625f) {
        float s = size * size, p = -5.70498872745e-3f;
        p = fmaf(s, p, 2.06390887954e-2f);
        p = fmaf(s, p, -5.37397155531e-2f);
        p = fmaf(s, p, 1.33314422036e-1f);
        p = fmaf(s, p, -3.33332819422e-1f);
        result = fmaf(size * s, p, size);
    } else {
        result = 1.0f - 2.0f / (expf(2.0f * size) + 1.0f);
    }
    return __builtin_copysignf(result, x);
}
