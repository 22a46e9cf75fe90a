"""PyTorch's Gloo all-reduce between two nodes, for the check pytorch_gloo_2.

Started by the worker, which speaks JSON lines with it: commands on standard input, answers on standard output.
It says what it saw and judges nothing. The worker ends it; should the worker die, it ends by itself.
"""

import ctypes
import json
import os
import queue
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from datetime import timedelta

PR_SET_PDEATHSIG = 1
# States of /proc/net/tcp.
ESTABLISHED, LISTENING = "01", "0A"
ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8")
ANSWERING = threading.Lock()
COMMANDS = queue.Queue(maxsize=8)

# Bytes of the all-reduces. The first is the warm-up; a larger one follows where three of them fit.
SIZES = (16 << 10, 256 << 10, 4 << 20)
MOST_ITERATIONS = 10_000
MOST_SAMPLES = 32
MOST_TEXT = 300


def say(**fields):
    with ANSWERING:
        ANSWERS.write(json.dumps(fields) + "\n")
        ANSWERS.flush()


def words(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MOST_TEXT]


def listen_to_worker():
    """Queues commands; the end of standard input is the end of the worker."""
    for line in sys.stdin:
        COMMANDS.put(json.loads(line))
    os._exit(3)


def place(family, text):
    """An address of /proc/net/tcp: 32-bit words in the machine's own order, then the port."""
    address, port = text.split(":")
    parts = [int(address[at:at + 8], 16) for at in range(0, len(address), 8)]
    packed = b"".join(struct.pack("=I", part) for part in parts)
    return [socket.inet_ntop(family, packed), int(port, 16)]


def own_sockets():
    """The TCP sockets of this process by inode: state, own address, the other side's."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith("socket:["):
            own.add(target[len("socket:["):-1])
    found = {}
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        for row in rows:
            if row[9] in own:
                found[row[9]] = (row[3], place(family, row[1]), place(family, row[2]))
    return found


def of_gloo(known, store_port, state):
    """Own addresses of sockets that are neither older than Gloo nor the store's."""
    return [
        local
        for inode, (its_state, local, remote) in own_sockets().items()
        if inode not in known and its_state == state and store_port not in (local[1], remote[1])
    ][:4]


def by_own_name():
    """The address that Gloo takes where no interface is named: the first of the host name that a socket can be bound
    to. Its port is not known yet: 0."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return []
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
            return [[address[0].split("%")[0], 0]]
        except OSError:
            continue
    return []


def watch_listeners(known, store_port, over):
    """Says where Gloo listens as soon as it does: that is the address it gives to the other side. The side that
    connects listens for some milliseconds only, which a busy machine may miss."""
    while not over.wait(0.001):
        new = of_gloo(known, store_port, LISTENING)
        if new:
            say(advertised=new)
            return


def serve(torch_distributed, command):
    """Starts the store at the first port that is free."""
    last = "no port was given"
    for port in command["ports"]:
        try:
            store = torch_distributed.TCPStore(
                "127.0.0.1", port, 2, True, timedelta(seconds=command["limit_s"]), wait_for_workers=False
            )
        except (RuntimeError, OSError) as error:
            last = words(error)
            continue
        say(port=port)
        return store
    say(failed=f"the store finds no free port: {last}")
    return None


class Plan:
    """Rank 0's choice of the next size; the other rank reads it in the sum."""

    def __init__(self, window_s):
        self.window_s = window_s
        self.began = time.monotonic()

    def after(self, index, took, iteration):
        left = self.window_s - (time.monotonic() - self.began) - took
        if index + 1 < len(SIZES) and 3 * took * SIZES[index + 1] / SIZES[index] <= left:
            return index + 1
        if iteration > 1 and (left < took / 2 or iteration >= MOST_ITERATIONS):
            return None
        return index


def measure(torch, dist, rank, window_s):
    plan = Plan(window_s)
    index, took, iteration, right, samples, size = 0, 0.0, 0, 0, [], 0
    began = time.monotonic()
    while index is not None:
        if size != SIZES[index]:
            size, samples = SIZES[index], []
            base = torch.arange(size // 4, dtype=torch.int32)
        data = base * (rank + 1) + (7 * iteration + rank)
        following = plan.after(index, took, iteration) if rank == 0 else None
        # The last element carries rank 0's word; 0 is stop.
        data[-1] = 0 if following is None else following + 1
        dist.barrier()
        started = time.monotonic()
        dist.all_reduce(data)
        took = time.monotonic() - started
        word = int(data[-1])
        exact = base * 3 + (14 * iteration + 1)
        right += int(torch.equal(data[:-1], exact[:-1]) and 0 <= word <= len(SIZES))
        # busbw is 2 (n - 1) / n times size by time, and n is 2.
        if iteration > 0:
            samples.append(size / 1e9 / max(took, 1e-9))
        iteration += 1
        index = word - 1 if 0 < word <= len(SIZES) else None
    return {
        "gb_per_s": statistics.median(samples) if samples else 0.0,
        "bytes": size,
        "iterations": iteration,
        "right": right / iteration,
        "samples": samples[-MOST_SAMPLES:],
        "seconds": time.monotonic() - began,
    }


def join(torch, dist, store, command):
    deadline = time.monotonic() + command["limit_s"]

    def left():
        return timedelta(seconds=max(deadline - time.monotonic(), 0.1))

    over = threading.Event()
    try:
        if store is None:
            store = dist.TCPStore(command["host"], command["port"], 2, False, left(), wait_for_workers=False)
        say(advertised=by_own_name())
        known, port = set(own_sockets()), command["port"]
        watcher = threading.Thread(target=watch_listeners, args=(known, port, over), daemon=True)
        watcher.start()
        dist.init_process_group("gloo", store=store, rank=command["rank"], world_size=2, timeout=left())
        result = measure(torch, dist, command["rank"], command["window_s"])
    except Exception as error:  # Whatever torch raises is the answer.
        say(failed=words(error))
    else:
        over.set()
        watcher.join()
        say(connected=of_gloo(known, port, ESTABLISHED))
        say(result=result)
    over.set()
    return store


def main():
    # The worker's launcher asked for this already; a python of the site's own may have dropped it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(2, 1)
    threading.Thread(target=listen_to_worker, daemon=True).start()
    try:
        import torch
        import torch.distributed as dist
    except ModuleNotFoundError as error:
        if error.name == "torch":
            say(absent="there is no module torch")
            return
        say(broken=words(error))
        return
    except Exception as error:
        say(broken=words(error))
        return
    if not dist.is_available() or not hasattr(dist, "ProcessGroupGloo"):
        say(absent="torch was built without Gloo")
        return
    torch.set_num_threads(1)
    say(ready=str(torch.__version__))
    store = None
    while True:
        command = COMMANDS.get()
        if "ports" in command:
            store = serve(dist, command)
        else:
            store = join(torch, dist, store, command)


main()
