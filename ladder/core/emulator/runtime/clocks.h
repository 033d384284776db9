// Vector clocks: what each thread knows to have happened before its next access.
//
// An agent makes accesses in an order of its own: a thread, or a unit that works on its behalf (the
// copies of TMA that one mbarrier counts, a thread's cp.async, ...). Its time counts its steps. A
// `View` holds, for every agent, the time up to which its accesses come before one's own. A release
// adds a thread's view to an object, a barrier for example; an acquire adds the object's view to a
// thread's. An access by agent A at time t happened before what a thread does next exactly if the
// thread's view of A is at least t.
//
// L. Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978; for races:
// C. Flanagan and S. Freund, "FastTrack: efficient and precise dynamic race detection", 2009.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

using Time = uint32_t;

struct View {
    std::vector<Time> seen;    // by agent
    std::vector<Time> fenced;  // likewise, of what a proxy fence has made visible to TMA and wgmma

    void add(const View &other);
    static Time at(const std::vector<Time> &times, int agent) {
        return (size_t)agent < times.size() ? times[agent] : 0;
    }
    static void raise(std::vector<Time> &times, int agent, Time time);
};

// The clocks of the threads of a cluster. Threads that have met share one view until one of them
// learns more.
class Clocks {
  public:
    void start(int threads);
    // `count` threads from `first` on know of the first step of an agent.
    void begin(int first, int count, int agent);

    Time now(int thread) const { return now_[thread]; }
    Time seen(int thread, int agent) const {
        return agent == thread ? now_[thread] : View::at(views_[thread]->seen, agent);
    }
    Time fenced(int thread, int agent) const { return View::at(views_[thread]->fenced, agent); }

    void release(int thread, View &object);
    void acquire(int thread, const View &object);
    void meet(const std::vector<int> &threads);       // each learns what all know
    void learn(int thread, int agent, Time time);     // the agent's steps up to `time` are complete
    void fence(int thread);                           // a proxy fence
    std::shared_ptr<const View> snapshot(int thread);  // its view, its own steps included

  private:
    View &own(int thread);  // its view, shared with nobody

    std::vector<Time> now_;  // by thread: what it does now, it does at this time
    std::vector<std::shared_ptr<View>> views_;
};
