// Fast math: fewer instructions, for less accuracy in the last bits or no subnormal results.
#pragma once

constexpr float LOG2_E = 1.442695041f;  // exp(x) = 2^(x * LOG2_E)
constexpr float LN_2 = 0.6931471806f;   // log(x) = log2(x) * LN_2

// 2^x in one instruction (`ex2.approx.ftz`) of the special function unit (SFU), with an error of
// some units in the last place (ulp). `.ftz` flushes subnormal results to 0; exp2f and __expf keep
// them, which takes three more instructions.
__device__ __forceinline__ float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_exp2f(x);
#else
    return exp2f(x);
#endif
}

// 1 / x in one instruction (`rcp.approx.ftz`) of the special function unit, with an error of 1 ulp;
// 1 / infinity is 0. __fdividef also scales large divisors, which takes more instructions.
__device__ __forceinline__ float fast_reciprocal(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#elif defined(__HIP_DEVICE_COMPILE__)
    return __builtin_amdgcn_rcpf(x);
#else
    return 1.0f / x;
#endif
}
