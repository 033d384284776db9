// Host code, as people write it for load_inline and for online judges: what it calls of CUDA's
// runtime, of PyTorch and of C++'s library. ../host.py hands out memory, and runs each launch as
// that of any kernel. The compiler refuses what is not here by its name.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator/launch.h"
#include "emulator/memcpy_async.h"

#define EMULATOR_HERE int line = __builtin_LINE()  // of whoever calls

struct __jmp_buf_tag {
    alignas(16) char registers[512];
};
extern "C" int _setjmp(__jmp_buf_tag *) noexcept __attribute__((returns_twice));
extern "C" void longjmp(__jmp_buf_tag *, int) noexcept __attribute__((noreturn));

namespace emulator {

// Asks Python, ../host.py, for what the host code needs; without numbers, to say what is wrong. The
// answer 0 ends the user's function.
inline size_t (*python)(const char *what, int line, const size_t *numbers);
inline __jmp_buf_tag way_out;
inline void *ask(const char *what, int line, const size_t *numbers = nullptr) {
    size_t answer = python(what, line, numbers);
    if (!answer) longjmp(&way_out, 1);
    return (void *)answer;
}
inline void *allocate(size_t bytes, int element_bytes, int line) {
    size_t numbers[] = {bytes, (size_t)element_bytes};
    return ask("cudaMalloc", line, numbers);
}

template <class... P>
void (*launched)(P...);
template <class... P>
EMULATOR_UNCOUNTED void enter(void **arguments) {
    call(launched<P...>, arguments);
}
// `k<<<grid, block>>>(a, n)` has become `launch("k", 7, k, grid, block)(a, n)`.
template <class... P>
auto launch(const char *name, int line, void (*kernel)(P...), dim3 grid, dim3 block,
            size_t shared = 0, const void * = nullptr) {
    return [=](P... given) {
        launched<P...> = kernel;
        void *arguments[] = {(void *)&given..., nullptr};
        Parameter parameters[sizeof...(P) + 1];
        size_t count = describe(kernel, parameters);
        size_t numbers[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
                            (size_t)enter<P...>, (size_t)arguments, (size_t)parameters, count};
        ask(name, line, numbers);
    };
}

}  // namespace emulator

namespace std {

using ::abs, ::ceil, ::exp, ::floor, ::log, ::log2, ::max, ::min, ::pow, ::size_t, ::sqrt;

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
    bool operator==(const vector &other) const {
        bool same = count == other.count;
        for (size_t i = 0; same && i < count; i++) same = items[i] == other[i];
        return same;
    }
};

}  // namespace std

#define stderr nullptr
#define fprintf(stream, ...) emulator::emulator_print(__VA_ARGS__)
#define exit(status) emulator::ask("exit(" #status ")", __LINE__)

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
struct cudaStream_t {  // the default one: nothing here makes another
    cudaStream_t(const void * = nullptr) {}
    cudaStream_t stream() const { return {}; }
    operator const void *() const { return nullptr; }
};

template <class T>
cudaError_t cudaMalloc(T **memory, size_t bytes, EMULATOR_HERE) {
    *memory = (T *)emulator::allocate(bytes, bytes % 4 ? 1 : 4, line);
    return cudaSuccess;
}
inline cudaError_t cudaFree(void *) { return cudaSuccess; }  // it is kept: another may point there
inline cudaError_t cudaMemset(void *to, int value, size_t bytes, cudaStream_t = {}) {
    memset(to, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(
    void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t = {}) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
template <class T>
cudaError_t cudaMemcpyToSymbol(T &symbol, const void *from, size_t bytes) {
    return cudaMemcpy((void *)&symbol, from, bytes, cudaMemcpyHostToDevice);
}
inline cudaError_t cudaDeviceSynchronize(cudaStream_t = {}) { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return "no error"; }
#define cudaStreamSynchronize cudaDeviceSynchronize
#define cudaGetLastError cudaDeviceSynchronize
#define cudaMemsetAsync cudaMemset
#define cudaMemcpyAsync cudaMemcpy

namespace torch {

enum ScalarType : int64_t { kFloat, kHalf, kBFloat16, kInt, kLong, kByte };  // in the order of host.py
constexpr auto kFloat32 = kFloat, kFloat16 = kHalf, kInt32 = kInt, kInt64 = kLong;
enum DeviceType : int64_t { kCPU, kCUDA };
using IntArrayRef = std::vector<int64_t>;
using Half = __half;
using BFloat16 = __nv_bfloat16;

struct TensorOptions {  // and what device() returns
    ScalarType kind = kFloat;
    DeviceType place = kCPU;

    TensorOptions(ScalarType kind = kFloat, DeviceType place = kCPU) : kind(kind), place(place) {}
    TensorOptions(DeviceType place) : place(place) {}
    TensorOptions dtype(ScalarType other) const { return {other, place}; }
    TensorOptions device(TensorOptions other) const { return {kind, other.place}; }
    bool is_cuda() const { return place == kCUDA; }
};

struct Tensor {  // contiguous; host.py has the same fields
    void *memory;
    IntArrayRef extents;
    TensorOptions traits;

    Tensor() = default;
    Tensor(const IntArrayRef &sizes, TensorOptions options) : extents(sizes), traits(options) {
        size_t bytes = numel() * element_size();
        memory = is_cuda() ? emulator::allocate(bytes, element_size(), 0) : __builtin_malloc(bytes);
    }
    int64_t dim() const { return extents.size(); }
    const IntArrayRef &sizes() const { return extents; }
    int64_t size(int64_t axis, EMULATOR_HERE) const {
        if (axis < 0) axis += dim();
        if (axis < 0 || axis >= dim()) emulator::ask("size() of an axis that is not there", line);
        return extents[axis];
    }
    int64_t numel() const {
        int64_t product = 1;
        for (int64_t size : extents) product *= size;
        return product;
    }
    size_t element_size() const { return "\4\2\2\4\x8\1"[traits.kind]; }
    ScalarType scalar_type() const { return traits.kind; }
    ScalarType dtype() const { return traits.kind; }
    TensorOptions device() const { return traits; }
    TensorOptions options() const { return traits; }
    TensorOptions type() const { return traits; }
    bool is_cuda() const { return traits.is_cuda(); }
    bool is_contiguous() const { return true; }
    Tensor contiguous() const { return *this; }
    template <class T>
    T *data_ptr(EMULATOR_HERE) const {
        if (sizeof(T) != element_size()) emulator::ask("data_ptr of another type", line);
        return (T *)memory;
    }
};

inline Tensor empty(const IntArrayRef &sizes, TensorOptions options = {}) {
    return {sizes, options};
}
inline Tensor zeros(const IntArrayRef &sizes, TensorOptions options = {}) {
    Tensor made(sizes, options);
    memset(made.memory, 0, made.numel() * made.element_size());
    return made;
}
inline Tensor empty_like(const Tensor &like) { return empty(like.sizes(), like.options()); }
inline Tensor zeros_like(const Tensor &like) { return zeros(like.sizes(), like.options()); }
namespace cuda {
inline cudaStream_t getCurrentCUDAStream() { return {}; }
}  // namespace cuda

}  // namespace torch

namespace at = torch;
namespace c10 = torch;

#define PYBIND11_MODULE(NAME, MODULE) template <class T> void emulator_module(T &MODULE)
#define AT_ERROR(...) emulator::ask("AT_ERROR(" #__VA_ARGS__ ")", __LINE__)
#define TORCH_CHECK(CONDITION, ...) \
    ((CONDITION) ? nullptr : emulator::ask("TORCH_CHECK(" #CONDITION ") failed", __LINE__))
#define C10_CUDA_CHECK(CALL) TORCH_CHECK((CALL) == cudaSuccess)
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
    if constexpr (__is_same(Result, void)) return function(argument<P>(arguments[I])...);
    else
        for (const torch::Tensor &each : std::vector<torch::Tensor>(function(argument<P>(arguments[I])...)))
            ask("return", 0, (const size_t *)&each);
}
template <class Result, class... P>
void run(Result (*function)(P...), void **arguments) {
    if (!_setjmp(&way_out)) run(function, arguments, typename make_indices<sizeof...(P)>::type());
}

}  // namespace emulator

#define EMULATOR_HOST_CODE(FUNCTION)                                                    \
    extern "C" EMULATOR_EXPORT void emulator_call_host(                                 \
        decltype(emulator::python) python, void **arguments) {                          \
        emulator::python = python;                                                      \
        emulator::run(FUNCTION, arguments);                                             \
    }
