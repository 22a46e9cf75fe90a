// A fake cuBLASLt for the tests of the CUDA layer: it suggests three algorithms and multiplies nothing. One function a line, so
// that a test can leave each out.
#include <stddef.h>
#include <string.h>

// Bit i: what it says to running suggestion i is a refusal.
int fake_refuse = 0;
// How many suggestions it has, and products it ran.
int fake_suggestions = 3, fake_products = 0;
// Handles and descriptions that are made and not destroyed.
int fake_live = 0;

struct result { unsigned long long algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

static int make(void **to) { fake_live++; *to = &fake_live; return 0; }
static int destroy(void) { fake_live--; return 0; }
size_t cublasLtGetVersion(void) { return 130100; }
const char *cublasLtGetStatusName(int code) { return code == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : NULL; }
int cublasLtCreate(void **handle) { return make(handle); }
int cublasLtDestroy(void *handle) { return destroy(); }
int cublasLtMatmulDescCreate(void **to, int compute, int scale) { return make(to); }
int cublasLtMatmulDescSetAttribute(void *of, int which, const void *value, size_t bytes) { return 0; }
int cublasLtMatmulDescDestroy(void *one) { return destroy(); }
int cublasLtMatrixLayoutCreate(void **to, int type, unsigned long long rows, unsigned long long columns, long long stride) { return make(to); }
int cublasLtMatrixLayoutDestroy(void *one) { return destroy(); }
int cublasLtMatmulPreferenceCreate(void **to) { return make(to); }
int cublasLtMatmulPreferenceSetAttribute(void *of, int which, const void *value, size_t bytes) { return 0; }
int cublasLtMatmulPreferenceDestroy(void *one) { return destroy(); }
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *what, void *a, void *b, void *c, void *d, void *preference, int wanted, struct result *to, int *count) { int i; for (i = 0; i < fake_suggestions && i < wanted; i++) { memset(&to[i], 0, sizeof to[i]); to[i].algorithm[0] = i; } *count = i; return 0; }
int cublasLtMatmul(void *handle, void *what, const void *one, const void *a, void *al, const void *b, void *bl, const void *zero, const void *c, void *cl, void *d, void *dl, const unsigned long long *algorithm, void *workspace, size_t bytes, void *stream) { if (fake_refuse >> algorithm[0] & 1) return 15; fake_products++; return 0; }
