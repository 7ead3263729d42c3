"""The embedding modules, and prefetch of their rows."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from rowraft import errors
from rowraft._client import Client, Future, Table
from rowraft._schema import Admission, Initializer, Optimizer
from rowraft.torch import _check, _state
from rowraft.torch._jagged import Jagged, JaggedTensor, KeyedTensor, bad, positions


class PoolingType(enum.Enum):
    """How the rows of one bag become one vector."""

    SUM = "sum"
    MEAN = "mean"
    NONE = "none"


SUM, MEAN, NONE = PoolingType.SUM, PoolingType.MEAN, PoolingType.NONE


@dataclasses.dataclass
class EmbeddingConfig:
    """A table and the features that read it. The table is created at the first use, unless it exists.

    ``optimizer``, ``init``, ``admit``, ``expire``, ``capacity``, ``evict`` and ``storage`` are those of
    ``rowraft.Client.create_table``.
    """

    name: str
    embedding_dim: int
    feature_names: Sequence[str]
    optimizer: Optimizer | None = None
    init: Initializer | None = None
    admit: Admission | None = None
    expire: str | int | None = None
    capacity: int | None = None
    evict: str = "lru"
    storage: str = "float32"


@dataclasses.dataclass
class EmbeddingBagConfig(EmbeddingConfig):
    """A table whose features are pooled. A bag without ids is 0."""

    pooling: PoolingType = SUM


def pool(
    rows: torch.Tensor,
    indices: torch.Tensor,
    lengths: torch.Tensor,
    pooling: PoolingType = SUM,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Pool rows into bags: differentiable in rows and weights.

    Args:
        rows: (unique ids, dim).
        indices: (ids,): the row of each id.
        lengths: (bags,): how many ids each bag has.
        pooling: SUM or MEAN; NONE returns the row of each id.
        weights: (ids,), a factor for each id, for SUM.

    Returns:
        (bags, dim), or (ids, dim) for NONE. The gradient of rows is the sum over all ids of a row.
    """
    if weights is not None and pooling is not SUM:
        raise errors.InvalidArgumentError(
            f"weights: want pooling SUM, got {pooling.name}", errors.Code.INVALID_ARGUMENT
        )
    out: torch.Tensor
    if pooling is NONE:
        out = F.embedding(indices, rows)
    elif indices.numel() == 0:  # embedding_bag refuses an empty table
        out = rows[:0].sum() + rows.new_zeros(lengths.shape[0], rows.shape[1])
    else:
        offsets = F.pad(lengths.to(torch.int64).cumsum(0), (1, 0))[:-1]
        out = F.embedding_bag(indices, rows, offsets, mode=pooling.value, per_sample_weights=weights)
    return out


@dataclasses.dataclass
class _Part:
    """The rows of one table for one batch."""

    ids: np.ndarray[Any, Any]  # unique, ascending
    indices: torch.Tensor  # of each id of its features, in their order
    rows: torch.Tensor  # on the CPU; filled by the pull


class Prepared:
    """A batch whose rows are being pulled, from ``prepare``. It may be given to the module once."""

    def __init__(
        self, batch: Jagged, at: dict[str, tuple[int, int, torch.Tensor]], parts: list[_Part], pull: Future[Any] | None
    ) -> None:
        self.batch = batch
        self._at = at  # of positions
        self._parts = parts
        self._pull = pull  # None: a job pulls when the rows are used
        self._step = 0  # of the job, when the pull began
        self._used = False
        self._of: _Collection | None = None


class _Worker(Protocol):
    """What a collection asks of the job that it belongs to."""

    ahead: int  # batches that prefetch has read and not returned

    def open(self, collection: _Collection) -> list[Table]: ...
    def pull(self, tables: list[Table], prepared: Prepared) -> None: ...  # starts
    def await_rows(self, tables: list[Table], prepared: Prepared) -> None: ...
    def collect(self, table: Table, ids: np.ndarray[Any, Any], grad: np.ndarray[Any, Any]) -> None: ...


Batch = Union[Jagged, Prepared]


class _Collection(nn.Module):
    """What both collections share: tables, pulls, pushes.

    Attributes:
        waited: seconds that forward has waited for rows, since the collection was made.
    """

    _kind: type[EmbeddingConfig] = EmbeddingConfig  # of its tables

    def __init__(self, client: Client, tables: Sequence[EmbeddingConfig], in_flight: int) -> None:
        super().__init__()
        _check.arguments(client, tables, self._kind, in_flight)
        self._client = client
        self._configs = list(tables)
        self._in_flight = in_flight
        self._tables: list[Table] | None = None
        self._pushes: collections.deque[Future[None]] = collections.deque()
        self._job: _Worker | None = None
        self._device = torch.device("cpu")
        self.waited = 0.0

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the device of ``to``: the module has no parameter that would."""
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]
        self._device = fn(torch.empty(0, device=self._device)).device
        return self

    def _target(self, values: torch.Tensor) -> torch.device:
        """Return the device of the vectors: the module's, or that of values if the module was not moved to one."""
        device: torch.device = values.device
        if self._device.type == "cpu":
            return device
        if device.type != "cpu" and device != self._device:
            raise bad(f"features: on {device}, and the module is on {self._device}")
        return self._device

    def _open(self) -> list[Table]:
        if self._job is not None:
            return self._job.open(self)
        if self._tables is None:
            self._tables = [
                self._client.create_table(
                    c.name, c.embedding_dim, optimizer=c.optimizer, init=c.init, storage=c.storage, admit=c.admit,
                    expire=c.expire, capacity=c.capacity, evict=c.evict, exist_ok=True,
                )
                for c in self._configs
            ]  # fmt: skip
        return self._tables

    def get_extra_state(self) -> str:
        """Return what ``state_dict`` holds of the tables: a reference, no rows. It makes no call."""
        return _state.reference(self._client, self._configs, self._tables)

    def set_extra_state(self, state: Any) -> None:
        """Check what ``load_state_dict`` found; see docs/python.md."""
        _state.check(state, self._client, self._configs)

    def flush(self) -> None:
        """Wait until all pushes of this module are on a majority of disks, and raise the error of one that failed."""
        self._drain(0)
        self._client.flush()

    def _drain(self, most: int) -> None:
        """Wait for the oldest pushes until at most so many are under way."""
        while self._pushes and (len(self._pushes) > most or self._pushes[0].done()):
            self._pushes.popleft().result()

    def prepare(self, batch: Jagged) -> Prepared:
        """Start to pull the rows of a batch, for ``forward``.

        The rows are those of now: gradients of batches that are pushed later are not in them.
        """
        if not isinstance(batch, Jagged):
            raise TypeError(f"features: want a KeyedJaggedTensor, got {type(batch).__name__}")
        tables = self._open()
        at = positions(batch)
        values = batch.values()
        if values.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"values: dtype {values.dtype}: want torch.int64")
        pin = self._target(values).type == "cuda"
        parts = []
        for config in self._configs:
            missing = [f for f in config.feature_names if f not in at]
            if missing:
                raise bad(f"features: the batch has no feature {missing[0]!r} of table {config.name!r}")
            ids = torch.cat([values[at[f][0] : at[f][1]] for f in config.feature_names])
            unique, indices = torch.unique(ids, return_inverse=True)
            if unique.numel() and int(unique[0]) < 0:
                raise bad(f"values: id {int(unique[0])} of table {config.name!r} is negative")
            rows = torch.empty((unique.numel(), config.embedding_dim), dtype=torch.float32, pin_memory=pin)
            parts.append(_Part(unique.cpu().numpy().astype(np.uint64), indices, rows))
        prepared = Prepared(batch, at, parts, None)
        prepared._of = self
        if self._job is not None:
            self._job.pull(tables, prepared)
        else:
            prepared._pull = self._client.pull_many_async([(t, p.ids, p.rows.numpy()) for t, p in zip(tables, parts)])
        return prepared

    def _rows(self, prepared: Prepared) -> Iterator[tuple[EmbeddingConfig, torch.Tensor, torch.Tensor]]:
        """Return rows and indices of each table on the device. In training, backward pushes the gradients of rows."""
        if prepared._of is not self:
            raise bad("features: this Prepared is of another module")
        if prepared._used:
            raise bad("features: this Prepared was given to the module before")
        tables = self._open()
        begin = time.perf_counter()
        if self._job is not None:
            self._job.await_rows(tables, prepared)
        else:
            self._drain(self._in_flight)
            assert prepared._pull is not None
            prepared._pull.result()
        self.waited += time.perf_counter() - begin
        prepared._used = True  # after an error, the batch may be given again
        device = self._target(prepared.batch.values())
        moved = _move([t for p in prepared._parts for t in (p.rows, p.indices)], device)
        all_rows, indices = moved[::2], moved[1::2]
        if self.training and torch.is_grad_enabled():
            ids = [p.ids for p in prepared._parts]
            all_rows = _Pushed.apply(self, ids, torch.empty(0, requires_grad=True), *all_rows)
        yield from zip(self._configs, all_rows, indices)

    def _push(self, ids: list[np.ndarray[Any, Any]], grads: Sequence[torch.Tensor | None]) -> None:
        """Push the sum of the gradients of each id, once for each backward and all tables in one call."""
        mine = [(table, i, g) for table, i, g in zip(self._open(), ids, grads) if g is not None and len(i)]
        # Copies, because autograd may use its memory again.
        copies = [torch.empty(g.shape, dtype=torch.float32, pin_memory=g.is_cuda) for _, _, g in mine]
        for to, (_, _, g) in zip(copies, mine):
            to.copy_(g.detach(), non_blocking=True)
        for device in {g.device for _, _, g in mine if g.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # type: ignore[no-untyped-call, unused-ignore]
        parts = [(table, i, to.numpy()) for to, (table, i, _) in zip(copies, mine)]
        if self._job is not None:
            for table, i, values in parts:
                self._job.collect(table, i, values)
        elif self._in_flight == 0:
            self._client.push_many(parts)
        else:
            self._pushes.append(self._client.push_many_async(parts))
            for f in list(self._pushes)[: -self._in_flight]:
                f._settle(-1)  # the next forward raises its error: here it would stop the backward


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]


def _move(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Return tensors on a device. A GPU copies them on their own stream, while it computes what was queued before."""
    if device.type != "cuda":
        return [t.to(device) for t in tensors]
    compute, copy = torch.cuda.current_stream(device), _side_stream(device)
    with torch.cuda.stream(copy):
        moved = [t.to(device, non_blocking=True) for t in tensors]
    compute.wait_stream(copy)  # type: ignore[no-untyped-call, unused-ignore]
    for t in moved:
        t.record_stream(compute)  # its memory belongs to the other stream
    return moved


class _Pushed(torch.autograd.Function):
    """The identity of the rows of all tables. Its backward pushes their gradients."""

    @staticmethod
    def forward(  # type: ignore[override, unused-ignore]
        ctx: Any, module: _Collection, ids: list[np.ndarray[Any, Any]], anchor: torch.Tensor, *rows: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.module, ctx.ids = module, ids
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[None, ...]:
        ctx.module._push(ctx.ids, grads)
        return (None,) * (3 + len(grads))


class EmbeddingBagCollection(_Collection):
    """Pooled embeddings of several features, with the tables on the cluster.

    Args:
        client: from ``rowraft.connect``. Nothing is sent before the first batch.
        tables: the tables with their features. Several features may read one table.
        is_weighted: the batches have weights; all tables pool by SUM.
        in_flight: pushes that may be under way while training goes on. The next forward raises the error of an earlier
            push, and ``flush`` the last ones. 0: backward waits for each, and raises its error.
    """

    _kind = EmbeddingBagConfig

    def __init__(
        self,
        client: Client,
        tables: Sequence[EmbeddingBagConfig],
        *,
        is_weighted: bool = False,
        in_flight: int = 4,
    ) -> None:
        super().__init__(client, tables, in_flight)
        for t in tables:
            if not isinstance(t.pooling, PoolingType):
                raise TypeError(f"pooling: {t.pooling!r} of table {t.name!r}: want rt.SUM or rt.MEAN")
            if t.pooling is NONE:
                raise bad(f"tables: {t.name!r} has pooling NONE: use EmbeddingCollection")
            if is_weighted and t.pooling is not SUM:
                raise bad(f"tables: {t.name!r} has weights: want pooling SUM, got {t.pooling.name}")
        self._is_weighted = is_weighted

    def forward(self, features: Batch) -> KeyedTensor:
        """Return the pooled vectors of a batch, on the module's device if ``to`` has moved it, or that of the values.

        In training, backward pushes the gradients. In eval mode, or under ``torch.no_grad``, nothing is pushed.

        Raises:
            InvalidArgumentError: a feature is missing, an id is negative, or lengths do not fit values.
            TableExistsError: a table of this name has another shape.
        """
        prepared = features if isinstance(features, Prepared) else self.prepare(features)
        batch = prepared.batch
        weights = batch.weights_or_none() if self._is_weighted else None
        if self._is_weighted and weights is None:
            raise bad("features: is_weighted, but the batch has no weights")
        keys, pooled = [], []
        for config, rows, indices in self._rows(prepared):
            assert isinstance(config, EmbeddingBagConfig)
            begin = 0
            for f in config.feature_names:
                low, high, lengths = prepared._at[f]
                w = None if weights is None else weights[low:high].to(rows)
                keys.append(f)
                pooled.append(
                    pool(rows, indices[begin : begin + high - low], lengths.to(rows.device), config.pooling, w)
                )
                begin += high - low
        return KeyedTensor(keys, pooled)


class EmbeddingCollection(_Collection):
    """Embeddings of each id of several features, for sequence models. Arguments as for EmbeddingBagCollection."""

    def __init__(self, client: Client, tables: Sequence[EmbeddingConfig], *, in_flight: int = 4) -> None:
        super().__init__(client, tables, in_flight)

    def forward(self, features: Batch) -> dict[str, JaggedTensor]:
        """Return the vector of each id, by feature."""
        prepared = features if isinstance(features, Prepared) else self.prepare(features)
        out = {}
        for config, rows, indices in self._rows(prepared):
            begin = 0
            for f in config.feature_names:
                low, high, lengths = prepared._at[f]
                lengths = lengths.to(rows.device)
                out[f] = JaggedTensor(pool(rows, indices[begin : begin + high - low], lengths, NONE), lengths)
                begin += high - low
        return out


def prefetch(data: Iterable[Any], module: _Collection, depth: int = 2) -> Iterator[Any]:
    """Iterate over data and pull the rows of the next batches meanwhile.

    Args:
        data: batches: each a KeyedJaggedTensor, or a tuple or list with one. It is replaced by a Prepared for module.
        module: whose rows to pull.
        depth: batches to pull ahead. A row that is pulled ahead lacks the gradients of the up to depth batches between.
    """
    if depth < 1:
        raise bad(f"depth: {depth}: want 1 or more")
    if not isinstance(module, _Collection):
        raise TypeError(f"module: want a collection of rowraft.torch, got {type(module).__name__}")
    ahead: collections.deque[Any] = collections.deque()
    for batch in data:
        ahead.append(_prepare(batch, module))
        if len(ahead) > depth:
            yield _first(ahead, module)
    while ahead:
        yield _first(ahead, module)


def _first(ahead: collections.deque[Any], module: _Collection) -> Any:
    batch = ahead.popleft()
    if module._job is not None:
        module._job.ahead = len(ahead)
    return batch


def _prepare(batch: Any, module: _Collection) -> Any:
    if isinstance(batch, (tuple, list)):
        if not any(isinstance(b, Jagged) for b in batch):
            raise TypeError("data: a batch has no KeyedJaggedTensor")
        parts = [module.prepare(b) if isinstance(b, Jagged) else b for b in batch]
        kind: Any = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)  # a named tuple, or not
    return module.prepare(batch)
