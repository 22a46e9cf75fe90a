// A fake libcuda for the tests of the CUDA layer: two GPUs whose memory is the process's own and that run the kernels of
// checks.cu, which stands before this text, at once and thread by thread; and switches for what can go wrong.
// conf.h stands before all of it. One function a line, so that a test finds their names.
#include <string.h>

int fake_version = 12040, fake_init = 0, fake_module = 0;
// Compute capability, times ten, and multiprocessors.
int fake_capability = 80, fake_multiprocessors = 4;
// What streams answer.
int fake_answer = 0;
// What is taken and not given back.
int fake_live = 0, fake_contexts = 0;
// Which GPU is out of order (-1: none), what its context, its memory and its launches say, and how late.
int fake_gpu = -1, fake_context = 0, fake_context_ms = 0, fake_alloc = 0, fake_launch = 0, fake_launch_ms = 0;
// And what its streams answer.
int fake_query = 0;
// How late the driver's start is.
int fake_init_ms = 0;

// A context is the address of its GPU's place here.
static int places[2];
static __thread int *current;

static int bad(int device, int says, int late_ms) {
    if (device != fake_gpu) return 0;
    rest(late_ms);
    return says;
}
static int here(void) { return current ? (int)(current - places) : -1; }

typedef unsigned long long address;

static const char *const names[] = {"aimaster_null", "aimaster_fill_bf16", "aimaster_fill_e4m3", "aimaster_checksum",
                                    "aimaster_fill_rank", "aimaster_count_wrong"};

static void run(const char *name, void **a) {
    if (name == names[0]) aimaster_null();
    if (name == names[1]) aimaster_fill_bf16(*(u16 **)a[0], *(u64 *)a[1], *(u64 *)a[2]);
    if (name == names[2]) aimaster_fill_e4m3(*(u8 **)a[0], *(u64 *)a[1], *(u64 *)a[2]);
    if (name == names[3]) aimaster_checksum(*(u32 **)a[0], *(u64 *)a[1], *(u64 **)a[2]);
    if (name == names[4]) aimaster_fill_rank(*(float **)a[0], *(u64 *)a[1], *(u32 *)a[2]);
    if (name == names[5])
        aimaster_count_wrong(*(float **)a[0], *(u64 *)a[1], *(u64 *)a[2], *(u64 *)a[3], *(u32 *)a[4], *(u32 *)a[5],
                             *(u32 *)a[6], *(u64 **)a[7]);
}

int cuInit(unsigned flags) { rest(fake_init_ms); return fake_init; }
int cuDriverGetVersion(int *version) { *version = fake_version; return 0; }
int cuGetErrorName(int code, const char **name) { *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : code == 218 ? "CUDA_ERROR_INVALID_PTX" : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : NULL; return *name ? 0 : 1; }
int cuGetErrorString(int code, const char **text) { *text = NULL; return 1; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int room, int device) { snprintf(name, room, "Fake GPU"); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, device, 16); return 0; }
int cuDeviceGetPCIBusId(char *id, int room, int device) { snprintf(id, room, "0000:%s:00.0", device ? "B1" : "A1"); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? fake_capability / 10 : which == 76 ? fake_capability % 10 : fake_multiprocessors; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 30; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { int says = bad(device, fake_context, fake_context_ms); if (!says) { fake_contexts++; *context = &places[device]; } return says; }
int cuDevicePrimaryCtxRelease_v2(int device) { fake_contexts--; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 123456; *total = 1 << 30; return 0; }
int cuMemAlloc_v2(address *at, size_t bytes) { int says = bad(here(), fake_alloc, 0); if (says) return says; if (bytes > 1 << 30) return 2; fake_live++; *at = (address)malloc(bytes); return 0; }
int cuMemFree_v2(address at) { fake_live--; free((void *)at); return 0; }
int cuMemAllocHost_v2(void **at, size_t bytes) { fake_live++; *at = malloc(bytes); return 0; }
int cuMemFreeHost(void *at) { fake_live--; free(at); return 0; }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream) { memcpy(to, (void *)from, bytes); return 0; }
int cuMemsetD8Async(address at, unsigned char value, size_t bytes, void *stream) { memset((void *)at, value, bytes); return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = malloc(1); return 0; }
int cuStreamQuery(void *stream) { int says = bad(here(), fake_query, 0); return says ? says : fake_answer; }
int cuStreamDestroy_v2(void *stream) { free(stream); return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { *ms = 1; return 0; }
int cuEventDestroy_v2(void *event) { free(event); return 0; }
int cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) { if (fake_module) snprintf(values[0], (size_t)values[1], "ptxas fatal: a fake"); *module = malloc(1); return fake_module; }
int cuModuleUnload(void *module) { free(module); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) { int i; for (i = 0; i < 6; i++) if (!strcmp(name, names[i])) { *function = (void *)names[i]; return 0; } return 500; }
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) { int says = bad(here(), fake_launch, fake_launch_ms); if (says) return says; gridDim.x = x; blockDim.x = bx; for (blockIdx.x = 0; blockIdx.x < x; blockIdx.x++) for (threadIdx.x = 0; threadIdx.x < bx; threadIdx.x++) run(function, arguments); return 0; }
