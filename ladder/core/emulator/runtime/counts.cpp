// Counts: how well the accesses of a warp fit together.
#include <algorithm>
#include <cstring>

#include "scheduler.h"

static constexpr int SECTOR = 32;  // bytes of global memory that are fetched together
static constexpr int BANKS = 32;   // of shared memory, each 4 bytes wide

// The n-th access of each lane through one instruction, since the lanes last met, is taken to be
// one request of the warp: the GPU executes lanes that are at the same instruction together.
void MemoryModel::finish_warp(Worker &worker, int warp) {
    auto [first, count_of_lanes] = worker.warps[warp];
    const Fiber &leader = worker.fibers[first];
    int end = first + count_of_lanes;
    std::vector<uint32_t> used;
    for (int fiber = first; fiber < end; fiber++) {
        std::fill(seen_.begin(), seen_.end(), 0);
        for (const Entry &entry : logs_[fiber]) {
            std::vector<Open> &requests = open_[entry.site];
            uint32_t nth = seen_[entry.site]++;
            if (nth == requests.size()) {
                if (nth == 0) used.push_back(entry.site);
                requests.emplace_back();
            }
            requests[nth].lanes |= 1ull << (fiber - first);
            requests[nth].offsets[fiber - first] = entry.offset;
        }
        logs_[fiber].clear();
    }
    for (uint32_t index : used) {
        SiteCount &site = sites[index];
        for (const Open &open : open_[index]) {
            if (site.requests < launch_.options->trace) {
                const uint3 &at = worker.members[leader.member]->block.index;
                Request request{(int)index, (int)leader.warp, {at.x, at.y, at.z}, 0, open.lanes, {}};
                std::memcpy(request.offsets, open.offsets, sizeof request.offsets);
                requests.push_back(request);
            }
            count(site, open);
        }
        open_[index].clear();
    }
}

void MemoryModel::finish_cluster(Worker &worker) {
    settle_doubt();
    for (size_t warp = 0; warp < worker.warps.size(); warp++) finish_warp(worker, (int)warp);
}

static size_t distinct(std::vector<int64_t> &values) {
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
}

// Whether each lane of a request reads what the lane does whose number differs in one bit.
static bool in_pairs(uint64_t lanes, const int64_t *offsets, int bit) {
    for (uint64_t rest = lanes; rest; rest &= rest - 1) {
        int lane = __builtin_ctzll(rest), other = lane ^ bit;
        if (lanes >> other & 1 && offsets[other] != offsets[lane]) return false;
    }
    return true;
}

void MemoryModel::count(SiteCount &site, const Open &request) const {
    site.requests++;
    site.lanes += __builtin_popcountll(request.lanes);
    if (!site.shared_name) {
        // Ideal: as many sectors as the different bytes would fill.
        std::vector<int64_t> sectors, starts;
        for (uint64_t rest = request.lanes; rest; rest &= rest - 1) {
            int64_t offset = request.offsets[__builtin_ctzll(rest)];
            starts.push_back(offset);
            int64_t last = (offset + site.bytes - 1) / SECTOR;
            for (int64_t sector = offset / SECTOR; sector <= last; sector++)
                sectors.push_back(sector);
        }
        site.sectors += distinct(sectors);
        site.ideal_sectors += (distinct(starts) * site.bytes + SECTOR - 1) / SECTOR;
        return;
    }
    // A wavefront serves each bank one word (to any number of lanes). It carries 128 bytes, so
    // lanes go in groups of 32, 16 or 8, depending on how much each one asks for. NVIDIA does not
    // document those of 8 and 16 bytes. Others measured that two neighbouring groups go together if
    // lanes read in pairs: each lane the same as lane ^ 1, or each the same as lane ^ 2
    // (https://code.hitori.moe/post/cuda-shared-memory-access-mechanism-with-vectorized-instructions).
    int lanes_together = site.bytes <= 4 ? 32 : site.bytes == 8 ? 16 : 8;
    if (lanes_together < 32 && site.access == emulator::ACCESS_READ &&
        (in_pairs(request.lanes, request.offsets, 1) ||
         in_pairs(request.lanes, request.offsets, 2)))
        lanes_together *= 2;
    for (int first = 0; first < 64; first += lanes_together) {
        uint64_t group = request.lanes >> first;
        if (lanes_together < 64) group &= (1ull << lanes_together) - 1;
        if (!group) continue;
        std::vector<int64_t> words;
        for (; group; group &= group - 1) {
            int64_t offset = request.offsets[first + __builtin_ctzll(group)];
            int64_t last = (offset + site.bytes - 1) / 4;
            for (int64_t word = offset / 4; word <= last; word++) words.push_back(word);
        }
        words.resize(distinct(words));
        int in_bank[BANKS] = {}, most = 0;
        for (int64_t word : words) most = std::max(most, ++in_bank[word % BANKS]);
        site.wavefronts += most;
        site.ideal_wavefronts++;
    }
}
