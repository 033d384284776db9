// What ring.py puts below the includes of a kernel: the threads of block 0 print what they do.
#define RECORD(event, address)                                                       \
    (blockIdx.x + blockIdx.y + blockIdx.z == 0                                       \
         ? (void)emulator::emulator_print("@ %d %s %p\n", (int)threadIdx.x, event,   \
                                          (const void *)(address))                   \
         : (void)0)
template <int PENDING>
__forceinline__ void recorded_wait() {
    RECORD("wait", (size_t)PENDING);
    cp_async_wait<PENDING>();
}
#define cp_async_wait recorded_wait
#define cp_async_16(to, from) (RECORD("copy", to), cp_async_16(to, from))
#define cp_async_16_or_zero(to, from, copy) \
    (RECORD("copy", to), cp_async_16_or_zero(to, from, copy))
#define cp_async_commit() (RECORD("commit", (size_t)0), cp_async_commit())
#define ldmatrix_x4(r, row) (RECORD("read", row), ldmatrix_x4(r, row))
#define ldmatrix_x2(r, row) (RECORD("read", row), ldmatrix_x2(r, row))
#define ldmatrix_x4_trans(r, row) (RECORD("read", row), ldmatrix_x4_trans(r, row))
#define ldmatrix_x2_trans(r, row) (RECORD("read", row), ldmatrix_x2_trans(r, row))
