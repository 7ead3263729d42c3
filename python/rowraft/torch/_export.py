"""export: a model with its rows, for serving without rowraft."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy as np
import torch
from torch import nn

from rowraft._client import Table
from rowraft.torch import _embeddings
from rowraft.torch._jagged import bad
from rowraft.torch._modules import EmbeddingBagConfig, _Collection

Progress = Callable[[str, int, Optional[int]], object]
"""Called with the name of a table, its rows written so far, and about how many there are."""

_CHUNK = 65_536  # rows


def export(model: nn.Module, path: str | os.PathLike[str], *, progress: Progress | None = None) -> None:
    """Write a model with the rows of its tables to a directory, for serving without rowraft.

    The directory has ``model.safetensors`` (the dense weights by their names in ``state_dict``; for each table
    ``tables/NAME/ids``, int64 (n,), ascending, and ``tables/NAME/weight``, float32 (n, dim)), ``config.json``, and
    ``embeddings.py``, which needs torch and numpy only. It has the modules for the class of the model; its first lines
    show how. An id without a row has the initial weights of its table there, as on the cluster.

    It reads the tables with ``Table.scan``: pushes while it runs may be in some rows and not in others. It needs the
    space of the rows twice on the disk of path, and memory for ids. The directory appears complete or not at all.

    Args:
        model: with at least one collection of this package, or a collection.
        path: of the new directory, whose parent exists.
        progress: called with (table, rows so far, about how many) after each chunk of rows.

    Raises:
        FileExistsError: path exists.
        InvalidArgumentError: model has no collection, an entry of its state is not a tensor, or the like.
        Error: the rows could not be read, or an earlier push failed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: {path!r}: want a path")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: want a torch.nn.Module, got {type(model).__name__}")
    path = pathlib.Path(path).absolute()
    _refuse_existing(path)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    collections = {n: m for n, m in model.named_modules() if isinstance(m, _Collection)}
    if not collections:
        raise bad(f"model: a {type(model).__name__} without a collection of rowraft.torch")
    dense = _dense(model, collections)
    for c in collections.values():
        c.flush()
    tables = _tables(collections)
    for client in {t._client for t in tables.values()}:  # a job has its own
        client.flush()
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as work:
        new = pathlib.Path(work) / path.name
        new.mkdir()
        rows = {name: _Spool(t, pathlib.Path(work) / str(i), progress) for i, (name, t) in enumerate(tables.items())}
        _write(new / "model.safetensors", dense, rows)
        (new / "config.json").write_text(json.dumps(_config(collections, tables, rows), indent=1) + "\n")
        shutil.copyfile(_embeddings.__file__, new / "embeddings.py")
        for file in (*new.iterdir(), new):
            _sync(file)
        _refuse_existing(path)
        new.rename(path)
        _sync(path.parent)


def _refuse_existing(path: pathlib.Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"path: {path} exists")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path: there is no directory {path.parent}")


def _dense(model: nn.Module, collections: dict[str, _Collection]) -> dict[str, torch.Tensor]:
    ours = {f"{n}._extra_state" if n else "_extra_state" for n in collections}
    out = {}
    for name, value in model.state_dict().items():
        if name in ours:
            continue
        if not isinstance(value, torch.Tensor) or value.dtype not in _embeddings.DTYPES or value.is_sparse:
            what = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__
            raise bad(f"model: {name!r} of its state is a {what}, which safetensors does not have")
        if name.startswith("tables/"):
            raise bad(f"model: {name!r} of its state has the name of a table's rows")
        out[name] = value.detach().cpu().contiguous()
    return out


def _tables(collections: dict[str, _Collection]) -> dict[str, Table]:
    out: dict[str, Table] = {}
    for c in collections.values():
        for t in c._open():
            if t.name in out and out[t.name]._client is not t._client:
                raise bad(f"model: table {t.name!r} is used with two clients")
            out[t.name] = t
    return out


def _config(collections: dict[str, _Collection], tables: dict[str, Table], rows: dict[str, _Spool]) -> dict[str, Any]:
    def collection(c: _Collection) -> dict[str, Any]:
        weighted = getattr(c, "_is_weighted", None)
        kind = "EmbeddingCollection" if weighted is None else "EmbeddingBagCollection"
        configs = [
            {
                "name": t.name,
                "features": list(t.feature_names),
                "pooling": t.pooling.value if isinstance(t, EmbeddingBagConfig) else "none",
            }
            for t in c._configs
        ]
        return {"kind": kind, "is_weighted": bool(weighted), "tables": configs}

    def table(t: Table) -> dict[str, Any]:
        info = t.describe()
        rounded = "bfloat16" if "bfloat16" in (info.storage, t._client._dtype) else "float32"
        return {
            "name": t.name, "dim": t.dim, "rows": len(rows[t.name].order), "init": info.init, "rounded": rounded,
        }  # fmt: skip

    return {
        "rowraft_export": _embeddings.VERSION,
        "collections": {n: collection(c) for n, c in collections.items()},
        "tables": {n: table(t) for n, t in tables.items()},
    }


class _Spool:
    """The rows of a table in a file, in the order of the scan."""

    def __init__(self, table: Table, path: pathlib.Path, progress: Progress | None) -> None:
        about = next((t.rows for t in table._client.tables() if t.name == table.name), None)
        parts, done = [np.empty(0, np.uint64)], 0
        with open(path, "wb") as f:
            for keys, weights in table.scan(_CHUNK):
                parts.append(keys.copy())
                weights.tofile(f)
                done += len(keys)
                if progress is not None:
                    progress(table.name, done, about)
        keys = np.concatenate(parts)
        order = np.argsort(keys, kind="stable")
        fit = int(np.searchsorted(keys[order], np.uint64(1 << 63)))
        if fit < len(order):
            warnings.warn(
                f"export: {len(order) - fit} rows of table {table.name!r} have ids of 2**63 or more, which no tensor "
                "has: they are left out",
                UserWarning,
                stacklevel=3,
            )
        self.order = order[:fit]
        self.ids = keys[self.order].astype(np.int64)
        self.dim = table.dim
        self._path, self._rows = path, len(keys)

    def sorted(self) -> Iterator[np.ndarray[Any, Any]]:
        """Iterate over the rows by ascending id."""
        if not self._rows:
            return
        rows = np.memmap(self._path, np.float32, "r", shape=(self._rows, self.dim))
        for i in range(0, len(self.order), _CHUNK):
            yield rows[self.order[i : i + _CHUNK]]


def _write(path: pathlib.Path, dense: dict[str, torch.Tensor], rows: dict[str, _Spool]) -> None:
    """Write a safetensors file. Wide numbers come first, so that each tensor is aligned."""
    entries: list[tuple[str, torch.dtype, list[int], Iterable[Any]]] = []
    for name, t in dense.items():
        entries.append((name, t.dtype, list(t.shape), [t.reshape(-1).view(torch.uint8).numpy()]))
    for name, s in rows.items():
        n = len(s.ids)
        entries.append((f"tables/{name}/ids", torch.int64, [n], [s.ids]))
        entries.append((f"tables/{name}/weight", torch.float32, [n, s.dim], s.sorted()))

    def size(dtype: torch.dtype) -> int:
        n: int = torch.empty((), dtype=dtype).element_size()
        return n

    entries.sort(key=lambda e: (-size(e[1]), e[0]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape, _ in entries:
        end = at + size(dtype) * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": _embeddings.DTYPES[dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for *_, arrays in entries:
            for a in arrays:
                f.write(a.data)
        if f.tell() != 8 + len(text) + at:
            raise RuntimeError(f"{path} has {f.tell()} bytes, want {8 + len(text) + at}")


def _sync(path: pathlib.Path) -> None:
    """Make a file or a directory durable, as far as the file system can."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
