"""Reads the files of package torch. The script behind these lines runs with a directory as its argument, which has
description.json and files of little-endian numbers.
"""
import json
import math
import pathlib
import sys

import numpy
import torch
from torch.nn import functional

DIR = pathlib.Path(sys.argv[1])
TASK = json.loads((DIR / "description.json").read_text())
torch.set_num_threads(1)


def numbers(name, kind=numpy.float32):
    return numpy.fromfile(DIR / name, dtype=numpy.dtype(kind).newbyteorder("<"))


class Examples:
    def __init__(self, name, keys):
        self.labels = torch.from_numpy(numbers(name + ".labels"))
        self.dense = torch.from_numpy(numbers(name + ".dense").reshape(len(self.labels), TASK["dense"]))
        places = numpy.searchsorted(keys, numbers(name + ".keys", numpy.uint64))
        self.index = torch.from_numpy(places.reshape(len(self.labels), TASK["features"]))


def auc(scores, labels):
    """The probability that a positive example has the greater score; equal scores count half."""
    scores, labels = scores.numpy(), labels.numpy() > 0.5
    _, place, count = numpy.unique(scores, return_inverse=True, return_counts=True)
    ranks = (numpy.cumsum(count) - (count - 1) / 2)[place]
    positives = labels.sum()
    return (ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))


def spread(values):
    return f"{numpy.mean(values):.4f} ± {numpy.std(values, ddof=1):.4f}"
