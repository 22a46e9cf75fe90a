// The plain way to launch a kernel, for `cargo xtask bench gpu`: an empty kernel, the runtime's own calls, one thread a
// GPU, all at once. Prints a line a GPU: median and 99th percentile of the launch call, median of launch and end, µs.

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

static const int WARM_UP = 200;

__global__ void empty() {}

static void must(cudaError_t code, const char *call) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(code));
    exit(1);
}

// Nearest rank, in sorted samples.
static double quantile(const std::vector<double> &sorted, double share) {
    size_t rank = (size_t)(share * sorted.size() + 0.999999);
    return sorted[rank == 0 ? 0 : rank - 1];
}

static void launches(int gpu, int samples, std::atomic<int> *waiting, char *line, size_t length) {
    using clock = std::chrono::steady_clock;
    auto us = [](clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
    cudaStream_t stream;
    must(cudaSetDevice(gpu), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    // All GPUs are launched to at the same time.
    waiting->fetch_sub(1);
    while (waiting->load() > 0) std::this_thread::yield();
    std::vector<double> call, done;
    for (int round = 0; round < WARM_UP + samples; round++) {
        auto before = clock::now();
        must(cudaLaunchKernel((const void *)empty, dim3(1), dim3(1), nullptr, 0, stream), "cudaLaunchKernel");
        auto called = clock::now();
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        auto ended = clock::now();
        if (round < WARM_UP) continue;
        call.push_back(us(called - before));
        done.push_back(us(ended - before));
    }
    std::sort(call.begin(), call.end());
    std::sort(done.begin(), done.end());
    snprintf(line, length, "%.4f %.4f %.4f", quantile(call, 0.5), quantile(call, 0.99), quantile(done, 0.5));
}

int main(int count, char **arguments) {
    int samples = count > 1 ? atoi(arguments[1]) : 0, gpus = 0;
    if (samples < 1) {
        fprintf(stderr, "how many launches?\n");
        return 2;
    }
    must(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    std::atomic<int> waiting(gpus);
    std::vector<std::thread> threads;
    std::vector<std::vector<char>> lines(gpus, std::vector<char>(128));
    for (int gpu = 0; gpu < gpus; gpu++) {
        threads.emplace_back(launches, gpu, samples, &waiting, lines[gpu].data(), lines[gpu].size());
    }
    for (std::thread &thread : threads) thread.join();
    for (const std::vector<char> &line : lines) printf("%s\n", line.data());
    return 0;
}
