"""Click logs with the columns of Criteo, for dlrm.py: 13 numbers, 26 categories, and whether it was clicked."""

from __future__ import annotations

import csv
import hashlib
import itertools

import numpy as np
import torch

import rowraft.torch as rt

FEATURES = [f"C{i}" for i in range(1, 27)]


class Generated:
    """A log whose clicks have a known probability: a batch depends only on the number of its first example."""

    IDS = 1_000  # of each feature

    def __init__(self, examples: int) -> None:
        self.examples = examples
        rng = np.random.default_rng(1)
        self.effect = rng.normal(0, 0.25, (len(FEATURES), self.IDS))  # of each id on the click
        self.slope = rng.normal(0, 0.15, 13)
        share = 1 / (np.arange(self.IDS) + 5) ** 1.1  # few ids are frequent, most are rare
        self.cumulative = (share / share.sum()).cumsum()

    def draw(self, at):
        rng = np.random.default_rng([2, at[0]])
        dense = rng.normal(size=(len(at), 13))
        rank = self.cumulative[:-1].searchsorted(rng.random((len(FEATURES), len(at))))
        logit = dense @ self.slope + np.take_along_axis(self.effect, rank, 1).sum(0) - 1
        return dense, rank + self.IDS * np.arange(len(FEATURES))[:, None], logit, rng.random(len(at))

    def batch(self, at):
        dense, ids, logit, luck = self.draw(at)
        return batch_of(dense, ids, luck < 1 / (1 + np.exp(-logit)))


class Criteo:
    """A CSV file with the columns label, I1 to I13 and C1 to C26."""

    def __init__(self, path: str) -> None:
        with open(path, newline="") as f:
            rows = list(itertools.islice(csv.reader(f), 1, None))
        number = np.array([[float(x or 0) for x in r[1:14]] for r in rows])
        self.dense = np.sign(number) * np.log1p(np.abs(number))
        self.ids = np.array([[key(f, r[14 + i]) for r in rows] for i, f in enumerate(FEATURES)])
        self.click = np.array([r[0] == "1" for r in rows])
        self.examples = len(rows)

    def batch(self, at):
        return batch_of(self.dense[at], self.ids[:, at], self.click[at])


def key(feature: str, value: str) -> int:
    """A number of 63 bits for a value of a feature: no vocabulary, and one table for all features."""
    return int.from_bytes(hashlib.blake2b(f"{feature}={value}".encode(), digest_size=8).digest(), "big") >> 1


def batch_of(dense, ids, click):
    """ids has shape (features, examples): all examples of the first feature come first, as in TorchRec."""
    values = torch.from_numpy(ids.reshape(-1))
    features = rt.KeyedJaggedTensor(FEATURES, values, lengths=torch.ones_like(values))  # each bag has one id
    return torch.from_numpy(dense).float(), features, torch.from_numpy(click).float()
