"""The step of a DLRM: embeddings on a local cluster, next to nn.EmbeddingBag(sparse=True) in the same process.

    make bench-python-step ARGS="--rounds 7"

The model has the layers of DLRM's script for Criteo Kaggle and that data's 26 features, with at most 300,000 ids each
and one id per example, Zipf(1.05). Both models train on the same batches with Adagrad for the rows and Adam for the
dense weights, in turns. Trainer and servers share the processors.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

import rowraft
import rowraft.torch as rt

DENSE, DIM, MOST = 13, 16, 300_000
IDS = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip
IDS = [min(n, MOST) for n in IDS]
FEATURES = [f"c{i}" for i in range(len(IDS))]

Batch = tuple[torch.Tensor, rt.KeyedJaggedTensor, torch.Tensor]


def batches(size: int, count: int) -> list[Batch]:
    """Return random batches, the same ones for the same arguments."""
    rng = np.random.default_rng(size)
    values = []
    for n in IDS:
        cdf = np.cumsum(np.arange(1, n + 1) ** -1.05)
        ranks = np.searchsorted(cdf, rng.random(count * size) * cdf[-1])
        values.append(rng.permutation(n)[np.minimum(ranks, n - 1)].reshape(count, size))
    ids = torch.from_numpy(np.stack(values, 1).reshape(count, -1))  # (count, features · size)
    dense = torch.from_numpy(rng.normal(size=(count, size, DENSE)).astype(np.float32))
    labels = torch.from_numpy((rng.random((count, size, 1)) < 0.25).astype(np.float32))
    ones = torch.ones(len(IDS) * size, dtype=torch.int64)
    return [(dense[i], rt.KeyedJaggedTensor(FEATURES, ids[i], lengths=ones), labels[i]) for i in range(count)]


class Bags(nn.Module):
    """What EmbeddingBagCollection does, with the tables in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, DIM, mode="sum", sparse=True) for n in IDS)

    def forward(self, features: rt.KeyedJaggedTensor) -> torch.Tensor:
        values = features.values().view(len(IDS), -1)
        offsets = torch.arange(values.shape[1])
        return torch.cat([t(v, offsets) for t, v in zip(self.tables, values)], 1)


class DLRM(nn.Module):
    """Naumov et al. 2019: dense features and embeddings meet in dot products of all pairs."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.bottom = mlp([DENSE, 512, 256, 64, DIM])
        n = len(IDS) + 1
        self.top = mlp([DIM + n * (n - 1) // 2, 512, 256, 1])[:-1]
        self.register_buffer("pairs", torch.tril_indices(n, n, -1))

    def forward(self, dense: torch.Tensor, features: object) -> torch.Tensor:
        x = self.bottom(dense)
        pooled = self.embeddings(features)
        pooled = pooled if isinstance(pooled, torch.Tensor) else pooled.values()
        all_vectors = torch.cat([x, pooled], 1).view(len(dense), -1, DIM)
        dots = torch.bmm(all_vectors, all_vectors.transpose(1, 2))
        return self.top(torch.cat([x, dots[:, self.pairs[0], self.pairs[1]]], 1))


def mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class Trainer:
    """A model with its optimizers. In rowraft's model the servers have those of the rows."""

    def __init__(self, embeddings: nn.Module) -> None:
        self.model = DLRM(embeddings)
        rows = list(embeddings.parameters())
        dense = [p for p in self.model.parameters() if all(p is not r for r in rows)]
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(dense, lr=1e-3)]
        if rows:
            self.optimizers.append(torch.optim.Adagrad(rows, lr=0.01, initial_accumulator_value=0.1))
        self.loss = nn.BCEWithLogitsLoss()

    def train(self, data: Iterator[Batch], seconds: list[float]) -> None:
        """Train one step for each batch, and append the time of each."""
        began = time.perf_counter()
        for dense, features, labels in data:
            loss = self.loss(self.model(dense, features), labels)
            for o in self.optimizers:
                o.zero_grad()
            loss.backward()
            for o in self.optimizers:
                o.step()
            now = time.perf_counter()
            seconds.append(now - began)
            began = now


class Waits:
    """Seconds that calls of the client made the trainer wait: for rows, and for earlier pushes."""

    def __init__(self) -> None:
        self.rows = self.pushes = 0.0
        self._result = result = rowraft.Future.result

        def timed(future: rowraft.Future[object], timeout: float | None = None) -> object:
            began = time.perf_counter()
            try:
                return result(future, timeout)
            finally:
                if future._write:
                    self.pushes += time.perf_counter() - began
                else:
                    self.rows += time.perf_counter() - began

        rowraft.Future.result = timed  # type: ignore[method-assign]

    def end(self) -> None:
        rowraft.Future.result = self._result  # type: ignore[method-assign]


def cpu(pid: int | str) -> float:
    """Return the seconds of processor time of a process, or of the machine ("")."""
    if pid == "":
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:]]
        return (sum(v[:3]) + sum(v[5:7])) / os.sysconf("SC_CLK_TCK")
    with open(f"/proc/{pid}/stat") as f:
        v = f.read().rpartition(")")[2].split()
    return (int(v[11]) + int(v[12])) / os.sysconf("SC_CLK_TCK")


class Turn:
    """One model in turns: the times of its steps, and what they took of the processors, in seconds."""

    def __init__(self, trainer: Trainer, servers: list[int]) -> None:
        self._trainer = trainer
        self._servers = servers
        self.seconds: list[float] = []
        self.medians: list[float] = []
        self.cpu = {"trainer": 0.0, "servers": 0.0, "others": 0.0}

    def take(self, data: Iterator[Batch], end: Callable[[], None], counted: bool) -> None:
        """Train with data. end waits for the pushes."""
        before = self._cpu()
        steps: list[float] = []
        self._trainer.train(data, steps)
        end()
        if not counted:
            return
        for (name, b), a in zip(before.items(), self._cpu().values()):
            self.cpu[name] += a - b
        self.seconds += steps
        self.medians.append(statistics.median(steps))

    def _cpu(self) -> dict[str, float]:
        trainer, servers = cpu("self"), sum(map(cpu, self._servers))
        return {"trainer": trainer, "servers": servers, "others": cpu("") - trainer - servers}

    def line(self, name: str, size: int) -> str:
        ms = statistics.median(self.seconds) * 1e3
        each = [v / len(self.seconds) * 1e3 for v in self.cpu.values()]
        return f"{name:12} {ms:8.1f} {size / ms * 1e3:10.0f} {each[0]:16.1f} {each[1]:8.1f} {each[2]:8.1f}"


def compare(args: argparse.Namespace, size: int, ours: Trainer, theirs: Trainer, servers: list[int]) -> None:
    """Print the figures of a batch size."""
    emb = ours.model.embeddings
    assert isinstance(emb, rt.EmbeddingBagCollection)
    data = batches(size, args.steps)
    rows = statistics.mean(sum(torch.unique(v).numel() for v in b[1].values().view(len(IDS), -1)) for b in data[:8])
    remote, local = Turn(ours, servers), Turn(theirs, servers)
    for r in range(args.rounds + 1):  # the first one creates rows and touches memory
        if r == 1:
            waits = Waits()
        remote.take(rt.prefetch(data, emb, args.depth), emb.flush, r > 0)
        local.take(iter(data), lambda: None, r > 0)
    ratios = [a / b for a, b in zip(remote.medians, local.medians)]
    print(f"\nbatch {size}: {rows:.0f} rows a step; {args.rounds} rounds of {args.steps} steps, medians")
    print(f"{'':12} {'ms/step':>8} {'examples/s':>10} {'cpu ms: trainer':>16} {'servers':>8} {'others':>8}")
    print(remote.line("rowraft", size))
    print(local.line("in process", size))
    total = sum(remote.seconds)
    print(
        f"ratio of step times {statistics.median(ratios):.2f} (rounds {min(ratios):.2f} to {max(ratios):.2f}); of a "
        f"step, {waits.rows / total:.1%} is waiting for rows, {waits.pushes / total:.1%} for earlier pushes",
        flush=True,
    )
    waits.end()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40, help="of each model in a round")
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--depth", type=int, default=2, help="of prefetch")
    args = parser.parse_args()

    torch.manual_seed(1)
    print(f"{os.cpu_count()} processors, torch {torch.__version__} with {torch.get_num_threads()} threads, 3 servers")
    rule = rt.Adagrad(lr=0.01, initial_accumulator_value=0.1)
    with rowraft.local(3) as cluster, cluster.connect() as ps:
        tables = [rt.EmbeddingBagConfig(f, DIM, [f], optimizer=rule, init=rt.Normal(0, 1)) for f in FEATURES]
        ours, theirs = Trainer(rt.EmbeddingBagCollection(ps, tables)), Trainer(Bags())
        for size in args.batch:
            compare(args, size, ours, theirs, [s.pid for s in cluster.servers])


if __name__ == "__main__":
    main()
