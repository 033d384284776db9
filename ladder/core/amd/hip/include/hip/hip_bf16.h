// bfloat16: clang has it as a type of its own, with conversions that round to nearest even.
#pragma once

using __hip_bfloat16 = __bf16;
__device__ __forceinline__ __hip_bfloat16 __float2bfloat16(float x) { return (__bf16)x; }
