// The plain way to launch a kernel, for `cargo xtask bench gpu`: an empty kernel, one thread a GPU, all at once, by the
// driver's call, as our worker has it, or by the runtime's. A line "driver 20000" or "runtime 20000" in; a line out:
// for each GPU median and 99th percentile of the launch call and median of launch and end, µs.

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static const int WARM_UP = 200;

__global__ void empty() {}

static void must(cudaError_t code, const char *call) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(code));
    exit(1);
}

static void must(CUresult code, const char *call) {
    if (code == CUDA_SUCCESS) return;
    fprintf(stderr, "%s: error %d\n", call, (int)code);
    exit(1);
}

// Nearest rank, in sorted samples.
static double quantile(const std::vector<double> &sorted, double share) {
    size_t rank = (size_t)(share * sorted.size() + 0.999999);
    return sorted[rank == 0 ? 0 : rank - 1];
}

// A GPU with what is launched to it.
struct Target {
    cudaStream_t stream;
    CUfunction function;
};

static Target target(int gpu) {
    Target target;
    must(cudaSetDevice(gpu), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&target.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    must(cudaGetFuncBySymbol(&target.function, (const void *)empty), "cudaGetFuncBySymbol");
    return target;
}

static void launches(int gpu, Target target, bool driver, int samples, std::atomic<int> *waiting, double *found) {
    using clock = std::chrono::steady_clock;
    auto us = [](clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
    must(cudaSetDevice(gpu), "cudaSetDevice");
    // All GPUs are launched to at the same time.
    waiting->fetch_sub(1);
    while (waiting->load() > 0) std::this_thread::yield();
    std::vector<double> call, done;
    for (int round = 0; round < WARM_UP + samples; round++) {
        auto before = clock::now();
        if (driver) {
            must(cuLaunchKernel(target.function, 1, 1, 1, 1, 1, 1, 0, target.stream, nullptr, nullptr), "cuLaunchKernel");
        } else {
            must(cudaLaunchKernel((const void *)empty, dim3(1), dim3(1), nullptr, 0, target.stream), "cudaLaunchKernel");
        }
        auto called = clock::now();
        must(cudaStreamSynchronize(target.stream), "cudaStreamSynchronize");
        auto ended = clock::now();
        if (round < WARM_UP) continue;
        call.push_back(us(called - before));
        done.push_back(us(ended - before));
    }
    std::sort(call.begin(), call.end());
    std::sort(done.begin(), done.end());
    found[0] = quantile(call, 0.5);
    found[1] = quantile(call, 0.99);
    found[2] = quantile(done, 0.5);
}

int main() {
    int gpus = 0, samples = 0;
    must(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    std::vector<Target> targets;
    for (int gpu = 0; gpu < gpus; gpu++) targets.push_back(target(gpu));
    char how[16];
    while (scanf("%15s %d", how, &samples) == 2) {
        bool driver = strcmp(how, "driver") == 0;
        if (samples < 1 || (!driver && strcmp(how, "runtime") != 0)) {
            fprintf(stderr, "%s %d: \"driver\" or \"runtime\", and how many launches\n", how, samples);
            return 2;
        }
        std::atomic<int> waiting(gpus);
        std::vector<std::thread> threads;
        std::vector<double> found(3 * gpus);
        for (int gpu = 0; gpu < gpus; gpu++) {
            threads.emplace_back(launches, gpu, targets[gpu], driver, samples, &waiting, &found[3 * gpu]);
        }
        for (std::thread &thread : threads) thread.join();
        for (double number : found) printf("%.4f ", number);
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
