"""Score examples with a model that `rowraft-trainer export` wrote, in numpy: python score.py DIR FILE > scores.txt

pip install numpy safetensors xxhash. Copy it and change what you need; docs/formats/model-export.md describes DIR. It
reads delimited text (csv, tsv, criteo, inter) and libsvm, and knows every kind of model for logs.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import pathlib
import sys

import numpy as np
import xxhash
from safetensors.numpy import load_file

GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mix64(z):
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 & MASK
    z ^= z >> 27
    z = z * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


class Table:
    """The rows of one table."""

    def __init__(self, directory, spec):
        self.spec, self.dim = spec, spec["dim"]
        parts = [load_file(directory / f["file"]) for f in spec["files"]]
        self.ids = np.concatenate([p["ids"] for p in parts])
        self.vectors = np.concatenate([p["vectors"] for p in parts])
        self.order = np.argsort(self.ids)

    def rows(self, ids):
        """Return the rows of ids, uint64; an id without one has its initial weights."""
        out = np.empty((len(ids), self.dim), np.float32)
        at = np.searchsorted(self.ids, ids, sorter=self.order) if len(self.ids) else np.zeros(len(ids), int)
        for i, (key, where) in enumerate(zip(ids, at)):
            if where < len(self.ids) and self.ids[self.order[where]] == key:
                out[i] = self.vectors[self.order[where]]
            else:
                out[i] = self.initial(int(key))
        return out

    def initial(self, key):
        init = self.spec["initializer"]
        if init["kind"] == "zeros":
            return np.zeros(self.dim, np.float32)
        if init["kind"] != "uniform":
            raise ValueError(f"initializer {init['kind']}: see docs/formats/rules.md")
        x = mix64(mix64(mix64((int(init["seed"]) + GAMMA) & MASK) ^ int(init["name_hash"])) ^ key)
        a, b = float(np.float32(init["a"])), float(np.float32(init["b"]))
        u = [(mix64((x + (i + 1) * GAMMA) & MASK) >> 11) * 2.0**-53 for i in range(self.dim)]
        w = np.array([a + v * (b - a) for v in u], np.float32)
        w[w >= np.float32(b)] = np.float32(a)
        if self.spec["rounded"] == "bfloat16":  # to the nearest, ties to even
            bits = w.view(np.uint32)
            w = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return w


class Reader:
    """Turns the lines of a file into numbers and ids."""

    def __init__(self, model):
        self.model, self.input = model, model["input"]
        self.columns = {}

    def missing(self, text):
        return text == "" or text in self.input["missing"]

    def examples(self, file):
        """Iterate over examples: a function from a column to its text, or a list of (index, number) in libsvm."""
        form = self.input["format"]
        if form in ("libsvm", "libfm"):
            for line in file:
                words = line.split("#")[0].split()
                if words:
                    pairs = (w.split(":") for w in words if ":" in w and not w.startswith("qid:"))
                    yield [(int(i), float(x)) for i, x in pairs]
            return
        lines = (x for x in (line.rstrip("\r\n") for line in file) if x)
        first = next(lines)
        separator = self.input.get("separator") or ("\t" if "\t" in first else ",")
        header = self.input.get("header")
        if header is None:  # criteo: a line of data begins with its label
            header = first.split(separator)[0] not in ("", "0", "1")
        quoting = csv.QUOTE_MINIMAL if self.input["quotes"] else csv.QUOTE_NONE
        rows = csv.reader(itertools.chain([first], lines), delimiter=separator, quoting=quoting)
        if header:
            names = [n.split(":")[0] if form == "inter" else n for n in next(rows)]
            self.columns = {n: i for i, n in enumerate(names)}
        for row in rows:
            yield [v.strip(" ") for v in row] if self.input["trim"] else row

    def text(self, row, column):
        return row[column["position"] - 1 if "position" in column else self.columns[column["column"]]]

    def number(self, row, feature):
        if row and isinstance(row[0], tuple):
            found = [x for i, x in row if i == feature["position"]]
            text = str(float(np.float32(found[-1]))) if found else ""
        else:
            text = self.text(row, feature)
        if self.missing(text):
            return feature["missing"]
        x = float(text)
        if feature["transform"] == "log1p":
            x = math.copysign(math.log1p(abs(x)), x)
        return (x - feature["mean"]) / feature["std"] if feature["std"] else x

    def id(self, feature, text):
        """Return the id of a value, or None if it has none."""
        missing = self.missing(text)
        if feature["hash"] is None:
            return None if missing else int(text)
        if missing:
            text = ""
        elif feature.get("buckets"):
            text = f"b{sum(bound <= float(text) for bound in feature['buckets'])}"
        return xxhash.xxh3_64_intdigest(feature["hash"].encode() + b"\0" + text.encode())

    def values(self, row, feature):
        """Return the ids of a feature and their weights."""
        if "indices" in feature:
            first, last = map(int, feature["indices"])
            pairs = [(self.id(feature, str(i)), x) for i, x in row if first <= i <= last]
        else:
            text, separator = self.text(row, feature), feature.get("separator")
            texts = text.split(separator) if separator else [text]
            if separator and texts[-1] == "":
                texts.pop()  # nothing follows the last separator
            weights = ["1"] * len(texts)
            if "weights" in feature:
                column = self.text(row, feature["weights"])
                weights = column.split(separator) if separator else [column]
            known = [(t, w) for t, w in zip(texts, weights) if not (separator and self.missing(t))]
            pairs = [(i, float(w)) for i, w in ((self.id(feature, t), w) for t, w in known) if i is not None]
        return pairs[-feature["max_length"] :] if feature["max_length"] else pairs


class Model:
    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.model = json.loads((directory / "model.json").read_text())
        self.kind = self.model["model"]
        self.weights = load_file(directory / self.model["tensors"]["file"])
        self.tables = {t["name"]: Table(directory, t) for t in self.model["tables"]}
        self.reader = Reader(self.model)

    def score(self, file, batch=1024):
        """Yield the scores of the examples of an open file, one row of tasks after the other."""
        examples = self.reader.examples(file)
        while rows := list(itertools.islice(examples, batch)):
            dense = np.array([[self.reader.number(r, f) for f in self.model["dense"]] for r in rows], np.float32)
            fields = [self.field(rows, f) for f in self.model["categorical"]]
            z = getattr(self, self.kind["kind"].replace("-", "_"))(dense, fields).astype(np.float64)
            yield from 1 / (1 + np.exp(-z)) if self.model["loss"] == "bce" else z

    def field(self, rows, feature):
        """Return the pooled rows of a feature, [examples, dim]."""
        table = self.tables[feature["table"]]
        out = np.zeros((len(rows), table.dim), np.float32)
        for i, row in enumerate(rows):
            if pairs := self.reader.values(row, feature):
                ids, weights = zip(*pairs)
                found = table.rows(np.array(ids, np.uint64)) * np.array(weights, np.float32)[:, None]
                out[i] = found.sum(0) / (len(ids) if feature["pooling"] == "mean" else 1)
        return out

    # Layers. The weights of one with several inputs are named by them.

    def affine(self, name, **inputs):
        y = self.weights[f"{name}.bias"]
        for x, values in inputs.items():
            if values.shape[1]:
                y = y + values @ self.weights[f"{name}.weights" if len(inputs) == 1 else f"{name}.{x}"]
        return y

    def mlp(self, name, sizes, **x):
        """Apply hidden layers; the result is the inputs of the next layer."""
        for i in range(len(sizes)):
            x = {"sum": np.maximum(self.affine(f"{name}.{i}", **x), 0)}
        return x

    def deep(self, name, **x):
        top = self.kind["top"]
        return self.affine(f"{name}.{len(top)}", **self.mlp(name, top, **x))

    @staticmethod
    def split(fields):
        """Separate linear weights, [examples, features], and embeddings, [examples, features, dim]."""
        rows = np.stack(fields, 1)
        return rows[:, :, 0], rows[:, :, 1:]

    @staticmethod
    def second_order(v):
        return 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1, keepdims=True)

    # Models.

    def lr(self, dense, fields):
        return np.concatenate(fields, 1).sum(1, keepdims=True) + self.affine("linear", dense=dense)

    def fm(self, dense, fields):
        linear, v = self.split(fields)
        return linear.sum(1, keepdims=True) + self.affine("linear", dense=dense) + self.second_order(v)

    def wide_deep(self, dense, fields):
        linear, v = self.split(fields)
        wide = linear.sum(1, keepdims=True) + self.affine("wide", dense=dense)
        return wide + self.deep("top", dense=dense, fields=v.reshape(len(v), -1))

    def deepfm(self, dense, fields):
        linear, v = self.split(fields)
        wide = linear.sum(1, keepdims=True) + self.affine("linear", dense=dense) + self.second_order(v)
        return wide + self.deep("top", dense=dense, fields=v.reshape(len(v), -1))

    def dcn(self, dense, fields):
        x0 = x = np.concatenate([dense, *fields], 1)
        for i in range(self.kind["cross"] or 2):
            x = x0 * self.affine(f"cross.{i}", x=x) + x
        if not self.kind["top"]:
            return self.affine("out", cross=x)
        (deep,) = self.mlp("top", self.kind["top"], x=x0).values()
        return self.affine("out", cross=x, deep=deep)

    def dlrm(self, dense, fields):
        vectors = list(fields)
        bottom = np.zeros((len(fields[0]), 0), np.float32)
        if self.model["dense"]:
            bottom = self.affine("bottom.out", **self.mlp("bottom", self.kind["bottom"], dense=dense))
            vectors.insert(0, bottom)
        v = np.stack(vectors, 1)
        i, j = np.tril_indices(v.shape[1], -1)  # 1·0, 2·0, 2·1, …
        return self.deep("top", bottom=bottom, pairs=(v @ v.transpose(0, 2, 1))[:, i, j])

    def two_tower(self, dense, fields):
        def unit(x):
            return x / np.maximum(np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True)), 1e-6).astype(np.float32)

        first = len(fields) - self.kind["items"]
        query, item = np.concatenate(fields[:first], 1), np.concatenate(fields[first:], 1)
        q = self.affine("query.out", **self.mlp("query", self.kind["top"], dense=dense, query=query))
        v = self.affine("item.out", **self.mlp("item", self.kind["top"], item=item))
        return (unit(q) * unit(v)).sum(1, keepdims=True) / 0.1


if __name__ == "__main__":
    with open(sys.argv[2], newline="") as f:
        for scores in Model(sys.argv[1]).score(f):
            print(",".join(f"{s:.9g}" for s in scores))
