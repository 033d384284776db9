// Philox4x32-7, a counter-based random number generator (RNG): the random numbers are a function
// of a counter and a key, and no state is stored (Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). Gives the same bits as reference/philox.py.
#pragma once

// Replaces the counter in `words` by four random 32-bit words. The key is two words.
__device__ __forceinline__ void philox4x32(unsigned (&words)[4], unsigned key0, unsigned key1) {
    constexpr int ROUNDS = 7;  // all that BigCrush asks for; the paper recommends ten
    constexpr unsigned MULTIPLIER0 = 0xD2511F53, MULTIPLIER1 = 0xCD9E8D57;
    constexpr unsigned WEYL0 = 0x9E3779B9, WEYL1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        unsigned long long product0 = (unsigned long long)MULTIPLIER0 * words[0];
        unsigned long long product1 = (unsigned long long)MULTIPLIER1 * words[2];
        words[0] = (unsigned)(product1 >> 32) ^ words[1] ^ key0;
        words[1] = (unsigned)product1;
        words[2] = (unsigned)(product0 >> 32) ^ words[3] ^ key1;
        words[3] = (unsigned)product0;
        key0 += WEYL0;
        key1 += WEYL1;
    }
}

// Half word k of eight: two of each of the four words, the lower one first.
__device__ __forceinline__ unsigned half_word(const unsigned (&words)[4], int k) {
    return words[k / 2] >> k % 2 * 16 & 0xFFFF;
}
