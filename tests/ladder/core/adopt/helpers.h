#define CHECK(call) do { if ((call) != cudaSuccess) exit(1); } while (0)
inline int divide_up(int a, int b) { return (a + b - 1) / b; }
