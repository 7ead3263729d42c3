"""A small training program: the tests of rowraft.torch.Job call train, and run it as a worker of its own."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import numpy as np
import torch

import rowraft
import rowraft.torch as rt

IDS, EXAMPLES = 40, 8


def batches(count: int, first: int = 0) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Ids, lengths and labels of batches; each batch is a function of its number."""
    out = []
    for i in range(first, first + count):
        rng = np.random.default_rng(i)
        lengths = rng.integers(1, 4, EXAMPLES)
        ids = rng.integers(0, IDS, lengths.sum())
        parity = [ids[end - n : end].sum() % 2 for n, end in zip(lengths, lengths.cumsum())]
        out.append((torch.from_numpy(ids), torch.from_numpy(lengths), torch.tensor(parity, dtype=torch.float32)))
    return out


def counts(data: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> np.ndarray:
    """How often each id comes."""
    return np.bincount(torch.cat([ids for ids, _, _ in data]).numpy(), minlength=IDS)


class Net(torch.nn.Module):
    def __init__(self, ps: rowraft.Client, table: str, rule: rowraft.Optimizer, dim: int = 4) -> None:
        super().__init__()
        self.emb = rt.EmbeddingBagCollection(
            ps, [rt.EmbeddingBagConfig(table, dim, ["f"], optimizer=rule, init=rt.Zeros())]
        )
        self.dense = torch.nn.Linear(dim, 1)

    def forward(self, features: Any) -> torch.Tensor:
        return self.dense(self.emb(features)["f"])[:, 0]


def bag(ids: torch.Tensor, lengths: torch.Tensor) -> rt.KeyedJaggedTensor:
    return rt.KeyedJaggedTensor(["f"], ids, lengths=lengths)


def train(ps: rowraft.Client, a: dict[str, Any], hook: Any = None) -> dict[str, Any]:
    """Train a job. counting: each id of a batch adds -1 to its row. hook is called after each step."""
    torch.manual_seed(a.get("seed", 5))
    counting = a.get("counting", False)
    rule = rt.SGD(lr=1.0) if counting else rt.Adagrad(lr=0.1)
    model = Net(ps, a["table"], rule)
    served = a.get("dense", False)
    if "group" in a:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{a['group']}", rank=a["worker"], world_size=a["workers"]
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    opt = None if served or counting else torch.optim.Adam(model.parameters(), lr=0.01)
    job = rt.Job(
        ps, a["job"], model=model, opt=opt, mode=a.get("mode", "async"), in_flight=a.get("in_flight", 4),
        workers=a.get("workers", 1), worker=a.get("worker", 0), staleness=a.get("staleness"),
        geo_every=a.get("geo_every"), dense=rt.SGD(lr=0.1) if served else None, lease=a.get("lease", 10.0),
    )  # fmt: skip
    data: Any = batches(a["batches"])
    if a.get("shuffle"):
        data = torch.utils.data.DataLoader(range(a["batches"]), batch_size=1, shuffle=True, collate_fn=lambda x: x[0])
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    begun, ended, losses, step = [], [], [], -1
    with job:
        start = job.resume(a.get("resume"))
        share = (batches(1, b)[0] if a.get("shuffle") else b for b in job.data(data))
        ready: Any = ((bag(ids, lengths), labels) for ids, lengths, labels in share)
        if "prefetch" in a:
            ready = rt.prefetch(ready, model.emb, depth=a["prefetch"])
        for step, (features, labels) in enumerate(ready, start):
            if counting:
                model.emb(features)["f"].sum().backward()
            else:
                loss = loss_of(model(features), labels)
                losses.append(float(loss.detach()))
                if opt is not None:
                    opt.zero_grad()
                loss.backward()
                if opt is not None:
                    opt.step()
            time.sleep(a.get("before", 0))
            begun.append(time.time())
            job.step(step)
            ended.append(time.time())
            if step + 1 == a.get("checkpoint_at") or "checkpoint_every" in a:
                made = job.checkpoint(a["to"])
                if job.workers == 1 or job.rank > 0:  # the others give their states with their next steps
                    assert (made.result(60) is None) == (job.rank > 0)
            if step + 1 >= a.get("kill_at", 1 << 30) and list(pathlib.Path(a["to"]).glob("*/MANIFEST")):
                os.kill(os.getpid(), signal.SIGKILL)
            if hook is not None:
                hook(job, step)
            time.sleep(a.get("sleep", 0))
        if "closing" in a:
            open(a["closing"], "w").close()
    if "group" in a:
        torch.distributed.destroy_process_group()
    return {
        "start": start, "steps": step + 1, "begun": begun, "ended": ended, "losses": losses,
        "dense": [p.detach().flatten().tolist() for p in model.parameters()],
        "opt": None if opt is None else float(sum(s["exp_avg_sq"].double().sum() for s in opt.state.values())),
    }  # fmt: skip


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    with rowraft.connect(arguments["endpoints"], certs=arguments["certs"]) as client:
        result = train(client, arguments)
    print(json.dumps(result))
