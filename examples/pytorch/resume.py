#!/usr/bin/env python3
"""A worker that is killed (-9) and started again continues: rows, dense weights and position of one cut.

python resume.py                          # three servers on this machine; kills the worker by itself
python resume.py --servers ps0:7070 --certs ~/.rowraft --checkpoints /mnt/shared/checkpoints   # kill it yourself
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn

import rowraft
import rowraft.torch as rt

EPOCHS, EXAMPLES, IDS = 3, 20_000, 5_000


class Model(nn.Module):
    """The click depends on the sum of hidden numbers of some ids."""

    def __init__(self, ps: rowraft.Client) -> None:
        super().__init__()
        self.emb = rt.EmbeddingBagCollection(ps, tables=[
            rt.EmbeddingBagConfig(name="resume.id", embedding_dim=8, feature_names=["id"],
                                  optimizer=rt.Adagrad(lr=0.1))])  # fmt: skip
        self.dense = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features) -> torch.Tensor:
        return self.dense(self.emb(features)["id"]).squeeze(1)


def loader() -> torch.utils.data.DataLoader:
    rng = np.random.default_rng(1)
    hidden, ids = torch.from_numpy(rng.normal(size=IDS)), torch.from_numpy(rng.integers(0, IDS, (EXAMPLES, 4)))

    def collate(at: list[int]):
        batch = ids[at]
        features = rt.KeyedJaggedTensor(["id"], batch.reshape(-1), lengths=torch.full((len(at),), 4))
        return features, (hidden[batch].sum(1) > 0).float()

    # The order comes from torch's random generator: a worker that resumes reads the rest of the order before.
    return torch.utils.data.DataLoader(range(EXAMPLES), batch_size=100, shuffle=True, collate_fn=collate)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with rowraft.connect(args.servers, certs=args.certs) as ps:
        model = Model(ps).to(device)
        opt = torch.optim.Adam(model.parameters())
        bce, losses = nn.BCEWithLogitsLoss(), []
        with rt.Job(ps, "resume", model=model, opt=opt) as job:
            start = job.resume()
            print(f"process {os.getpid()}: {start} steps are done", flush=True)
            batches = loader()
            passes = itertools.chain.from_iterable(job.data(batches) for _ in range(EPOCHS))
            data = ((features.to(device), y.to(device)) for features, y in passes)
            for step, (features, y) in enumerate(rt.prefetch(data, model.emb), start):
                loss = bce(model(features), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                job.step(step)
                losses.append(float(loss.detach()))
                if step % 100 == 99:
                    print(f"step {step + 1}: loss {np.mean(losses[-100:]):.4f}", flush=True)
                    job.checkpoint(args.checkpoints)  # in the background
                if step == args.kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--servers", help="host:port of a running cluster; default: three servers on this machine")
    p.add_argument("--certs", help="directory of its certificates")
    p.add_argument("--checkpoints", help="a destination that its servers and this worker share")
    p.add_argument("--kill-at", type=int, help="the worker kills itself after this step")
    args = p.parse_args()
    if args.servers:
        if not args.checkpoints:
            p.error("--checkpoints: want a destination")
        train(args)
        return
    with rowraft.local(3) as cluster, tempfile.TemporaryDirectory() as checkpoints:
        worker = [sys.executable, __file__, "--servers", ",".join(cluster.endpoints), "--certs", cluster.certs,
                  "--checkpoints", checkpoints]  # fmt: skip
        killed = subprocess.run([*worker, "--kill-at", "350"])
        print(f"the worker has ended with {signal.Signals(-killed.returncode).name}; it is started again")
        subprocess.run(worker, check=True)


if __name__ == "__main__":
    main()
