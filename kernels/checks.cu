// The kernels of the checks: a null kernel, operands of the matrix product, a checksum, and operands and proof of
// the collectives. They measure nothing and decide nothing; src/cuda/pattern.rs says the same in Rust.
//
// No header is included, so NVRTC needs no folder of headers; bf16 is its 16 bits. checks.ptx beside this file is
// generated from it and tests/ptx.rs holds the two together. The macros let a C compiler take the same text, with
// definitions of its own, for tests on the processor.

#ifndef KERNEL
#define KERNEL extern "C" __global__
#define INLINE static __device__ __forceinline__
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Each thread starts at FIRST and goes on by STRIDE, so that any grid covers any number of elements.
#define FIRST ((u64)blockIdx.x * blockDim.x + threadIdx.x)
#define STRIDE ((u64)gridDim.x * blockDim.x)

// Output number `index` of SplitMix64 that was started with `seed`.
INLINE u64 splitmix(u64 seed, u64 index) {
    u64 z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Does nothing: what is measured is the way to it.
KERNEL void aimaster_null(void) {}

// bf16 values k / 256, k from -256 to 255: every one is a bf16, and a sum of their products is a multiple of 2^-16.
KERNEL void aimaster_fill_bf16(u16 *out, u64 count, u64 seed) {
    for (u64 i = FIRST; i < count; i += STRIDE) {
        int k = (int)(splitmix(seed, i) >> 55) - 256;
        // The lower half of the float's bits is zero.
        out[i] = (u16)(__float_as_uint((float)k * (1.0f / 256.0f)) >> 16);
    }
}

// e4m3 values k / 16, k from -16 to 15: every one is an e4m3 above its subnormals.
KERNEL void aimaster_fill_e4m3(u8 *out, u64 count, u64 seed) {
    for (u64 i = FIRST; i < count; i += STRIDE) {
        int k = (int)(splitmix(seed, i) >> 59) - 16;
        u32 bits = __float_as_uint((float)k * (1.0f / 16.0f));
        // The exponent's bias is 7 in place of 127, and three bits of the mantissa are kept; the others are zero.
        u32 magnitude = k == 0 ? 0 : ((bits >> 20) & 0x7FF) - ((127 - 7) << 3);
        out[i] = (u8)((bits >> 31) << 7 | magnitude);
    }
}

// Adds the words' checksum to *sum. A sum of hashes of value and place: the order of the threads does not matter,
// the places of the words do.
KERNEL void aimaster_checksum(const u32 *words, u64 count, u64 *sum) {
    u64 part = 0;
    for (u64 i = FIRST; i < count; i += STRIDE) part += splitmix(words[i], i);
    atomicAdd(sum, part);
}

// The part of a value that depends on the place: 0 to 63.
INLINE u32 place(u64 index) { return (u32)(splitmix(0, index) >> 58); }

// What a rank brings to a collective: an integer from 0 to 318, so that sums over up to 65536 ranks stay below 2^24
// and are exact in any order.
KERNEL void aimaster_fill_rank(float *out, u64 count, u32 rank) {
    for (u64 i = FIRST; i < count; i += STRIDE) out[i] = (float)(place(i) + (rank & 255));
}

// Adds to *wrong the number of elements that differ from what a collective must leave. The buffer is made of chunks;
// element j of chunk q must be factor * place(origin + j) + offset + step * (q & 255).
KERNEL void aimaster_count_wrong(const float *data, u64 count, u64 chunk, u64 origin, u32 factor, u32 offset,
                                 u32 step, u64 *wrong) {
    u64 part = 0;
    for (u64 i = FIRST; i < count; i += STRIDE) {
        u64 q = i / chunk;
        u32 expected = factor * place(origin + (i - q * chunk)) + offset + step * (u32)(q & 255);
        // Not `!=`'s other way round: NaN is wrong too.
        if (!(data[i] == (float)expected)) part += 1;
    }
    if (part != 0) atomicAdd(wrong, part);
}
