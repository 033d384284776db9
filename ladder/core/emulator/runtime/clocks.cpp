#include "clocks.h"

#include <algorithm>

static void raise_all(std::vector<Time> &times, const std::vector<Time> &others) {
    if (times.size() < others.size()) times.resize(others.size());
    for (size_t i = 0; i < others.size(); i++) times[i] = std::max(times[i], others[i]);
}

void View::raise(std::vector<Time> &times, int agent, Time time) {
    if (times.size() <= (size_t)agent) times.resize(agent + 1);
    times[agent] = std::max(times[agent], time);
}

void View::add(const View &other) {
    raise_all(seen, other.seen);
    raise_all(fenced, other.fenced);
}

void Clocks::start(int threads) {
    now_.assign(threads, 1);
    views_.assign(threads, std::make_shared<View>());
}

void Clocks::begin(int first, int count, int agent) {
    auto view = std::make_shared<View>();
    View::raise(view->seen, agent, 1);
    std::fill_n(views_.begin() + first, count, view);
}

View &Clocks::own(int thread) {
    std::shared_ptr<View> &view = views_[thread];
    if (view.use_count() > 1) view = std::make_shared<View>(*view);
    return *view;
}

void Clocks::release(int thread, View &object) {
    object.add(*views_[thread]);
    View::raise(object.seen, thread, now_[thread]++);
}

void Clocks::acquire(int thread, const View &object) { own(thread).add(object); }

void Clocks::meet(const std::vector<int> &threads) {
    auto joined = std::make_shared<View>();
    const View *last = nullptr;
    for (int thread : threads) {
        if (views_[thread].get() != last) joined->add(*views_[thread]);
        last = views_[thread].get();
    }
    for (int thread : threads) {
        View::raise(joined->seen, thread, now_[thread]++);
        views_[thread] = joined;
    }
}

void Clocks::learn(int thread, int agent, Time time) {
    if (seen(thread, agent) < time) View::raise(own(thread).seen, agent, time);
}

void Clocks::fence(int thread) {
    View &view = own(thread);
    raise_all(view.fenced, view.seen);
    View::raise(view.fenced, thread, now_[thread]++);
}

std::shared_ptr<const View> Clocks::snapshot(int thread) {
    auto view = std::make_shared<View>(*views_[thread]);
    View::raise(view->seen, thread, now_[thread]++);
    return view;
}
