#include "recording.h"

#include <algorithm>
#include <cstdio>

#include "scheduler.h"

// The n-th time that lanes of a warp do the same thing is one event, as long as it comes after what
// each did before; and so is what a lane starts again and again.
void Recording::add(const Event &event, int fiber, int lane, uint32_t serial) {
    size_t fibers = std::max(of_fiber_.size(), (size_t)fiber + 1);
    of_fiber_.resize(fibers);
    warps_.resize(fibers);
    of_warp_.resize(std::max(of_warp_.size(), (size_t)event.warp + 1));
    warps_[fiber] = event.warp;
    std::vector<int> &warp = of_warp_[event.warp];
    std::vector<Seen> &seen = of_fiber_[fiber];
    uint64_t mine = 1ull << lane;
    auto same = [&](int place) {
        const Event &other = events[warp[place]];
        return other.pc == event.pc && other.kind == event.kind && other.object == event.object &&
               other.phase == event.phase;
    };
    bool starts = event.kind == STARTS || event.kind == LOADS;
    int place = seen.empty() ? -1 : seen.back().place;
    if (!(starts && place >= 0 && same(place)))
        for (place++; place < (int)warp.size(); place++)
            if (same(place) && !(events[warp[place]].lanes & mine)) break;
    if (place == (int)warp.size()) {
        warp.push_back((int)events.size());
        events.push_back(event);
        on = events.size() < MOST;
    } else {
        events[warp[place]].value += event.value;
    }
    events[warp[place]].lanes |= mine;
    seen.push_back({serial, place});
}

int Recording::last(int fiber, uint32_t serial) const {
    if (!on || fiber >= (int)of_fiber_.size()) return -1;
    const std::vector<Seen> &seen = of_fiber_[fiber];
    auto after = std::lower_bound(seen.begin(), seen.end(), serial,
                                  [](const Seen &one, uint32_t at) { return one.serial < at; });
    return after == seen.begin() ? -1 : of_warp_[warps_[fiber]][after[-1].place];
}

int Recording::name(const std::string &name, int member, int threads) {
    Barrier barrier{};
    std::snprintf(barrier.name, sizeof barrier.name, "%s", name.c_str());
    barrier.member = member;
    barrier.threads = threads;
    barriers.push_back(barrier);
    return (int)barriers.size() - 1;
}

void Worker::note_slowly(EventKind kind, int object, unsigned phase, int value, const void *pc,
                         const Fiber &by) {
    Recording &recording = *launch->recording;
    Event event{pc, 0, kind, warp_of(by), object, (int)phase, value, 0};
    if (kind == LANDS) {  // which no thread does
        event.lanes = 1ull << by.lane;
        recording.events.push_back(event);
    } else {
        recording.add(event, number_of(by), by.lane, launch->memory->serial());
    }
}
