"""PyTorch's side of `cargo xtask bench gpu`: one process a GPU. A line with a command in, a line of JSON out."""
import json
import math
import os
import sys

import torch
import torch.distributed as dist

N = 8192
SIZES = [4 << 20, 64 << 20, 1 << 30]
WINDOWS = 4
WARM_UP = 5

RANK = int(os.environ["RANK"])
RANKS = int(os.environ["WORLD_SIZE"])


def timed(work, times):
    """Seconds of one of several runs, by the GPU's events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def operand(seed):
    """Numbers as the suite's operands: k / 256, k from -256 to 255."""
    random = torch.Generator(device="cuda").manual_seed(seed)
    whole = torch.randint(-256, 256, (N, N), generator=random, device="cuda", dtype=torch.int16)
    return (whole.float() / 256).bfloat16()


OPERANDS = []


def product(window):
    """TFLOP/s: the third best of four windows, as in the suite."""
    if not OPERANDS:
        OPERANDS.extend([operand(1), operand(2), torch.empty(N, N, dtype=torch.bfloat16, device="cuda")])
    a, b, out = OPERANDS
    work = lambda: torch.matmul(a, b, out=out)
    # The first one loads the library, and says nothing of how long a product takes.
    timed(work, 1)
    one = timed(work, WARM_UP)
    times = min(max(math.ceil(window / WINDOWS / one), 1), 256)
    seconds = sorted(timed(work, times) for _ in range(WINDOWS))
    return 2 * N**3 / seconds[WINDOWS // 2] / 1e12


def greatest(seconds):
    """The slowest rank's time, on all ranks."""
    value = torch.tensor([seconds], dtype=torch.float64, device="cuda")
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def collective(name, window):
    """Busbw in GB/s of each size, as nccl-tests counts it."""
    if not dist.is_initialized():
        dist.init_process_group("nccl", rank=RANK, world_size=RANKS, device_id=torch.device("cuda", 0))
    share = (RANKS - 1) / RANKS
    rates = []
    for size in SIZES:
        whole = torch.ones(size // 4 // RANKS * RANKS, device="cuda")
        if name == "all_reduce":
            work, factor = lambda: dist.all_reduce(whole), 2 * share
        elif name == "all_gather":
            part = torch.ones(whole.numel() // RANKS, device="cuda")
            work, factor = lambda: dist.all_gather_into_tensor(whole, part), share
        else:
            other = torch.ones_like(whole)
            work, factor = lambda: dist.all_to_all_single(other, whole), share
        one = greatest(timed(work, WARM_UP))
        times = min(max(int(window / len(SIZES) / one), 3), 100)
        rates.append(factor * size / greatest(timed(work, times)) / 1e9)
    return rates


def versions():
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version())
    return f"PyTorch {torch.__version__} (CUDA {torch.version.cuda}, NCCL {nccl})"


def main():
    for line in sys.stdin:
        command = line.split()
        try:
            if command[0] == "versions":
                answer = versions()
            elif command[0] == "product":
                answer = product(float(command[1]))
            else:
                answer = collective(command[0], float(command[1]))
            print(json.dumps({"value": answer}), flush=True)
        except Exception as error:
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(json.dumps({"error": text}), flush=True)


main()
