// decode append_attention, rung 3: cluster reduction, and a window in one round
// Before: rung 2 adds up the splits in a second kernel. decode.attention rung 5 has a cluster of
//         blocks for each head, which add them up, and no append.
// Change: the kernel of decode.attention rung 5, with the append in the block that holds the
//         position. A thread has twice as many keys (EACH), so that 8 blocks have all 1,024
//         positions of a window in registers at once, in 16 bits.
// Expect: the time of one launch less, and one wait for memory instead of two in the second half of
//         a window.
// Needs:  sm >= 90; warp == 32; NH <= 65535; B <= 65535; HS % vector == 0; warp % LANES == 0
// Define: HS = C // NH; LANES = max(1, HS // vector); WARPS = 4; GROUPS = WARPS * warp // LANES;
//         EACH = 8; KEYS = EACH * GROUPS; BLOCKS = 8
// Launch: decode_append_attention<<<(BLOCKS, NH, B), WARPS * warp>>>
// After:  decode.attention 5
// Left:   the launch and the wait for the cache, which could begin earlier -> rung 4.

#include "hopper.cuh"
#include "portable.cuh"

constexpr float LOWEST = -1e30f;  // below any score; finite, so that it differs from itself by 0

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) decode_append_attention(
    real* __restrict__ out,             // (B, NH, HS)
    real* __restrict__ kv,              // (B, P, 2, NH, HS)  keys and values of all tokens
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const int* __restrict__ positions,  // (B)  of the new token: the last key that it sees
    int B, int P, int C, int NH) {
    __shared__ float sum_of[WARPS][HS], largest_of[WARPS], total_of[WARPS];
    __shared__ float sums[HS], largest_of_block, total_of_block;
    int rank = cluster_rank(), h = blockIdx.y, b = blockIdx.z, position = positions[b];
    int group = threadIdx.x / LANES, i = threadIdx.x % LANES * VECTOR;  // i: first channel
    const real* q = qkv + (size_t)b * 3 * C + h * HS;     // (HS)
    real* k = kv + (size_t)b * P * 2 * C + h * HS;        // (HS), rows 2 * C apart
    real* v = k + C;                                      // (HS), rows 2 * C apart

    Vec qs = load_vec(q + i);
    float sum[VECTOR] = {}, largest = LOWEST, total = 0.0f;
    for (int start = rank * KEYS; start <= position; start += BLOCKS * KEYS) {
        Vec ks[EACH], vs[EACH];  // of keys start + group, start + group + GROUPS, ...
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            int key = start + group + r * GROUPS;
            ks[r] = vs[r] = Vec{};  // keys beyond the position
            if (key < position) {
                ks[r] = load_vec(k + (size_t)key * 2 * C + i);
                vs[r] = load_vec(v + (size_t)key * 2 * C + i);
            } else if (key == position) {  // the new token
                ks[r] = load_vec(q + C + i);
                vs[r] = load_vec(q + 2 * C + i);
                store_vec(k + (size_t)key * 2 * C + i, ks[r]);
                store_vec(v + (size_t)key * 2 * C + i, vs[r]);
            }
        }
        float weights[EACH], before = largest;
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            float product = 0.0f;
            for (int c = 0; c < VECTOR; c++) {
                product += to_float(qs[c]) * to_float(ks[r][c]);
            }
            for (int distance = 1; distance < LANES; distance *= 2) {  // over the lanes of a key
                product += shuffle_xor(product, distance);
            }
            weights[r] = start + group + r * GROUPS <= position ? product * rsqrtf(HS) : LOWEST;
            largest = fmaxf(largest, weights[r]);
        }
        largest = warp_max(largest);
        float rescale = expf(before - largest);
        total *= rescale;
        for (int c = 0; c < VECTOR; c++) {
            sum[c] *= rescale;
        }
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            bool seen = start + group + r * GROUPS <= position;
            float weight = seen ? expf(weights[r] - largest) : 0.0f;
            total += weight;
            for (int c = 0; c < VECTOR; c++) {
                sum[c] += weight * to_float(vs[r][c]);
            }
        }
    }
    for (int distance = LANES; distance < WARP_SIZE; distance *= 2) {  // over the warp's groups
        total += shuffle_xor(total, distance);
        for (int c = 0; c < VECTOR; c++) {
            sum[c] += shuffle_xor(sum[c], distance);
        }
    }
    if (lane_id() < LANES) {
        for (int c = 0; c < VECTOR; c++) {
            sum_of[warp_id()][i + c] = sum[c];
        }
    }
    if (lane_id() == 0) {
        largest_of[warp_id()] = largest;
        total_of[warp_id()] = total;
    }
    __syncthreads();  // all warps have left their sums before they are added up

    largest = LOWEST;
    total = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        largest = fmaxf(largest, largest_of[w]);
    }
    for (int w = 0; w < WARPS; w++) {
        total += total_of[w] * expf(largest_of[w] - largest);
    }
    for (int c = threadIdx.x; c < HS; c += WARPS * WARP_SIZE) {
        float all = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            all += sum_of[w][c] * expf(largest_of[w] - largest);
        }
        sums[c] = all;
    }
    if (threadIdx.x == 0) {
        largest_of_block = largest;
        total_of_block = total;
    }
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // all blocks have left their sums before others read them

    largest = LOWEST;
    total = 0.0f;
    for (int block = 0; block < BLOCKS; block++) {
        largest = fmaxf(largest, *cluster_shared(&largest_of_block, block));
    }
    constexpr int SHARE = (HS + BLOCKS - 1) / BLOCKS;  // channels that each block adds up
    int c = rank * SHARE + threadIdx.x;
    if (threadIdx.x < SHARE && c < HS) {
        float all = 0.0f;
        for (int block = 0; block < BLOCKS; block++) {
            float rescale = expf(*cluster_shared(&largest_of_block, block) - largest);
            total += *cluster_shared(&total_of_block, block) * rescale;
            all += *cluster_shared(&sums[c], block) * rescale;
        }
        out[(size_t)b * C + h * HS + c] = to_real(all / total);
    }
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // no block ends while others still read its shared memory
}
