// Products of a warpgroup on tensor cores (wgmma).
//
// Operands are found by the bits of their descriptors, as on the GPU (PTX ISA, "Matrix descriptor
// format" of wgmma): bits 0 to 13, the shared address / 16; 16 to 29, the leading dimension byte
// offset / 16; 32 to 45, the stride byte offset / 16; 49 to 51, the base offset; 62 and 63, the
// swizzle. A thread computes its part of the result when it waits for it, which is as late as the
// hardware may read the operands.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "emulator/narrow.h"
#include "scheduler.h"

using namespace emulator;

static constexpr unsigned ATOM = 1024;   // bytes of 8 rows, in which the swizzle repeats
static constexpr unsigned SWIZZLE_128 = 1;

// Columns that one wgmma sums over: those of 32 bytes.
static constexpr int depth_of(Factors factors) { return factors == TFLOAT32 ? 8 : 16; }

struct Operand {
    unsigned start, leading, stride, base_offset, swizzle, size;  // the bytes of an element
    int depth;
    bool mn_major;  // of 16-bit elements only

    Operand(unsigned long long descriptor, Factors factors, bool mn_major = false)
        : size(factors == TFLOAT32 ? 4 : 2), depth(depth_of(factors)), mn_major(mn_major) {
        auto field = [descriptor](int at) { return (unsigned)(descriptor >> at & 0x3fff) * 16; };
        start = field(0), leading = field(16), stride = field(32);
        base_offset = (unsigned)(descriptor >> 49 & 7);
        swizzle = (unsigned)(descriptor >> 62);
    }
    // Where element (row, k) lies: the position in the block's shared memory.
    unsigned at(int row, int k) const {
        unsigned address = mn_major ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 +
                                          row % 64 * 2
                                    : start + row / 8 * stride + row % 8 * 128 + k * size;
        address ^= (address >> 7 & 7) << 4;
        return address % SharedLayout::BYTES;
    }
    // The positions of all pieces of 16 bytes of a matrix of so many rows.
    std::vector<unsigned> pieces(int rows) const {
        std::vector<unsigned> found;
        for (int row = 0; row < rows; row += mn_major ? 8 : 1)
            for (int k = 0; k < depth; k += mn_major ? 1 : depth / 2) found.push_back(at(row, k));
        return found;
    }
};

// A factor from its bits, of which there are 16 or 32. Of float32, the last 13 are not read.
static inline float widen(uint32_t bits, Factors factors) {
    if (factors == TFLOAT32) return bit_cast<float>(bits & ~0x1fffu);
    return factors == FLOAT16 ? Half::widen((uint16_t)bits) : Bfloat16::widen((uint16_t)bits);
}

// The factors of one row of an operand.
template <Factors FACTORS>
static void load(const Operand &operand, int row, const char *memory, float *factors) {
    constexpr int DEPTH = depth_of(FACTORS);
    using Bits = std::conditional_t<FACTORS == TFLOAT32, uint32_t, uint16_t>;
    Bits bits[DEPTH];
    if (operand.mn_major) {
        for (int k = 0; k < DEPTH; k++)
            std::memcpy(&bits[k], memory + operand.at(row, k), sizeof(Bits));
    } else {  // two pieces of 16 bytes
        for (int k = 0; k < DEPTH; k += DEPTH / 2)
            std::memcpy(&bits[k], memory + operand.at(row, k), 16);
    }
    for (int k = 0; k < DEPTH; k++) factors[k] = widen(bits[k], FACTORS);
}

// This thread's part of d += a @ b.T: two rows, and two of every eight columns. All sums of a row
// take their next product in turn, so that the compiler can vectorize.
template <Factors FACTORS>
static void multiply(const Product &product, float *d, int thread, const char *memory) {
    constexpr int DEPTH = depth_of(FACTORS), WIDTH = 16;
    const Wgmma &wgmma = product.wgmma;
    Operand a(wgmma.a, FACTORS, wgmma.a_mn_major), b(wgmma.b, FACTORS, wgmma.b_mn_major);
    float rows[2][DEPTH];
    for (int r = 0; r < 2; r++) {
        if (wgmma.a_registers)
            std::copy_n(product.a[r], DEPTH, rows[r]);
        else
            load<FACTORS>(a, thread / 32 * 16 + thread % 32 / 4 + 8 * r, memory, rows[r]);
    }
    int columns = product.count / 2;
    for (int first = 0; first < columns; first += WIDTH) {
        int width = std::min(WIDTH, columns - first);
        float factors[DEPTH][WIDTH] = {};
        for (int j = 0; j < width; j++) {
            int column = (first + j) / 2 * 8 + thread % 4 * 2 + j % 2;
            float one[DEPTH];
            load<FACTORS>(b, column, memory, one);
            for (int k = 0; k < DEPTH; k++) factors[k][j] = one[k];
        }
        for (int r = 0; r < 2; r++) {
            auto element = [&](int j) -> float & { return d[(first + j) / 2 * 4 + 2 * r + j % 2]; };
            float sums[WIDTH] = {};
            for (int j = 0; wgmma.add && j < width; j++) sums[j] = element(j);
            for (int k = 0; k < DEPTH; k++)
                for (int j = 0; j < WIDTH; j++) sums[j] += rows[r][k] * factors[k][j];
            for (int j = 0; j < width; j++) element(j) = sums[j];
        }
    }
}

static auto multiplication(Factors factors) {
    if (factors == TFLOAT32) return multiply<TFLOAT32>;
    return factors == FLOAT16 ? multiply<FLOAT16> : multiply<BFLOAT16>;
}

// Refuses an operand whose descriptor does not describe rows of one array in shared memory.
static void check(Worker &worker, const Operand &operand, int rows, const char *name,
                  const void *pc) {
    const SharedArray *array = worker.layout.find((size_t)operand.start);
    unsigned atoms = operand.start / 128 % 8;
    bool several = operand.mn_major && rows > 64;
    if (operand.swizzle != SWIZZLE_128)
        worker.refuse(MISALIGNED, pc,
                      "wgmma: the descriptor of operand %s does not have the 128-byte swizzle",
                      name);
    if (atoms != operand.base_offset)
        worker.refuse(MISALIGNED, pc,
                      "wgmma: operand %s begins at shared address %u, %u bytes behind a multiple "
                      "of 1024, and so not in the first of the 8 rows that are swizzled together",
                      name, operand.start, operand.start % ATOM);
    if (operand.stride % ATOM || (several && operand.leading % ATOM))
        worker.refuse(MISALIGNED, pc,
                      "wgmma: the stride byte offset %u or the leading dimension byte offset %u of "
                      "operand %s is not a multiple of 1024 (a kernel in a cluster that reads a "
                      "transposed operand needs Define: IN_CLUSTER = 1)",
                      operand.stride, operand.leading, name);
    for (unsigned piece : operand.pieces(rows)) {
        if (!array) worker.out_of_bounds({"shared memory", -1, 16, piece}, ACCESS_READ, pc);
        int64_t offset = (int64_t)piece - (int64_t)array->offset;
        if (offset < 0 || offset >= (int64_t)array->bytes)
            worker.out_of_bounds({array->name, -1, 16, offset}, ACCESS_READ, pc);
    }
}

// The oldest that has not been waited for and adds to `d`, or nullptr.
static Product *next_product(Pending<Product> &products, const float *d) {
    for (Product &product : products.tasks)
        if (product.d == d) return &product;
    return nullptr;
}

// An access to a thread's own variables, in counting mode: not to accumulators in flight.
void Worker::check_accumulators(const char *at, int bytes, const void *pc) {
    for (const Product &product : fiber().products.tasks) {
        const char *begin = (const char *)product.d, *end = begin + product.count * sizeof(float);
        if (at + bytes <= begin || at >= end) continue;
        refuse(IN_FLIGHT, pc, "accesses accumulators of a wgmma that no wgmma_wait covers");
    }
}

void emulator::emulator_wgmma(float *d, int count, const Wgmma *wgmma) {
    Worker &worker = *this_worker;
    Fiber &fiber = worker.fiber();
    Product product{d, count, *wgmma, {}, {}, CALLER};
    if (wgmma->a_registers) {  // the lanes of a row's four threads have its columns
        auto lanes = (const unsigned *const *)worker.at_warp(
            WARP_GATHER, ~0ull, (uint64_t)wgmma->a_registers, 0, CALLER);
        for (int r = 0; r < 2; r++) {
            int depth = depth_of(wgmma->factors), each = depth / 8;  // elements in a register
            for (int k = 0; k < depth; k++) {
                int lane = fiber.lane / 4 * 4 + k / each % 4;
                unsigned bits = lanes[lane][r + k / (4 * each) * 2] >> k % each * 16;
                product.a[r][k] = widen(bits, wgmma->factors);
            }
        }
    }
    worker.at_warp(WARP_SYNC, ~0ull, 0, 0, CALLER);
    // Of this group, another round of an unrolled loop may have registers of its own.
    for (size_t i = 0; i + fiber.products.ungrouped < fiber.products.tasks.size(); i++) {
        const Product &older = fiber.products.tasks[i];
        if (older.wgmma.a_registers && older.wgmma.a_registers == wgmma->a_registers &&
            older.pc == product.pc && older.d == d &&
            std::memcmp(older.a, product.a, sizeof product.a))
            worker.refuse(IN_FLIGHT, CALLER,
                          "starts a wgmma whose registers of A have changed, though no wgmma_wait "
                          "covers the one before that reads them");
    }
    worker.note("starts", "wgmma", -1, fiber.products.committed + 1, CALLER);
    if (fiber.lane == 0) {
        Operand a(wgmma->a, wgmma->factors, wgmma->a_mn_major);
        Operand b(wgmma->b, wgmma->factors, wgmma->b_mn_major);
        if (!wgmma->a_registers) check(worker, a, 64, "a", CALLER);
        check(worker, b, wgmma->columns, "b", CALLER);
        if (MemoryModel *memory = worker.launch->memory.get()) {
            if (!wgmma->a_registers) memory->read_operand(worker, a.pieces(64), CALLER);
            memory->read_operand(worker, b.pieces(wgmma->columns), CALLER);
        }
    }
    if (!next_product(fiber.products, d)) {
        if (!fiber.fenced)
            worker.refuse(IN_FLIGHT, CALLER, "starts a wgmma, and no wgmma_fence comes before it");
        auto fenced = fiber.accumulators.find(d);
        if (wgmma->add && fenced != fiber.accumulators.end() &&
            std::memcmp(d, fenced->second.data(), std::min(count, (int)fenced->second.size()) * 4))
            worker.refuse(IN_FLIGHT, CALLER,
                          "starts a wgmma on accumulators that have changed since the last "
                          "wgmma_fence");
        product.value.assign(d, d + count);
        std::fill_n(d, count, NAN);
    }
    fiber.products.start(std::move(product));
}

void emulator::emulator_wgmma_fence() {
    Fiber &fiber = this_worker->fiber();
    fiber.fenced = true;
    for (auto &[d, value] : fiber.accumulators) value.assign(d, d + value.size());
}

void emulator::emulator_wgmma_commit() { this_worker->fiber().products.commit(); }

void emulator::emulator_wgmma_wait(int pending_groups) {
    Worker &worker = *this_worker;
    Fiber &fiber = worker.fiber();
    const char *memory = worker.member().shared.begin;
    int thread = fiber.warp % 4 * 32 + fiber.lane;  // of the warpgroup
    Time groups = fiber.products.wait(pending_groups, [&](Product &product) {
        multiplication(product.wgmma.factors)(product, product.value.data(), thread, memory);
        if (Product *next = next_product(fiber.products, product.d)) {
            next->value = std::move(product.value);
            return;
        }
        std::copy(product.value.begin(), product.value.end(), product.d);
        fiber.accumulators[product.d] = std::move(product.value);
    });
    worker.note("joins", "wgmma", -1, groups, CALLER);
    if (worker.launch->memory) worker.launch->memory->complete_products(worker, groups);
}
