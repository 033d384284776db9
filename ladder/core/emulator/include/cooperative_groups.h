// CUDA's cooperative groups: a block, a tile of a warp, or the lanes that arrived together, as an
// object with its own rank, barrier and shuffles.
//
// A group's operations are those of emulator/collectives.h on the lanes of its mask, so the same
// rules hold: every lane of the group must come, a shuffle orders no memory, and sync() does.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cooperative-groups
#pragma once
#include "cuda_runtime.h"

// Lanes have come together where they stand at the same call of the program. A function that is
// called in two branches is two places, so kernels have no calls of their own functions.
#undef __global__
#define __global__ __attribute__((flatten))

namespace cooperative_groups {

namespace details {

__forceinline__ unsigned long long volume(dim3 size) {
    return (unsigned long long)size.x * size.y * size.z;
}
__forceinline__ unsigned thread_rank() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__forceinline__ unsigned block_threads() { return (unsigned)volume(blockDim); }

// `width` lanes from the lane `first` on, as bits.
__forceinline__ uint64_t lanes(int first, int width) { return ~0ull >> (64 - width) << first; }

// The number of the `rank`-th bit of a mask that is set.
__forceinline__ int nth_lane(uint64_t mask, unsigned rank) {
    for (; rank && mask; rank--) mask &= mask - 1;
    return mask ? __builtin_ctzll(mask) : 0;
}

// ---- the lanes of one warp: what tiles and coalesced groups have in common ----------------------

class lane_group {
   public:
    __forceinline__ void sync() const {
        emulator::emulator_warp(emulator::WARP_ORDER, mask_, 0, 0);
    }
    __forceinline__ unsigned thread_rank() const {
        return __builtin_popcountll(mask_ & ((1ull << emulator::current.thread->lane) - 1));
    }
    __forceinline__ unsigned size() const { return size_; }
    __forceinline__ unsigned num_threads() const { return size_; }
    __forceinline__ unsigned meta_group_rank() const { return meta_rank_; }
    __forceinline__ unsigned meta_group_size() const { return meta_size_; }

    template <class T>
    __forceinline__ T shfl(T value, unsigned source) const {
        return emulator::shuffle_words(mask_, value, nth_lane(mask_, source % size_));
    }
    // A lane whose partner is outside of the group gets its own value.
    template <class T>
    __forceinline__ T shfl_down(T value, unsigned by) const {
        return emulator::shuffle_words(mask_, value, partner(thread_rank() + by));
    }
    template <class T>
    __forceinline__ T shfl_up(T value, unsigned by) const {
        return emulator::shuffle_words(mask_, value, partner(thread_rank() - by));
    }
    __forceinline__ unsigned ballot(int predicate) const {
        uint64_t all = emulator::emulator_warp(emulator::WARP_BALLOT, mask_, predicate != 0, 0);
        unsigned ours = 0, rank = 0;
        for (uint64_t rest = mask_; rest; rest &= rest - 1, rank++)
            ours |= (unsigned)(all >> __builtin_ctzll(rest) & 1) << rank;
        return ours;
    }
    __forceinline__ int any(int predicate) const { return ballot(predicate) != 0; }
    __forceinline__ int all(int predicate) const { return ballot(!predicate) == 0; }

   protected:
    __forceinline__ lane_group(uint64_t mask, unsigned size, unsigned meta_rank, unsigned meta_size)
        : mask_(mask), size_(size), meta_rank_(meta_rank), meta_size_(meta_size) {}
    __forceinline__ int partner(unsigned rank) const {
        return rank < size_ ? nth_lane(mask_, rank) : emulator::current.thread->lane;
    }
    uint64_t mask_;
    unsigned size_, meta_rank_, meta_size_;
};

// 1, 2, 4, 8, 16 or 32 neighbouring lanes.
template <unsigned Width>
class tile : public lane_group {
   public:
    __forceinline__ explicit tile(unsigned meta_rank, unsigned meta_size)
        : lane_group(lanes(emulator::current.thread->lane & -(int)Width, Width), Width, meta_rank,
                     meta_size) {
        static_assert(Width <= WARP_SIZE && (Width & (Width - 1)) == 0,
                      "a tile has 1, 2, 4, ... threads, at most those of a warp");
    }
    static constexpr unsigned size() { return Width; }
    static constexpr unsigned num_threads() { return Width; }
    template <class T>
    __forceinline__ T shfl_xor(T value, unsigned bits) const {
        return emulator::shuffle_words(mask_, value, partner(thread_rank() ^ bits));
    }
};

}  // namespace details

// The lanes of a warp that made this call together.
class coalesced_group : public details::lane_group {
    __forceinline__ explicit coalesced_group(uint64_t mask)
        : lane_group(mask, __builtin_popcountll(mask), 0, 1) {}
    friend coalesced_group coalesced_threads();
};
__forceinline__ coalesced_group coalesced_threads() {
    return coalesced_group(emulator::emulator_warp(emulator::WARP_COALESCE, ~0ull, 0, 0));
}

// ---- all threads of the block, and of the grid --------------------------------------------------

class thread_block {
   public:
    __forceinline__ void sync() const { __syncthreads(); }
    __forceinline__ unsigned thread_rank() const { return details::thread_rank(); }
    __forceinline__ unsigned size() const { return details::block_threads(); }
    __forceinline__ unsigned num_threads() const { return details::block_threads(); }
    __forceinline__ dim3 group_index() const { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
    __forceinline__ dim3 thread_index() const { return {threadIdx.x, threadIdx.y, threadIdx.z}; }
    __forceinline__ dim3 dim_threads() const { return blockDim; }
    __forceinline__ dim3 group_dim() const { return blockDim; }
};
__forceinline__ thread_block this_thread_block() { return {}; }

class grid_group {
   public:
    // Blocks of an ordinary launch may run one after the other, so none can wait for another.
    template <class Grid = grid_group>
    void sync() const {
        static_assert(sizeof(Grid) == 0,
                      "grid.sync() needs a cooperative launch, which a Launch line does not make: "
                      "split the kernel there, and launch the parts one after the other");
    }
    __forceinline__ bool is_valid() const { return false; }
    __forceinline__ unsigned long long size() const {
        return details::volume(gridDim) * details::block_threads();
    }
    __forceinline__ unsigned long long num_threads() const { return size(); }
    __forceinline__ unsigned long long num_blocks() const { return details::volume(gridDim); }
    __forceinline__ dim3 dim_blocks() const { return gridDim; }
    __forceinline__ dim3 block_index() const { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
    __forceinline__ unsigned long long block_rank() const {
        return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    }
    __forceinline__ unsigned long long thread_rank() const {
        return block_rank() * details::block_threads() + details::thread_rank();
    }
};
__forceinline__ grid_group this_grid() { return {}; }

// ---- tiles --------------------------------------------------------------------------------------

template <unsigned Width, class Parent = void>
class thread_block_tile : public details::tile<Width> {
   public:
    using details::tile<Width>::tile;
};
template <unsigned Width>
class thread_block_tile<Width, void> : public details::tile<Width> {
   public:
    template <class Parent>
    __forceinline__ thread_block_tile(const thread_block_tile<Width, Parent> &other)
        : details::tile<Width>(other) {}
};

template <unsigned Width>
__forceinline__ thread_block_tile<Width, thread_block> tiled_partition(const thread_block &) {
    return thread_block_tile<Width, thread_block>(
        details::thread_rank() / Width, (details::block_threads() + Width - 1) / Width);
}
template <unsigned Width, unsigned Of, class Parent>
__forceinline__ thread_block_tile<Width, thread_block_tile<Of, Parent>> tiled_partition(
    const thread_block_tile<Of, Parent> &group) {
    static_assert(Width <= Of, "a part is no larger than the group");
    return thread_block_tile<Width, thread_block_tile<Of, Parent>>(
        group.thread_rank() / Width, Of / Width);
}

// ---- a group whose kind is only known at run time ------------------------------------------------

class thread_group {
   public:
    __forceinline__ thread_group(const thread_block &) {}
    template <unsigned Width, class Parent>
    __forceinline__ thread_group(const thread_block_tile<Width, Parent> &) : width_(Width) {}
    __forceinline__ void sync() const {
        if (width_)
            emulator::emulator_warp(emulator::WARP_ORDER, details::lanes(first(), width_), 0, 0);
        else __syncthreads();
    }
    __forceinline__ unsigned size() const { return width_ ? width_ : details::block_threads(); }
    __forceinline__ unsigned num_threads() const { return size(); }
    __forceinline__ unsigned thread_rank() const { return details::thread_rank() % size(); }

   private:
    __forceinline__ explicit thread_group(unsigned width) : width_(width) {}
    __forceinline__ int first() const { return emulator::current.thread->lane & -(int)width_; }
    friend thread_group tiled_partition(const thread_group &, unsigned);
    unsigned width_ = 0;  // of a tile; 0: the whole block
};
__forceinline__ thread_group tiled_partition(const thread_group &, unsigned width) {
    return thread_group(width);
}

// ---- the same as functions -----------------------------------------------------------------------

template <class Group>
__forceinline__ void sync(const Group &group) {
    group.sync();
}
template <class Group>
__forceinline__ auto thread_rank(const Group &group) {
    return group.thread_rank();
}
template <class Group>
__forceinline__ auto group_size(const Group &group) {
    return group.size();
}

}  // namespace cooperative_groups
