"""Pull and push from Python next to rowraft-bench, in one run on one cluster; and the floor of a call.

    make bench-python ARGS="--rounds 5"

The unit of work is that of bench/README.md: 8,192 different keys a call, dim 16 float32, 1 M rows, uniform keys, four
threads with a client each, TLS.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import threading
import time

import numpy as np

import rowraft
from rowraft import _lib

ROWS, DIM, BATCH = 1_000_000, 16, 8192


def from_python(cluster: rowraft.LocalCluster, op: str, threads: int, seconds: float) -> float:
    """Return rows a second."""
    calls = [0] * threads
    late = 0.0
    ready = threading.Barrier(threads + 1)

    def work(i: int) -> None:
        rng = np.random.default_rng(i)
        with cluster.connect() as ps:
            t = ps.table("bench")
            batches = [np.sort(rng.choice(ROWS, BATCH, replace=False).astype(np.uint64)) for _ in range(8)]
            rows = rng.random((BATCH, DIM), np.float32) * 0.02 - 0.01
            for first in range(i * BATCH, ROWS, threads * BATCH):  # every row, as rowraft-bench does
                t.push(np.arange(first, first + BATCH, dtype=np.uint64), rows)
            began = time.monotonic()
            while time.monotonic() < began + 0.5:
                t.pull(batches[0], rows) if op == "pull" else t.push(batches[0], rows)
            ready.wait()
            ready.wait()
            while time.monotonic() < late:
                keys = batches[calls[i] % len(batches)]
                t.pull(keys, rows) if op == "pull" else t.push(keys, rows)
                calls[i] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for w in workers:
        w.start()
    ready.wait()
    began = time.monotonic()
    late = began + seconds
    ready.wait()
    for w in workers:
        w.join()
    return sum(calls) * BATCH / (time.monotonic() - began)


def from_go(cluster: rowraft.LocalCluster, bench: str, op: str, threads: int, seconds: float) -> float:
    """Return rows a second of rowraft-bench. It has a table of its own, of the same shape."""
    command = [
        bench, op, "--endpoints", ",".join(cluster.endpoints), "--cert", f"{cluster.certs}/client.pem",
        "--key", f"{cluster.certs}/client.key", "--cacert", f"{cluster.certs}/ca.pem", "--conns", str(threads),
        "--seconds", str(seconds), "--warmup", "0.5", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return json.loads(done.stdout)["rows_per_second"]


def floor(n: int = 20_000) -> dict[str, float]:
    """Return microseconds of a call that does nothing."""
    lib, st = _lib.load(), _lib.Status()
    sleep = json.dumps({"call": "sleep", "with": {"seconds": 0}}).encode()

    def each(f) -> float:
        for _ in range(100):
            f()
        began = time.perf_counter()
        for _ in range(n):
            f()
        return (time.perf_counter() - began) / n * 1e6

    out = {
        "a call of C": each(lib.rowraft_abi),
        "a call of Go": each(lambda: lib.rowraft_wait(1 << 60, 0, ctypes.byref(st))),
        "an operation": each(lambda: _lib.Operation(_lib.CALL, 0, request=sleep).result()),
    }
    other = threading.Thread(
        target=lambda: out.update(
            {"an operation, other thread": each(lambda: _lib.Operation(_lib.CALL, 0, request=sleep).result())}
        )
    )
    other.start()
    other.join()
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", default="rowraft-bench", help="the program rowraft-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--servers", type=int, default=3)
    args = parser.parse_args()

    for what, us in floor().items():
        print(f"{what:28} {us:8.2f} µs", flush=True)
    with rowraft.local(args.servers, shards=1) as cluster:
        with cluster.connect() as ps:
            ps.create_table("bench", DIM, optimizer=rowraft.Adagrad(lr=0.01, initial_accumulator_value=0.1))
        print(f"\n{os.cpu_count()} processors, {args.threads} threads, {args.servers} servers; M rows/s")
        print(f"{'':6} {'python':>8} {'go':>8} {'ratio':>8}")
        for op in ("pull", "push"):
            ratios = []
            for _ in range(args.rounds):
                python = from_python(cluster, op, args.threads, args.seconds)
                go = from_go(cluster, args.bench, op, args.threads, args.seconds)
                ratios.append(python / go)
                print(f"{op:6} {python / 1e6:8.2f} {go / 1e6:8.2f} {ratios[-1]:8.2f}", flush=True)
            print(f"{op:6} {'median':>17} {statistics.median(ratios):8.2f}", flush=True)


if __name__ == "__main__":
    main()
