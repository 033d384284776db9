// Where threads meet: carries out warp operations and opens barriers, once everybody has come.
#include <algorithm>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

bool Worker::complete_warp_operations(int warp) {
    int first = warp * block.warp_size;
    int end = std::min((int)fibers.size(), first + block.warp_size);
    bool any = false;
    for (int i = first; i < end; i++)
        if (fibers[i].state == State::at_warp) any |= complete_warp_operation(warp, fibers[i]);
    return any;
}

// Carries out the operation at which `first` waits, if every lane of its mask has come.
bool Worker::complete_warp_operation(int warp, Fiber &first) {
    uint64_t existing = existing_lanes(warp), mask = first.mask & existing;
    Fiber *lanes = &fibers[warp * block.warp_size];
    if (!(mask >> first.lane & 1)) return false;
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
    if (elsewhere) {  // the lanes agree, but stand at different places of the program
        Problem problem{};
        problem.kind = DIVERGENT_BARRIER;
        problem.place = place(first, first.pc);
        problem.other = place(*elsewhere, elsewhere->pc);
        std::strcpy(problem.text, "warp");
        launch->add(problem);
    }
    uint64_t *values = &gathered[warp * block.warp_size];
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        int lane = __builtin_ctzll(rest);
        values[lane] = lanes[lane].value;
    }
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        Fiber &lane = lanes[__builtin_ctzll(rest)];
        lane.state = State::ready;
        switch (lane.operation) {
            case WARP_SYNC:
                if (launch->memory)
                    launch->memory->synchronise_lane((int)(&lane - fibers.data()));
                break;
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
        }
    }
    if (launch->memory && mask == existing) launch->memory->finish_warp(*this, warp);
    return true;
}

// Opens the barrier when all threads that still run are at it.
bool Worker::complete_barrier() {
    Fiber *first = nullptr, *elsewhere = nullptr, *returned = nullptr;
    int sum = 0;
    for (Fiber &fiber : fibers) {
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
    if (elsewhere || returned) {
        Problem problem{};
        problem.kind = DIVERGENT_BARRIER;
        problem.place = place(*first, first->pc);
        problem.other = elsewhere ? place(*elsewhere, elsewhere->pc) : place(*returned, nullptr);
        launch->add(problem);
    }
    barrier_result = sum;
    barrier_epoch++;
    if (launch->memory)
        for (size_t warp = 0; warp < warp_order_.size(); warp++)
            launch->memory->finish_warp(*this, (int)warp);
    for (Fiber &fiber : fibers)
        if (fiber.state == State::at_barrier) fiber.state = State::ready;
    return true;
}
