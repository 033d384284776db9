// The emulator as JavaScript calls it: numbers go in by an array of 32-bit integers, and what was
// seen comes out as JSON. A fault of the kernel, or the end of its time, ends the WebAssembly
// program, which the page starts afresh for every run.
#include <chrono>
#include <cstdlib>
#include <string>

#include "faults.h"
#include "scheduler.h"

extern "C" Launch *emulator_launch(
    void (*kernel)(void **), void **arguments, const Options *options, const Buffer *buffers);
extern "C" void emulator_free(Launch *);

extern "C" {
uintptr_t emulator_pc;  // written by the kernel before each of its calls: see CALLER
}

static const char *constants, *constants_end;  // the kernel's own, which are not counted

void find_code(Launch &launch) {
    launch.code_begin = constants;
    launch.code_end = constants_end;
}
FaultGuard::FaultGuard(const Launch &) {}
FaultGuard::~FaultGuard() {}

namespace {

Launch *last;
std::chrono::steady_clock::time_point end;  // of the time that it may take
std::string json;

void add(const char *key, long long value) {
    json += std::string("\"") + key + "\":" + std::to_string(value) + ",";
}

void add_text(const char *key, const char *text) {
    json += std::string("\"") + key + "\":\"";
    for (; text && *text; text++) {
        char escaped[8];
        if (*text == '"' || *text == '\\') json += '\\', json += *text;
        else if ((unsigned char)*text >= ' ') json += *text;
        else json += (std::snprintf(escaped, sizeof escaped, "\\u%04x", *text), escaped);
    }
    json += "\",";
}

template <class Numbers>
void add_list(const char *key, const Numbers *numbers, int count) {
    json += std::string("\"") + key + "\":[";
    for (int i = 0; i < count; i++) json += (i ? "," : "") + std::to_string((long long)numbers[i]);
    json += "],";
}

void close(char bracket) {
    if (json.back() == ',') json.pop_back();
    json += bracket;
    json += ',';
}

void add_place(const char *key, const Place &place) {
    json += std::string("\"") + key + "\":{";
    add("pc", (long long)(uintptr_t)place.pc);
    add_list("block", place.block, 3);
    add_list("thread", place.thread, 3);
    add("access", place.access);
    close('}');
}

// A list of objects; `each` adds the fields of one.
template <class Item, class Each>
void add_all(const char *key, const Item *items, int64_t count, Each each) {
    json += std::string("\"") + key + "\":[";
    for (int64_t i = 0; i < count; i++) {
        json += '{';
        each(items[i]);
        close('}');
    }
    close(']');
}

}  // namespace

extern "C" {

__attribute__((export_name("allocate"))) void *browser_allocate(size_t bytes) {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}

// `numbers`: grid and block (3 each), dynamic shared bytes, warp size, seed, early, requests to
// trace of each access, seconds, address and bytes of the kernel's constants; then how many arguments
// there are, and for each 1 and its address, bytes, bytes of an element, or 0 and the address of its
// value, 0, 0.
__attribute__((export_name("launch"))) void browser_launch(
    void (*kernel)(void **), const int32_t *numbers) {
    static Options options;
    static std::vector<Buffer> buffers;
    static std::vector<void *> arguments;
    static std::vector<const char *> addresses;
    options = {};
    for (int i = 0; i < 3; i++) options.grid[i] = numbers[i], options.block[i] = numbers[3 + i];
    options.cluster = options.workers = options.counting = 1;
    options.shared_bytes = numbers[6];
    options.shared_limit = 227 << 10;
    options.warp = numbers[7];
    options.seed = numbers[8];
    options.early = numbers[9];
    options.trace = numbers[10];
    options.time_limit = numbers[11];
    constants = (const char *)(uintptr_t)numbers[12];
    constants_end = constants + numbers[13];
    int count = numbers[14];
    buffers.clear();
    arguments.clear();
    addresses.assign(count, nullptr);
    for (int i = 0; i < count; i++) {
        const int32_t *argument = numbers + 15 + 4 * i;
        char *address = (char *)(uintptr_t)argument[1];
        addresses[i] = address;
        arguments.push_back(argument[0] ? (void *)&addresses[i] : (void *)address);
        if (argument[0]) buffers.push_back({address, argument[2], i, argument[3], 0, 0});
    }
    options.buffer_count = (int32_t)buffers.size();
    emulator_free(last);
    end = std::chrono::steady_clock::now() +
          std::chrono::milliseconds((long)(1000 * options.time_limit));
    last = emulator_launch(kernel, arguments.data(), &options, buffers.data());
}

// Whether the launch has taken its time; looked at once in many accesses.
bool emulator_expired() {
    static unsigned calls;
    return ++calls % 65536 == 0 && std::chrono::steady_clock::now() > end;
}

// What the last launch has shown, as JSON; the next call overwrites it.
__attribute__((export_name("result"))) const char *browser_result() {
    const Result &result = last->result;
    json = "{";
    add_all("problems", result.problems, result.problem_count, [](const Problem &problem) {
        add("kind", problem.kind);
        add_place("place", problem.place);
        add_place("other", problem.other);
        add_text("shared", problem.where.shared_name);
        add("argument", problem.where.argument);
        add("bytes", problem.where.bytes);
        add("offset", problem.where.offset);
        add_text("text", problem.text);
    });
    add_all("sites", result.sites, result.site_count, [](const SiteCount &site) {
        add("pc", (long long)(uintptr_t)site.pc);
        add_text("shared", site.shared_name);
        add("argument", site.argument);
        add("access", site.access);
        add("bytes", site.bytes);
        add("requests", site.requests);
        add("lanes", site.lanes);
        add("sectors", site.sectors);
        add("ideal_sectors", site.ideal_sectors);
        add("wavefronts", site.wavefronts);
        add("ideal_wavefronts", site.ideal_wavefronts);
    });
    add_all("requests", result.requests, result.request_count, [](const Request &request) {
        add("site", request.site);
        add("warp", request.warp);
        add_list("block", request.block, 3);
        int lanes[64], count = 0;
        int64_t offsets[64];
        for (int lane = 0; lane < 64; lane++)
            if (request.lanes >> lane & 1) offsets[count] = request.offsets[lane], lanes[count++] = lane;
        add_list("lanes", lanes, count);
        add_list("offsets", offsets, count);
    });
    close('}');
    json.pop_back();
    return json.c_str();
}

}  // extern "C"
