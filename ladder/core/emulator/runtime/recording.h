// What the threads of one cluster do at its barriers and units, in their order: recorded on request.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "results.h"

struct Recording {
    static constexpr size_t MOST = 20'000;  // events; then it ends

    bool on = false;  // while its cluster runs
    std::vector<Event> events;
    std::vector<Barrier> barriers;

    // `serial`: of the accesses to memory so far.
    void add(const Event &event, int fiber, int lane, uint32_t serial);
    // The last event of a fiber before an access to memory, as an index; -1: there is none.
    int last(int fiber, uint32_t serial = UINT32_MAX) const;
    int name(const std::string &name, int member, int threads);

  private:
    struct Seen {
        uint32_t serial;
        int place;  // in the list of its warp
    };
    std::vector<std::vector<int>> of_warp_;  // indices of events
    std::vector<std::vector<Seen>> of_fiber_;
    std::vector<int> warps_;  // by fiber
};
