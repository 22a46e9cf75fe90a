// A fake cuBLASLt for the tests of the CUDA layer: it suggests three algorithms and multiplies in
// the simplest way, or not at all. conf.h stands before it. One function a line, so that a test finds their names.
#include <math.h>
#include <stddef.h>
#include <string.h>

// Bit i: what it says to running suggestion i is a refusal.
int fake_refuse = 0;
// Which element of the result gets a wrong bit, counted from 1.
int fake_flip = 0;
// Whether it multiplies: what the checks' own products take is too much for a processor.
int fake_multiply = 1;
// How many suggestions it has, and products it ran.
int fake_suggestions = 3, fake_products = 0;
// Handles and descriptions that are made and not destroyed.
int fake_live = 0;

struct result { unsigned long long algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

// CUDA_R_32F, CUDA_R_16BF and CUDA_R_8F_E4M3.
enum { F32 = 0, BF16 = 14, E4M3 = 28 };
struct layout { int type, n; };

static float bf16(unsigned short bits) {
    union { unsigned bits; float value; } both = {(unsigned)bits << 16};
    return both.value;
}

static unsigned short to_bf16(float value) {
    union { float value; unsigned bits; } both = {value};
    return (both.bits + 0x7FFF + (both.bits >> 16 & 1)) >> 16;
}

static double get(int type, const void *from, int at) {
    if (type == BF16) return bf16(((const unsigned short *)from)[at]);
    unsigned bits = ((const unsigned char *)from)[at];
    double magnitude = (bits >> 3 & 15) ? ldexp(8 + (bits & 7), (int)(bits >> 3 & 15) - 10) : ldexp(bits & 7, -9);
    return bits >> 7 ? -magnitude : magnitude;
}

static void multiply(const struct layout *in, const void *a, const void *b, const struct layout *out, void *d) {
    int row, column, k, n = in->n;
    for (column = 0; column < n; column++)
        for (row = 0; row < n; row++) {
            double sum = 0;
            for (k = 0; k < n; k++) sum += get(in->type, a, row * n + k) * get(in->type, b, column * n + k);
            if (out->type == F32) ((float *)d)[column * n + row] = sum;
            else ((unsigned short *)d)[column * n + row] = to_bf16(sum);
        }
    if (fake_flip) ((unsigned short *)d)[fake_flip - 1] ^= 0x4000;
}

static int make(void **to) { fake_live++; *to = &fake_live; return 0; }
static int destroy(void) { fake_live--; return 0; }
size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasLtGetStatusName(int code) { return code == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : NULL; }
int cublasLtCreate(void **handle) { return make(handle); }
int cublasLtDestroy(void *handle) { return destroy(); }
int cublasLtMatmulDescCreate(void **to, int compute, int scale) { return make(to); }
int cublasLtMatmulDescSetAttribute(void *of, int which, const void *value, size_t bytes) { return 0; }
int cublasLtMatmulDescDestroy(void *one) { return destroy(); }
int cublasLtMatrixLayoutCreate(void **to, int type, unsigned long long rows, unsigned long long columns, long long stride) { struct layout *one = malloc(sizeof *one); one->type = type; one->n = (int)rows; fake_live++; *to = one; return 0; }
int cublasLtMatrixLayoutDestroy(void *one) { free(one); return destroy(); }
int cublasLtMatmulPreferenceCreate(void **to) { return make(to); }
int cublasLtMatmulPreferenceSetAttribute(void *of, int which, const void *value, size_t bytes) { return 0; }
int cublasLtMatmulPreferenceDestroy(void *one) { return destroy(); }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *what, void *a, void *b, void *c, void *d, void *preference, int wanted, struct result *to, int *count) { int i; for (i = 0; i < fake_suggestions && i < wanted; i++) { memset(&to[i], 0, sizeof to[i]); to[i].algorithm[0] = i; } *count = i; return 0; }
int cublasLtMatmul(void *handle, void *what, const void *one, const void *a, void *al, const void *b, void *bl, const void *zero, const void *c, void *cl, void *d, void *dl, const unsigned long long *algorithm, void *workspace, size_t bytes, void *stream) { if (fake_refuse >> algorithm[0] & 1) return 15; fake_products++; if (fake_multiply) multiply(al, a, b, dl, d); return 0; }
