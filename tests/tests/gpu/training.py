"""Steps of a training job with NCCL, one GPU a rank, and the fault that the first argument names.

Usage: training.py FAULT SECONDS, as a task of Slurm; MASTER_ADDR is the first node. It prints "steady" after its first
steps, and "fault" at the moment when the fault begins.
"""

import datetime
import os
import signal
import sys
import threading
import time

# Nodes that share a machine are nodes to NCCL as well.
os.environ["NCCL_HOSTID"] = os.environ["SLURMD_NODENAME"]
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STEADY_STEPS = 200
LATE_S = 0.02
FOR_EVER_S = 3600


def say(word: str) -> None:
    print(word, flush=True)


def main() -> None:
    fault, seconds = sys.argv[1], float(sys.argv[2])
    rank, ranks = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    culprit = rank == ranks - 1
    torch.cuda.set_device(0)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29400, ranks, rank == 0)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=ranks)
    second = dist.new_group(list(range(ranks)))
    weights = torch.randn(2048, 2048, device="cuda")
    gradients = torch.ones(1 << 20, device="cuda")

    def step() -> None:
        torch.mm(weights, weights)
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX)
        dist.all_reduce(gradients, op=dist.ReduceOp.MAX, group=second)

    step()
    torch.cuda.synchronize()
    one = step
    if fault.startswith("graph"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        one = graph.replay

    begun = time.monotonic()
    number = 0
    stop = torch.zeros(1, device="cuda")
    while True:
        number += 1
        if number == STEADY_STEPS and culprit:
            say("steady")
        if number > STEADY_STEPS and culprit:
            if number == STEADY_STEPS + 1 and fault not in ("clean", "graph_clean"):
                say("fault")
            if fault == "before":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif fault in ("waits", "graph_waits"):
                store.wait(["never"], datetime.timedelta(seconds=FOR_EVER_S))
            elif fault == "skips":
                dist.all_reduce(gradients, op=dist.ReduceOp.MAX, group=second)
                torch.cuda.synchronize()
            elif fault == "late":
                time.sleep(LATE_S)
        if number > STEADY_STEPS and fault == "inside":
            large = torch.ones(1 << 30, device="cuda")
            if culprit:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()
            dist.all_reduce(large, op=dist.ReduceOp.MAX)
        one()
        torch.cuda.synchronize()
        # All ranks end after the same step.
        if number % 100 == 0:
            stop.fill_(time.monotonic() - begun > seconds)
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item():
                return


main()
os._exit(0)
