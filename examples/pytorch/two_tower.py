#!/usr/bin/env python3
"""Two-tower retrieval: from the items that a user has seen, find the next one. The items are on a rowraft cluster.

python two_tower.py                                  # generated users, three servers on this machine
python two_tower.py --data ml-100k/u.data            # user, item, rating, time, separated by tabs
python two_tower.py --servers ps0:7070,ps1:7070 --certs ~/.rowraft
"""

from __future__ import annotations

import argparse
import contextlib
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import rowraft
import rowraft.torch as rt

HISTORY = 20  # items of a user that the model sees


def generate(users: int, items: int = 2_000, topics: int = 50) -> list[np.ndarray]:
    """Users stay with a topic for some items, and most of what they see is popular in it."""
    rng = np.random.default_rng(1)
    share = 1 / np.arange(1, items // topics + 1)
    out = []
    for _ in range(users):
        own, topic, seen = rng.choice(topics, 3, replace=False), 0, []
        for _ in range(rng.integers(20, 60)):
            topic = rng.integers(3) if rng.random() < 0.15 else topic
            seen.append(own[topic] + topics * rng.choice(len(share), p=share / share.sum()))
        out.append(np.array(seen))
    return out


def read(path: str) -> list[np.ndarray]:
    """Return the items of each user in the order of time."""
    with open(path) as f:
        rows = [tuple(map(float, line.split("\t"))) for line in f if line[0].isdigit()]
    by_user: dict[float, list[tuple[float, float]]] = {}
    for user, item, _, when in rows:
        by_user.setdefault(user, []).append((when, item))
    return [np.array([item for _, item in sorted(seen)], np.int64) for seen in by_user.values()]


class Views:
    """What users saw; a batch has views with the items that the user saw before."""

    def __init__(self, users: list[np.ndarray]) -> None:
        self.items = np.concatenate(users)
        end = np.cumsum([len(u) for u in users])
        self.begin = np.repeat(end - [len(u) for u in users], [len(u) for u in users])  # of the user of each view
        self.last = end - 1  # the last view of each user is held out
        self.train = np.setdiff1d(np.arange(len(self.items)), np.concatenate([self.begin, self.last]))
        self.seen, counts = np.unique(self.items[self.train], return_counts=True)
        self.log_share = dict(zip(self.seen.tolist(), np.log(counts / counts.sum())))
        self.popular = self.seen[counts.argsort()[::-1]]

    def batch(self, at) -> tuple[rt.KeyedJaggedTensor, torch.Tensor, torch.Tensor]:
        at = np.asarray(at)
        before = at[:, None] - np.arange(HISTORY, 0, -1)
        there = before >= self.begin[at][:, None]
        history, target = torch.from_numpy(self.items[before[there]]), torch.from_numpy(self.items[at])
        lengths = torch.cat([torch.from_numpy(there.sum(1)), torch.ones_like(target)])
        features = rt.KeyedJaggedTensor(["history", "item"], torch.cat([history, target]), lengths=lengths)
        return features, target, torch.tensor([self.log_share.get(i, -20.0) for i in target.tolist()])


class TwoTower(nn.Module):
    """One tower for a user's history, weighted by attention, and one for an item."""

    def __init__(self, emb: rt.EmbeddingCollection, dim: int) -> None:
        super().__init__()
        self.emb = emb
        self.age = nn.Parameter(torch.zeros(HISTORY))  # how much the last item counts, the one before, …
        self.attention = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 1))
        self.user = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.item = nn.Linear(dim, dim)

    def forward(self, features) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of the users, (histories, dim), and of the items, (items, dim), of length 1."""
        rows = self.emb(features)
        lengths = rows["history"].lengths()
        # (histories, longest, dim): the last item first, then zeros
        padded = nn.utils.rnn.pad_sequence(
            [h.flip(0) for h in rows["history"].values().split(lengths.tolist())], batch_first=True
        )
        position = torch.arange(padded.shape[1], device=padded.device)
        score = self.attention(padded).squeeze(2) + self.age[: padded.shape[1]]
        weight = score.masked_fill(position >= lengths[:, None], -1e9).softmax(1)
        users = self.user((weight[..., None] * padded).sum(1))
        return F.normalize(users, dim=1), F.normalize(self.item(rows["item"].values()), dim=1)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--servers", help="host:port of a running cluster; default: three servers on this machine")
    p.add_argument("--certs", help="directory of its certificates")
    p.add_argument("--data", help="file of views; default: generated users")
    p.add_argument("--users", type=int, default=2_000, help="that are generated")
    p.add_argument("--epochs", type=int, default=3, help="passes over the views")
    p.add_argument("--batch", type=int, default=256, help="views of a batch: the items of the others are negatives")
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    views = Views(read(args.data) if args.data else generate(args.users))
    loader = torch.utils.data.DataLoader(
        views.train, batch_size=args.batch, shuffle=True, drop_last=True, collate_fn=views.batch
    )

    with contextlib.ExitStack() as stack:
        if args.servers:
            ps = stack.enter_context(rowraft.connect(args.servers, certs=args.certs))
        else:
            ps = stack.enter_context(stack.enter_context(rowraft.local(3)).connect())
        emb = rt.EmbeddingCollection(ps, tables=[  # one table, read by two features
            rt.EmbeddingConfig(name="item", embedding_dim=32, feature_names=["history", "item"],
                               optimizer=rt.Adagrad(lr=0.05), init=rt.Normal(std=0.1))])  # fmt: skip
        model = TwoTower(emb, 32).to(device)
        opt = torch.optim.Adam(model.parameters(), lr=1e-3)

        def on_device(loader):
            return ((features.to(device), item.to(device), share.to(device)) for features, item, share in loader)

        for epoch in range(1, args.epochs + 1):
            began, before, losses = time.perf_counter(), emb.waited, []
            for features, item, log_share in rt.prefetch(on_device(loader), emb):
                users, items = model(features)
                logits = users @ items.T / 0.1 - log_share  # popular items are negatives more often
                same = (item[:, None] == item) & ~torch.eye(len(item), dtype=torch.bool, device=device)
                loss = F.cross_entropy(logits.masked_fill(same, -1e9), torch.arange(len(item), device=device))
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.detach())
            seconds, waited = time.perf_counter() - began, emb.waited - before
            print(f"epoch {epoch}: loss {float(torch.stack(losses).mean()):.3f}, "
                  f"{len(losses) * args.batch / seconds:,.0f} examples/s, "
                  f"{waited / seconds:.1%} of the time waiting for rows", flush=True)  # fmt: skip
        emb.flush()

        model.eval()
        catalog = torch.from_numpy(views.seen)
        with torch.no_grad():
            features, target, _ = views.batch(views.last)
            users, _ = model(features.to(device))
            nothing = torch.zeros_like(catalog)  # items alone: empty histories
            features = rt.KeyedJaggedTensor(["history", "item"], catalog, lengths=torch.cat([nothing, nothing + 1]))
            _, items = model(features.to(device))
        best = (users @ items.T).topk(10).indices.cpu()
        recall = (catalog[best] == target[:, None]).any(1).float().mean()
        popular = np.isin(target.numpy(), views.popular[:10]).mean()
        print(f"recall@10 {recall:.3f} on the last view of {len(target):,} users, among {len(catalog):,} items; "
              f"the 10 most popular items: {popular:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
