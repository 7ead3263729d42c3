#!/usr/bin/env python3
"""DLRM (arXiv:1906.00091) on click logs with the columns of Criteo; the embeddings are on a rowraft cluster.

python dlrm.py                                             # generated data, three servers on this machine
python dlrm.py --data criteo_train8k.csv --batch 128       # the file of examples/README.md
python dlrm.py --servers ps0:7070,ps1:7070 --certs ~/.rowraft
torchrun --nproc_per_node 2 dlrm.py --servers ps0:7070,ps1:7070 --certs ~/.rowraft --mode sync
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import numpy as np
import torch
from clicks import FEATURES, Criteo, Generated
from torch import nn

import rowraft
import rowraft.torch as rt


class DLRM(nn.Module):
    """Two MLPs, and between them the dot product of each pair of vectors."""

    def __init__(self, emb: rt.EmbeddingBagCollection, dim: int, dense_in: int) -> None:
        super().__init__()
        self.emb, self.dim, n = emb, dim, len(FEATURES) + 1
        self.bottom = nn.Sequential(nn.Linear(dense_in, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear(dim + n * (n - 1) // 2, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        row, column = torch.tril_indices(n, n, -1)
        self.register_buffer("pairs", row * n + column, persistent=False)

    def forward(self, dense, features):
        low = self.bottom(dense)
        vectors = torch.cat([low, self.emb(features).values()], 1).view(len(low), -1, self.dim)
        dots = (vectors @ vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([low, dots], 1)).squeeze(1)


def auc(score: np.ndarray, click: np.ndarray) -> float:
    """The share of pairs of a click and a non-click that the score orders correctly."""
    rank = np.empty(len(score))
    rank[score.argsort()] = np.arange(len(score))
    clicks = click.sum()
    return float((rank[click > 0].sum() - clicks * (clicks - 1) / 2) / (clicks * (len(click) - clicks)))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--servers", help="host:port of a running cluster; default: three servers on this machine")
    p.add_argument("--certs", help="directory of its certificates")
    p.add_argument("--data", help="CSV file; default: generated data")
    p.add_argument("--examples", type=int, default=200_000, help="of generated data")
    p.add_argument("--job", default="dlrm", help="name of the job, and of its table")
    p.add_argument("--mode", default="async", choices=["async", "sync", "ssp", "geo"], help="of several workers")
    p.add_argument("--batch", type=int, default=256, help="examples of a batch")
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Criteo(args.data) if args.data else Generated(args.examples)
    cut = data.examples * 4 // 5  # the last fifth is held out

    def load(first: int, end: int):
        return torch.utils.data.DataLoader(range(first, end), batch_size=args.batch, collate_fn=data.batch)

    with contextlib.ExitStack() as stack:
        if args.servers:
            ps = stack.enter_context(rowraft.connect(args.servers, certs=args.certs))
        else:
            ps = stack.enter_context(stack.enter_context(rowraft.local(3)).connect())
        torch.manual_seed(1)
        emb = rt.EmbeddingBagCollection(ps, tables=[
            rt.EmbeddingBagConfig(name=args.job, embedding_dim=16, feature_names=FEATURES, pooling=rt.SUM,
                                  optimizer=rt.Adagrad(lr=0.02), init=rt.Uniform(-0.05, 0.05))])  # fmt: skip
        model = DLRM(emb, 16, dense_in=13).to(device)
        # One worker has its dense weights itself. With several the servers train them, as the rows.
        alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
        opt = torch.optim.Adagrad(model.parameters(), lr=0.02) if alone else None
        job = stack.enter_context(rt.Job(
            ps, args.job, model=model, opt=opt, dense=None if alone else rt.Adagrad(lr=0.02), mode=args.mode,
            staleness=4 if args.mode == "ssp" else None,
        ))  # fmt: skip
        bce = nn.BCEWithLogitsLoss()

        def on_device(loader):
            return ((dense.to(device), features.to(device), y.to(device)) for dense, features, y in loader)

        start = job.resume()
        began, losses, examples = time.perf_counter(), [], 0
        for step, (dense, features, y) in enumerate(rt.prefetch(on_device(job.data(load(0, cut))), emb), start):
            loss = bce(model(dense, features), y)
            model.zero_grad()
            loss.backward()
            if opt is not None:
                opt.step()
            job.step(step)  # pushes the gradients of the rows
            losses.append(loss.detach())
            examples += len(y)
            if step % 100 == 99:
                print(f"step {step + 1}: loss {float(torch.stack(losses[-100:]).mean()):.4f}", flush=True)
        job.close()  # every push is on a majority of disks
        seconds = time.perf_counter() - began
        print(f"worker {job.rank}: {examples / seconds:,.0f} examples/s, "
              f"{emb.waited / seconds:.1%} of the time waiting for rows")  # fmt: skip
        if job.rank != 0:
            return

        model.eval()  # pulls only
        with torch.no_grad():
            scores = [(model(d, f).cpu(), y.cpu()) for d, f, y in on_device(load(cut, data.examples))]
        score, y = (torch.cat(x).numpy() for x in zip(*scores))
        rows = next(t.rows for t in ps.tables() if t.name == args.job)
        print(f"AUC {auc(score, y):.4f} on {len(y):,} held-out examples; the table has {rows:,} rows")
        if not args.data:
            best = np.concatenate([data.draw(range(i, min(i + args.batch, data.examples)))[2]
                                   for i in range(cut, data.examples, args.batch)])  # fmt: skip
            print(f"AUC {auc(best, y):.4f} is the best possible: it is that of the true probabilities")


if __name__ == "__main__":
    main()
