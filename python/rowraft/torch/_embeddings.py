"""The embeddings of an exported model, for serving without rowraft. It needs torch and numpy.

::

    from embeddings import Export, KeyedJaggedTensor      # this file, in the directory that rowraft.torch.export wrote

    export = Export()                                     # of this directory
    model = DLRM(export.collection("emb"), dense_in=13)   # the class that was trained, with the name of its collection
    export.load_dense(model)
    scores = model.eval()(dense, KeyedJaggedTensor(["user_id"], ids, lengths=lengths))

The rows are in memory that is mapped from model.safetensors: a table is read as far as it is used.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol, Union, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VERSION = 1

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@runtime_checkable
class Jagged(Protocol):
    """What the modules need of a KeyedJaggedTensor: TorchRec's has it, too."""

    def keys(self) -> list[str]: ...
    def values(self) -> torch.Tensor: ...
    def lengths(self) -> torch.Tensor: ...
    def weights_or_none(self) -> torch.Tensor | None: ...


class KeyedJaggedTensor:
    """Lists of ids of several features for a batch, as TorchRec's class of this name.

    Args:
        keys: names of the features.
        values: ids ≥ 0, one dimension: all examples of the first feature, then of the second, and so on.
        weights: a factor for each id, for sum pooling.
        lengths: integers of shape ``(len(keys) · batch,)``: how many ids each example has of each feature.
        offsets: instead of lengths, their running sum with a 0 before it.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: torch.Tensor,
        weights: torch.Tensor | None = None,
        lengths: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
    ) -> None:
        if lengths is None:
            if offsets is None:
                raise ValueError("lengths: want lengths or offsets")
            lengths = offsets[1:] - offsets[:-1]
        self._keys, self._values, self._lengths, self._weights = list(keys), values, lengths, weights

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None
    ) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys, values, weights, lengths)

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str], values: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> KeyedJaggedTensor:
        return KeyedJaggedTensor(keys, values, weights, offsets=offsets)

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def weights_or_none(self) -> torch.Tensor | None:
        return self._weights

    def to(self, device: torch.device | str, non_blocking: bool = False) -> KeyedJaggedTensor:
        weights = None if self._weights is None else self._weights.to(device, non_blocking=non_blocking)
        return KeyedJaggedTensor(
            self._keys,
            self._values.to(device, non_blocking=non_blocking),
            lengths=self._lengths.to(device, non_blocking=non_blocking),
            weights=weights,
        )


@dataclasses.dataclass
class JaggedTensor:
    """Vectors of one feature: ``values`` of shape (ids, dim), ``lengths`` of shape (batch,)."""

    _values: torch.Tensor
    _lengths: torch.Tensor

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths


class KeyedTensor:
    """Pooled vectors of several features, as TorchRec's class of this name."""

    def __init__(self, keys: list[str], parts: list[torch.Tensor]) -> None:
        self._parts = dict(zip(keys, parts))

    def keys(self) -> list[str]:
        return list(self._parts)

    def values(self) -> torch.Tensor:
        """All vectors of an example in one row: (batch, sum of dims)."""
        return torch.cat(list(self._parts.values()), dim=1)

    def length_per_key(self) -> list[int]:
        return [p.shape[1] for p in self._parts.values()]

    def __getitem__(self, key: str) -> torch.Tensor:
        return self._parts[key]

    def to_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._parts)


def positions(batch: Jagged) -> dict[str, tuple[int, int, torch.Tensor]]:
    """Return where the ids of each feature are, and the lengths of its bags."""
    keys, lengths, values = batch.keys(), batch.lengths(), batch.values()
    weights = batch.weights_or_none()
    for name, t in (("values", values), ("lengths", lengths), ("weights", weights)):
        if not isinstance(t, torch.Tensor) and (t is not None or name != "weights"):
            raise TypeError(f"{name}: want a tensor, got {type(t).__name__}")
        if t is not None and t.device != values.device:
            raise ValueError(f"{name}: on {t.device}, and values on {values.device}")
    if lengths.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"lengths: dtype {lengths.dtype}: want torch.int64")
    if len(set(keys)) != len(keys):
        raise ValueError(f"keys: {keys}: a feature appears twice")
    if not keys or values.dim() != 1 or lengths.dim() != 1 or lengths.numel() % len(keys):
        raise ValueError(
            f"features: {len(keys)} keys, values of shape {tuple(values.shape)}, lengths of shape "
            f"{tuple(lengths.shape)}: want values with one dimension, and lengths for each key and example"
        )
    if weights is not None and weights.shape != values.shape:
        raise ValueError(f"weights: shape {tuple(weights.shape)}: want that of values, {tuple(values.shape)}")
    by_key = lengths.reshape(len(keys), -1)
    sums = by_key.sum(1).tolist()
    if sum(sums) != values.numel() or (lengths.numel() and int(lengths.min()) < 0):
        raise ValueError(f"lengths: they sum to {sum(sums)}, and there are {values.numel()} values")
    out, begin = {}, 0
    for key, row, n in zip(keys, by_key, sums):
        out[key] = (begin, begin + n, row)
        begin += n
    return out


class Rows(nn.Module):
    """The rows of one table: ids (n,), ascending, and a module with weights (n, dim).

    An id that has no row has the initial weights of its table, as on the cluster.
    """

    def __init__(self, ids: torch.Tensor, embedding: nn.Embedding | nn.EmbeddingBag, table: dict[str, Any]) -> None:
        super().__init__()
        self.register_buffer("ids", ids)
        self.ids: torch.Tensor
        self.embedding = embedding
        self._table = table

    def find(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the index of each id, and whether it has a row; the index of one without is any."""
        if ids.device != self.ids.device:
            raise ValueError(f"features: values on {ids.device}, and the rows are on {self.ids.device}")
        ids = ids.to(torch.int64)
        if ids.numel() and int(ids.min()) < 0:
            raise ValueError(f"values: id {int(ids.min())} of table {self._table['name']!r} is negative")
        if not self.ids.numel():
            return torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        index = torch.searchsorted(self.ids, ids).clamp(max=self.ids.numel() - 1)
        return index, self.ids[index] == ids

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the row of each id: (ids, dim)."""
        index, seen = self.find(ids)
        weight = self.embedding.weight
        rows: torch.Tensor = weight.new_zeros((ids.numel(), weight.shape[1]))
        rows[seen] = weight[index[seen]]
        rows[~seen] = self.initial(ids[~seen]).to(rows)
        return rows

    def initial(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the initial weights of ids: float32 on the CPU, with the bits of the cluster."""
        rows = torch.from_numpy(initial(ids.cpu().numpy().astype(np.uint64), self._table["dim"], self._table["init"]))
        return rows.bfloat16().float() if self._table["rounded"] == "bfloat16" else rows


class EmbeddingBagCollection(nn.Module):
    """Pooled embeddings, with the signature of rowraft.torch.EmbeddingBagCollection."""

    def __init__(self, config: dict[str, Any], rows: Sequence[Rows]) -> None:
        super().__init__()
        self._config = config
        self.rows = nn.ModuleList(rows)

    def forward(self, features: Jagged) -> KeyedTensor:
        at = _features(features, self._config)
        weights = features.weights_or_none() if self._config["is_weighted"] else None
        if self._config["is_weighted"] and weights is None:
            raise ValueError("features: is_weighted, but the batch has no weights")
        keys, pooled = [], []
        for table, rows in zip(self._config["tables"], self.rows):
            for f in table["features"]:
                low, high, lengths = at[f]
                keys.append(f)
                w = None if weights is None else weights[low:high]
                pooled.append(_pool(rows, features.values()[low:high], lengths, w))
        return KeyedTensor(keys, pooled)


def _pool(rows: Any, ids: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    bag = rows.embedding
    if ids.numel() == 0:
        return torch.zeros(lengths.numel(), bag.embedding_dim, device=ids.device)
    offsets = F.pad(lengths.to(torch.int64).cumsum(0), (1, 0))[:-1]
    weights = None if weights is None else weights.to(bag.weight.dtype)
    index, seen = rows.find(ids)
    if bool(seen.all()):
        out: torch.Tensor = bag(index, offsets, per_sample_weights=weights)
        return out
    each = torch.arange(ids.numel(), device=ids.device)
    return F.embedding_bag(each, rows(ids), offsets, mode=bag.mode, per_sample_weights=weights)


class EmbeddingCollection(nn.Module):
    """The embedding of each id, with the signature of rowraft.torch.EmbeddingCollection."""

    def __init__(self, config: dict[str, Any], rows: Sequence[Rows]) -> None:
        super().__init__()
        self._config = config
        self.rows = nn.ModuleList(rows)

    def forward(self, features: Jagged) -> dict[str, JaggedTensor]:
        at = _features(features, self._config)
        out = {}
        for table, rows in zip(self._config["tables"], self.rows):
            for f in table["features"]:
                low, high, lengths = at[f]
                out[f] = JaggedTensor(rows(features.values()[low:high]), lengths)
        return out


Collection = Union[EmbeddingBagCollection, EmbeddingCollection]


def _features(features: Jagged, config: dict[str, Any]) -> dict[str, tuple[int, int, torch.Tensor]]:
    if not isinstance(features, Jagged):
        raise TypeError(f"features: want a KeyedJaggedTensor, got {type(features).__name__}")
    at = positions(features)
    for table in config["tables"]:
        for f in table["features"]:
            if f not in at:
                raise ValueError(f"features: the batch has no feature {f!r} of table {table['name']!r}")
    if features.values().dtype not in (torch.int64, torch.int32):
        raise TypeError(f"values: dtype {features.values().dtype}: want torch.int64")
    return at


class Export:
    """What rowraft.torch.export wrote to a directory; None: the one of this file."""

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._directory = pathlib.Path(__file__).parent if directory is None else pathlib.Path(directory)
        self._config = json.loads((self._directory / "config.json").read_text())
        if self._config["rowraft_export"] != VERSION:
            raise ValueError(f"config.json has version {self._config['rowraft_export']}: want {VERSION}")
        self._tensors = read(self._directory / "model.safetensors")

    def collections(self) -> list[str]:
        """Return the names of the collections: their places in the model that was exported."""
        return list(self._config["collections"])

    def collection(self, name: str | None = None) -> Collection:
        """Return the module of a collection; without a name, of the only one."""
        names = self.collections()
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            raise ValueError(f"name: {name!r}: want one of {names}")
        config = self._config["collections"][name]
        rows = []
        for t in config["tables"]:
            weight = self._tensors[f"tables/{t['name']}/weight"]
            embedding: nn.Embedding | nn.EmbeddingBag
            if config["kind"] == "EmbeddingCollection":
                embedding = nn.Embedding.from_pretrained(weight)  # type: ignore[no-untyped-call]
            else:
                embedding = nn.EmbeddingBag.from_pretrained(weight, mode=t["pooling"])
            rows.append(Rows(self._tensors[f"tables/{t['name']}/ids"], embedding, self._config["tables"][t["name"]]))
        kind = EmbeddingCollection if config["kind"] == "EmbeddingCollection" else EmbeddingBagCollection
        return kind(config, rows)

    def dense(self) -> dict[str, torch.Tensor]:
        """Return the dense weights, by their names in the state_dict of the model that was exported."""
        return {n: t for n, t in self._tensors.items() if not n.startswith("tables/")}

    def load_dense(self, model: nn.Module) -> None:
        """Load the dense weights into a model with the collections of this export. Each must have its place."""
        dense = self.dense()
        result = model.load_state_dict(dense, strict=False)
        ours = [f"{n}." if n else "" for n, m in model.named_modules() if isinstance(m, Rows)]
        missing = [k for k in result.missing_keys if not any(k.startswith(p) for p in ours)]
        if missing or result.unexpected_keys:
            raise ValueError(
                f"model: it is not the one that was exported: weights {missing} are not in the export, "
                f"and {list(result.unexpected_keys)} not in the model"
            )


def read(path: pathlib.Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, in memory that is mapped: a change of one does not change the file."""
    with open(path, "rb") as f:
        memory = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    begin = 8 + int.from_bytes(memory[:8], "little")
    by_name = {name: dtype for dtype, name in DTYPES.items()}
    out = {}
    for name, t in json.loads(memory[8:begin]).items():
        if name == "__metadata__":
            continue
        low, high = t["data_offsets"]
        dtype = by_name[t["dtype"]]
        if low == high:
            out[name] = torch.empty(t["shape"], dtype=dtype)
            continue
        count = int(np.prod(t["shape"], dtype=np.int64))
        out[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + low).reshape(t["shape"])
    return out


def initial(ids: np.ndarray[Any, Any], dim: int, init: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return the weights (ids, dim) that ids have before their first push, by the formula of package optim."""
    if init["kind"] == "zeros":
        return np.zeros((len(ids), dim), np.float32)
    gamma = np.uint64(0x9E3779B97F4A7C15)
    seed = np.array([init["seed"]], np.uint64) + gamma
    h = _mix64(_mix64(_mix64(seed) ^ np.uint64(init["name_hash"])) ^ ids)[:, None]
    if init["kind"] == "uniform":
        a, b = (np.float32(init.get(k, 0.0)) for k in ("low", "high"))
        x = _mix64(h + np.arange(1, dim + 1, dtype=np.uint64) * gamma)
        u = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
        w = (np.float64(a) + u * (np.float64(b) - np.float64(a))).astype(np.float32)
        w[w >= b] = a
        return w
    a, b = (np.float32(init.get(k, 0.0)) for k in ("mean", "std"))
    x = _mix64(h + np.arange(1, 3 * dim + 1, dtype=np.uint64) * gamma)
    parts = sum((x >> np.uint64(16 * i)) & np.uint64(0xFFFF) for i in range(4))
    total = np.asarray(parts).reshape(len(ids), dim, 3).sum(2).astype(np.int64)
    z = (2 * total - 786420) * 2.0**-17
    normal: np.ndarray[Any, Any] = (np.float64(a) + np.float64(b) * z).astype(np.float32)
    return normal


def _mix64(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The finalizer of splitmix64, on uint64 that wrap."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray[Any, Any] = z ^ (z >> np.uint64(31))
    return mixed
