// The functions that Python calls.
#include <algorithm>
#include <memory>
#include <system_error>
#include <thread>

#include "faults.h"
#include "scheduler.h"

// Workers are kept between launches for their stacks, whose pages are costly to touch first.
static std::mutex pool_mutex;
static std::vector<std::unique_ptr<Worker>> pool;

static void work(Launch *launch) {
    std::unique_ptr<Worker> worker;
    {
        std::lock_guard<std::mutex> lock(pool_mutex);
        if (!pool.empty()) worker = std::move(pool.back()), pool.pop_back();
    }
    if (!worker) worker = std::make_unique<Worker>();
    FaultGuard guard(*launch);
    worker->run(*launch);
    std::lock_guard<std::mutex> lock(pool_mutex);
    pool.push_back(std::move(worker));
}

extern "C" EMULATOR_EXPORT Launch *emulator_launch(void (*kernel)(void **), void **arguments,
                                                   const Options *options, const Buffer *buffers) {
    auto launch = std::make_unique<Launch>();
    launch->kernel = kernel;
    launch->arguments = arguments;
    launch->options = options;
    launch->buffers.assign(buffers, buffers + options->buffer_count);
    find_code(*launch);
    launch->buffers.push_back(  // __device__ variables, and constants: read before any wait
        {launch->code_begin, launch->code_end - launch->code_begin, -1, 1, 0, 1});

    unsigned blocks = options->grid[0] * options->grid[1] * options->grid[2];
    unsigned clusters = blocks / options->cluster;
    launch->cluster_order.resize(clusters);
    for (unsigned i = 0; i < clusters; i++) launch->cluster_order[i] = i;
    if (options->seed) {
        Random random{0x9E3779B97F4A7C15ull * (uint64_t)options->seed + 1};
        random.shuffle(launch->cluster_order);
    }
    if (options->last) launch->cluster_order = {clusters - 1};
    if (options->counting) launch->memory = std::make_unique<MemoryModel>(*launch, blocks);
    launch->records = options->counting && options->record;

    unsigned workers = std::min<unsigned>(options->counting ? 1 : options->workers, clusters);
#ifdef __wasm__  // one worker, and no threads
    work(launch.get());
#else
    std::vector<std::thread> others;
    for (unsigned i = 1; i < workers; i++) {
        try {
            others.emplace_back(work, launch.get());
        } catch (const std::system_error &) {  // no more threads: those that there are do it all
            break;
        }
    }
    work(launch.get());
    for (std::thread &other : others) other.join();
#endif

    Result &result = launch->result;
    result.problems = launch->problems.data();
    result.problem_count = launch->problems.size();
    if (launch->memory) {
        result.sites = launch->memory->sites.data();
        result.site_count = launch->memory->sites.size();
        result.requests = launch->memory->requests.data();
        result.request_count = launch->memory->requests.size();
    }
    bool wrong = !launch->problems.empty() || launch->first_events.empty();
    const std::vector<Event> &events = wrong ? launch->events : launch->first_events;
    result.events = events.data();
    result.event_count = events.size();
    result.printed = launch->printed.data();
    result.printed_bytes = launch->printed.size();
    result.library_base = launch->code_begin;
    return launch.release();
}

extern "C" EMULATOR_EXPORT const Result *emulator_result(const Launch *launch) {
    return &launch->result;
}

extern "C" EMULATOR_EXPORT void emulator_free(Launch *launch) { delete launch; }
