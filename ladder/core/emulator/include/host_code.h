// Host code, as people write it for load_inline and for online judges: what it calls of CUDA's
// runtime, of PyTorch and of C++'s library. ../host.py hands out memory, and runs each launch as
// that of any kernel. The compiler refuses what is not here by its name.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator/launch.h"
#include "emulator/memcpy_async.h"

namespace emulator {

extern "C" int _setjmp(long *) noexcept __attribute__((returns_twice));
extern "C" void longjmp(long *, int) noexcept __attribute__((noreturn));

// Asks Python for something; without numbers, says what is wrong. 0 ends the user's function.
using Python = size_t (*)(const char *what, int line, const size_t *numbers);
inline Python python;
inline long way_out[64];
inline void *ask(const char *what, int line, const size_t *numbers = nullptr) {
    size_t answer = python(what, line, numbers);
    if (!answer) longjmp(way_out, 1);
    return (void *)answer;
}

template <class... P>
void (*launched)(P...);
template <class... P>
EMULATOR_UNCOUNTED void enter(void **arguments) {
    call(launched<P...>, arguments);
}
// `k<<<grid, block>>>(a, n)` has become `launch("k", 7, 0, k, grid, block)(a, n)`.
template <class... P>
auto launch(const char *name, int line, size_t bound, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t shared = 0, const void * = nullptr) {
    return [=](P... given) {
        launched<P...> = kernel;
        void *arguments[] = {(void *)&given..., nullptr};
        Parameter parameters[sizeof...(P) + 1];
        size_t count = describe(kernel, parameters);
        size_t numbers[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, bound,
                            (size_t)enter<P...>, (size_t)arguments, (size_t)parameters, count};
        ask(name, line, numbers);
    };
}
}  // namespace emulator

enum { EXIT_SUCCESS, EXIT_FAILURE };
#define exit(CODE) emulator::ask("the host code calls exit", __LINE__)
#define fprintf(STREAM, ...) printf(__VA_ARGS__)
#define fflush(STREAM) printf("%s", "")
extern "C" void *malloc(size_t bytes) noexcept;
extern "C" void *calloc(size_t count, size_t bytes) noexcept;
extern "C" void free(void *memory) noexcept;

namespace std {
namespace emulator = ::emulator;  // for std::printf, a macro
using ::abs, ::ceil, ::exp, ::floor, ::log, ::log2, ::max, ::min, ::pow, ::size_t, ::sqrt;
using ::calloc, ::free, ::malloc;

constexpr struct Stream {  // of text and numbers
    const Stream &operator<<(const char *text) const { return printf("%s", text), *this; }
    const Stream &operator<<(char *text) const { return *this << (const char *)text; }
    const Stream &operator<<(char letter) const { return printf("%c", letter), *this; }
    const Stream &operator<<(double number) const { return printf("%g", number), *this; }
    const Stream &operator<<(float number) const { return *this << (double)number; }
    template <class T>
    const Stream &operator<<(T whole) const { return printf("%lld", (long long)whole), *this; }
} cout, cerr;
constexpr const char *endl = "\n";

template <class T>
struct vector {  // of tensors or sizes: a few
    static_assert(sizeof(T) >= 8, "a std::vector of other than tensors or sizes");
    T items[16];
    size_t count;

    template <class... Given>
    vector(Given... given) : items{T(given)...}, count(sizeof...(Given)) {}
    size_t size() const { return count; }
    const T &operator[](size_t index) const { return items[index]; }
    const T *begin() const { return items; }
    const T *end() const { return items + count; }
    bool operator==(const vector &other) const { return !__builtin_memcmp(this, &other, sizeof other); }
};
}  // namespace std

enum cudaError_t { cudaSuccess };
struct cudaStream_t {  // the default one: nothing here makes another
    cudaStream_t(const void * = nullptr) {}
    cudaStream_t stream() const { return {}; }
    operator const void *() const { return nullptr; }
};
template <class T>
cudaError_t cudaMalloc(T **memory, size_t bytes, int line = __builtin_LINE()) {
    *memory = (T *)emulator::ask("cudaMalloc", line, &bytes);
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize(const void * = nullptr) { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
#define cudaFree(MEMORY) cudaDeviceSynchronize( \
    (MEMORY) ? emulator::ask("cudaFree", __LINE__, &(const size_t &)(size_t)(MEMORY)) : nullptr)
#define cudaStreamSynchronize cudaDeviceSynchronize
#define cudaGetLastError cudaDeviceSynchronize
#define cudaPeekAtLastError cudaDeviceSynchronize
#define cudaMemset(TO, VALUE, BYTES, ...) cudaDeviceSynchronize(memset(TO, VALUE, BYTES))
#define cudaMemsetAsync cudaMemset
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                      cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
inline cudaError_t copy(int line, void *to, void *from, size_t bytes, int kind, cudaStream_t = {}) {
    size_t numbers[] = {(size_t)to, (size_t)from, (size_t)kind};
    emulator::ask("cudaMemcpy", line, numbers);
    return cudaDeviceSynchronize(memcpy(to, from, bytes));
}
#define cudaMemcpy(TO, FROM, ...) copy(__LINE__, TO, (void *)(FROM), __VA_ARGS__)
#define cudaMemcpyAsync cudaMemcpy
#define cudaMemcpyToSymbol(TO, FROM, BYTES) cudaMemcpy((void *)&(TO), FROM, BYTES, cudaMemcpyDefault)

namespace torch {
enum ScalarType : int64_t { kFloat, kHalf, kBFloat16, kInt, kLong, kByte };  // host.py has the same
constexpr auto kFloat32 = kFloat, kFloat16 = kHalf, kInt32 = kInt, kInt64 = kLong;
enum DeviceType : int64_t { kCPU, kCUDA };
using IntArrayRef = std::vector<int64_t>;
using Half = __half;
using BFloat16 = __nv_bfloat16;

struct TensorOptions {  // and what device() returns
    ScalarType kind;
    DeviceType place;
    TensorOptions(ScalarType kind = kFloat, DeviceType place = kCPU) : kind(kind), place(place) {}
    TensorOptions(DeviceType place) : kind(kFloat), place(place) {}
    TensorOptions dtype(ScalarType other) const { return {other, place}; }
    TensorOptions device(TensorOptions other) const { return {kind, other.place}; }
    bool is_cuda() const { return place == kCUDA; }
};

struct Tensor {  // contiguous; host.py has the same fields
    void *memory;
    IntArrayRef extents;
    TensorOptions traits;

    Tensor() = default;
    Tensor(IntArrayRef sizes, TensorOptions of, bool zero = false) : extents(sizes), traits(of) {
        if (is_cuda()) cudaMalloc(&memory, nbytes());
        else memory = __builtin_malloc(nbytes());
        if (zero) memset(memory, 0, nbytes());
    }
    int64_t dim() const { return extents.size(); }
    const IntArrayRef &sizes() const { return extents; }
    int64_t size(int64_t axis, int line = __builtin_LINE()) const {
        if (axis < -dim() || axis >= dim()) emulator::ask("size of an axis that it lacks", line);
        return extents[axis < 0 ? axis + dim() : axis];
    }
    int64_t numel() const {
        int64_t product = 1;
        for (int64_t size : extents) product *= size;
        return product;
    }
    size_t element_size() const { return "\4\2\2\4\x8\1"[traits.kind]; }
    size_t nbytes() const { return numel() * element_size(); }
    ScalarType scalar_type() const { return traits.kind; }
    ScalarType dtype() const { return traits.kind; }
    TensorOptions device() const { return traits; }
    TensorOptions options() const { return traits; }
    TensorOptions type() const { return traits; }
    bool is_cuda() const { return traits.is_cuda(); }
    bool is_contiguous() const { return true; }
    Tensor contiguous() const { return *this; }
    template <class T>
    T *data_ptr(int line = __builtin_LINE()) const {  // of whoever calls
        if (sizeof(T) != element_size()) emulator::ask("data_ptr of another type", line);
        return (T *)memory;
    }
};

inline Tensor empty(IntArrayRef sizes, TensorOptions of = {}) { return {sizes, of}; }
inline Tensor zeros(IntArrayRef sizes, TensorOptions of = {}) { return {sizes, of, true}; }
inline Tensor empty_like(const Tensor &like) { return empty(like.sizes(), like.options()); }
inline Tensor zeros_like(const Tensor &like) { return zeros(like.sizes(), like.options()); }
namespace cuda { inline cudaStream_t getCurrentCUDAStream() { return {}; } }
}  // namespace torch
namespace at = torch;
namespace c10 = torch;

#define PYBIND11_MODULE(NAME, MODULE) template <class T> void emulator_module(T &MODULE)
#define AT_ERROR(...) emulator::ask("AT_ERROR(" #__VA_ARGS__ ")", __LINE__)
#define TORCH_CHECK(CONDITION, ...) \
    ((CONDITION) ? nullptr : emulator::ask("TORCH_CHECK(" #CONDITION ") failed", __LINE__))
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ((void)0)
#define AT_DISPATCH_FLOATING_TYPES(TYPE, NAME, ...)                   \
    TORCH_CHECK(torch::TensorOptions(TYPE).kind == torch::kFloat);    \
    { using scalar_t = float; (__VA_ARGS__)(); }

namespace emulator {

// An argument as Python passes it: a tensor, whose first field is the pointer to its elements, or a
// number as double or long long.
template <class Reference, class T = typename std::remove_reference<Reference>::type>
T argument(void *at) {
    if constexpr (__is_class(T) || is_pointer<T>) return *(T *)at;
    else return parameter_kind((T *)nullptr) == 'f' ? (T) * (double *)at : (T) * (long long *)at;
}

// Calls the user's function, and hands over the tensors that it returns.
template <class Result, class... P, int... I>
void run(Result (*function)(P...), void **arguments, indices<I...>) {
    if constexpr (__is_same(Result, void)) {
        function(argument<P>(arguments[I])...);
    } else {
        std::vector<torch::Tensor> made = function(argument<P>(arguments[I])...);
        for (const torch::Tensor &each : made) ask("return", 0, (const size_t *)&each);
    }
}
#define EMULATOR_HOST \
    extern "C" EMULATOR_EXPORT void emulator_host(emulator::Python python, void **arguments)
template <class Result, class... P>
void run(Result (*function)(P...), Python given, void **arguments) {
    python = given;
    if (!_setjmp(way_out)) run(function, arguments, typename make_indices<sizeof...(P)>::type());
}
}  // namespace emulator
