// Where threads meet: carries out warp operations and opens barriers, once everybody has come.
#include <algorithm>

#include "scheduler.h"

using namespace emulator;

bool Worker::complete_warp_operations(int warp) {
    auto [first, count] = warps[warp];
    bool any = false;
    for (int i = first; i < first + count; i++)
        if (fibers[i].state == State::at_warp) any |= complete_warp_operation(warp, fibers[i]);
    return any;
}

// Carries out the operation at which `first` waits, if every lane of its mask has come.
bool Worker::complete_warp_operation(int warp, Fiber &first) {
    uint64_t existing = existing_lanes(warp), mask = first.mask & existing;
    Fiber *lanes = &fibers[warps[warp].first];
    if (!(mask >> first.lane & 1)) return false;
    if (first.operation == WARP_COALESCE) return release_coalesced(warp, first);
    uint64_t ballot = 0;
    Fiber *elsewhere = nullptr;
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        Fiber &lane = lanes[__builtin_ctzll(rest)];
        if (lane.state != State::at_warp || lane.operation != first.operation ||
            (lane.mask & existing) != mask)
            return false;
        if (lane.pc != first.pc) elsewhere = &lane;
        ballot |= (uint64_t)(lane.value != 0) << lane.lane;
    }
    if (elsewhere)  // the lanes agree, but stand at different places of the program
        report(DIVERGENT_BARRIER, place(first, first.pc), place(*elsewhere, elsewhere->pc), "warp");
    if (launch->memory && first.operation == WARP_ORDER) {
        std::vector<int> met;
        for (uint64_t rest = mask; rest; rest &= rest - 1)
            met.push_back(number_of(lanes[__builtin_ctzll(rest)]));
        launch->memory->clocks.meet(met);
    }
    uint64_t *values = &gathered[warps[warp].first];
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctzll(rest);
        values[lane] = lanes[lane].value;
    }
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        Fiber &lane = lanes[__builtin_ctzll(rest)];
        lane.state = State::ready;
        if (mask == existing) lane.waits = 0;
        switch (lane.operation) {
            case WARP_SHUFFLE:  // the value of a lane that takes no part is undefined
                lane.result = lane.source < 64 && (mask >> lane.source & 1) ? values[lane.source]
                                                                           : ~0ull;
                break;
            case WARP_BALLOT:
                lane.result = ballot;
                break;
            case WARP_GATHER:
                lane.result = (uint64_t)values;
                break;
            default:  // SYNC and ORDER; COALESCE is released above
                break;
        }
    }
    if (launch->memory && mask == existing) launch->memory->finish_warp(*this, warp);
    return true;
}

// Every lane has run as far as it gets: those that stand at the same call are one coalesced group.
bool Worker::release_coalesced(int warp, const Fiber &first) {
    auto [begin, count] = warps[warp];
    uint64_t group = 0;
    for (Fiber *lane = &fibers[begin]; lane < &fibers[begin] + count; lane++)
        if (lane->state == State::at_warp && lane->operation == WARP_COALESCE &&
            lane->pc == first.pc)
            group |= 1ull << lane->lane;
    for (uint64_t rest = group; rest; rest &= rest - 1) {
        Fiber &lane = fibers[begin + __builtin_ctzll(rest)];
        lane.result = group;
        lane.state = State::ready;
    }
    return true;
}

// Opens a block's barrier when all of its threads that still run are at it.
bool Worker::complete_barrier(int member) {
    Fiber *first = nullptr, *elsewhere = nullptr, *returned = nullptr;
    int sum = 0, threads = (int)(fibers.size() / members.size());
    Fiber *begin = &fibers[member * threads], *end = begin + threads;
    for (Fiber *at = begin; at < end; at++) {
        Fiber &fiber = *at;
        if (fiber.state == State::done) {
            returned = &fiber;
        } else if (fiber.state != State::at_barrier) {
            return false;
        } else {
            if (!first) first = &fiber;
            if (fiber.pc != first->pc) elsewhere = &fiber;
            sum += fiber.predicate != 0;
        }
    }
    if (!first) return false;
    if (elsewhere || returned)
        report(DIVERGENT_BARRIER, place(*first, first->pc),
               elsewhere ? place(*elsewhere, elsewhere->pc) : place(*returned, nullptr));
    members[member]->barrier_result = sum;
    members[member]->meetings++;
    if (launch->memory) {
        std::vector<int> met;
        for (Fiber *fiber = begin; fiber < end; fiber++)
            if (fiber->state == State::at_barrier) met.push_back(number_of(*fiber));
        launch->memory->clocks.meet(met);
        for (int warp = 0; warp < warps_of_block; warp++)
            launch->memory->finish_warp(*this, member * warps_of_block + warp);
    }
    for (Fiber *fiber = begin; fiber < end; fiber++)
        if (fiber->state == State::at_barrier) fiber->state = State::ready, fiber->waits = 0;
    return true;
}
