// What CUDA brings to checks.cu, for a C compiler and one thread at a time.
#define KERNEL static
#define INLINE static inline
struct size { unsigned x, y, z; };
static __thread struct size blockIdx, threadIdx, blockDim, gridDim;
static unsigned __float_as_uint(float value) {
    union { float value; unsigned bits; } both = {value};
    return both.bits;
}
static void atomicAdd(unsigned long long *to, unsigned long long value) { *to += value; }
