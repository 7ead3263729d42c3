"""Client, Table and Future."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Optional, TypeVar, Union, cast, get_args

import numpy as np
import numpy.typing as npt

from rowraft import _lib, errors
from rowraft._schema import Admission, Initializer, Optimizer, RowwiseAdagrad, TableInfo, Uniform

Keys = npt.ArrayLike
"""Keys: uint64, or int64 without negative ones (no copy); other integers are converted. Any shape."""

Rows = npt.NDArray[np.float32]
"""Weights or gradients: float32, the shape of the keys with one more axis of length dim."""

T = TypeVar("T")

_INFINITE = float("inf")

# How long a client tries to connect before it says so.
_SILENCE = 3.0

_log = logging.getLogger("rowraft")


class Future(Generic[T]):
    """The result of a call that has been started. Safe for concurrent use."""

    def __init__(self, client: Client, op: _lib.Operation, value: T, write: bool) -> None:
        self._client = client
        self._op = op
        self._lock = threading.RLock()  # a signal handler may interrupt a wait, and wait
        self._value = value
        self._text = b""  # of the library
        self._error: errors.Error | None = None
        self._write = write
        self._ended = False
        self._told = False  # result has returned or raised the outcome

    def _settle(self, wait_ms: int) -> bool:
        """Wait for the end, and return whether it has come."""
        if self._ended:
            return True
        late = None if wait_ms < 0 else time.monotonic() + wait_ms / 1000
        if not self._lock.acquire(timeout=-1 if wait_ms < 0 else wait_ms / 1000):
            return False
        try:
            if self._ended:
                return True
            left = -1 if late is None else max(0, round((late - time.monotonic()) * 1000))
            if not self._op.wait(left):
                return False
            if self._ended:  # in a signal handler
                return True
            try:
                self._text = self._op.result()
            except errors.Error as e:
                self._error = e
            self._ended = True
            return True
        finally:
            self._lock.release()

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._settle(0)

    def cancel(self) -> None:
        """Make the call end soon. A push of which something was sent is sent completely all the same."""
        if not self._ended:
            self._op.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the end of the call and return its result. Ctrl-C interrupts the wait, not the call.

        Args:
            timeout: seconds to wait; None: until the call ends, which its own timeout bounds.

        Raises:
            TimeoutError: the call runs still.
            Error: the call failed.
        """
        if not self._settle(-1 if timeout is None else _lib.milliseconds(timeout)):
            raise TimeoutError(f"the call has not ended within {timeout} s")
        self._told = True
        if self._error is not None:
            raise self._error
        return self._value


def _keys(keys: Keys) -> npt.NDArray[np.uint64]:
    """Return keys as a C-contiguous array of uint64, without a copy where possible."""
    a = np.asarray(keys)
    if a.dtype != np.uint64:
        if a.size == 0 and not isinstance(keys, np.ndarray):
            a = a.astype(np.uint64)
        elif a.dtype.kind not in "iu":
            raise TypeError(f"keys: dtype {a.dtype}: want uint64 or int64")
        elif a.dtype.kind == "i":
            if a.size and int(a.min()) < 0:
                raise errors.InvalidArgumentError(
                    f"keys: {int(a.min())} is negative: ids of 64 bits are unsigned (keys.view(numpy.uint64))",
                    errors.Code.INVALID_ARGUMENT,
                )
            a = a.view(np.uint64) if a.dtype == np.int64 else a.astype(np.uint64)
        else:
            a = a.astype(np.uint64)
    return np.ascontiguousarray(a).reshape(a.shape)


def _values(name: str, values: npt.ArrayLike, keys: npt.NDArray[np.uint64], dim: int) -> Rows:
    """Return values as a C-contiguous array of float32, without a copy where possible."""
    a = np.asarray(values)
    if a.dtype != np.float32:
        raise TypeError(f"{name}: dtype {a.dtype}: want float32")
    if a.shape != (*keys.shape, dim):
        raise errors.InvalidArgumentError(
            f"{name}: shape {a.shape}: want {(*keys.shape, dim)}, the shape of keys and the table's dim",
            errors.Code.INVALID_ARGUMENT,
        )
    return np.ascontiguousarray(a)


def _out(out: npt.NDArray[np.float32] | None, keys: npt.NDArray[np.uint64], dim: int) -> Rows:
    if out is None:
        return np.empty((*keys.shape, dim), np.float32)
    a = np.asarray(out)
    if a.dtype != np.float32 or a.shape != (*keys.shape, dim):
        raise errors.InvalidArgumentError(
            f"out: {a.dtype} of shape {a.shape}: want float32 of shape {(*keys.shape, dim)}",
            errors.Code.INVALID_ARGUMENT,
        )
    if not a.flags.c_contiguous or not a.flags.writeable:
        raise errors.InvalidArgumentError("out: want a C-contiguous, writable array", errors.Code.INVALID_ARGUMENT)
    return a


def _address(a: np.ndarray[Any, Any]) -> int:
    return cast(int, a.__array_interface__["data"][0])


def _segment(
    s: _lib.Segment,
    handle: int,
    keys: npt.NDArray[np.uint64],
    values: Rows | None = None,
    present: npt.NDArray[np.bool_] | None = None,
    lr: float = 0.0,
) -> None:
    s.table, s.n, s.lr = handle, keys.size, lr
    s.keys = _address(keys)
    if values is not None:
        s.values = _address(values)
    if present is not None:
        s.present = _address(present)


class Table:
    """A table of a cluster, from ``Client.table`` or ``Client.create_table``. Safe for concurrent use."""

    def __init__(self, client: Client, info: TableInfo, handle: int) -> None:
        self._client = client
        self._info = info
        self._id = handle

    def __repr__(self) -> str:
        return f"<rowraft.Table {self.name!r} dim={self.dim}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Table, (self._client, self._info, 0)

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._info.name

    @property
    def dim(self) -> int:
        """The number of weights of a row."""
        return self._info.dim

    def describe(self) -> TableInfo:
        """Return what the table was created with. It makes no call; ``Client.tables`` has the number of rows."""
        return self._info

    def _handle(self) -> int:
        if not self._id:  # it came through pickle
            self._id = self._client.table(self.name)._id
        return self._id

    def pull(
        self,
        keys: Keys,
        out: Rows | None = None,
        *,
        mode: str = "leader",
        max_age: float | None = None,
        timeout: float | None = None,
    ) -> Rows:
        """Return the weights of keys. A key that was never pushed reads as its initial weights.

        Args:
            keys: integers ≥ 0 of any shape; they may repeat.
            out: float32 array of shape ``keys.shape + (dim,)`` to fill and return. After an error it may be partly
                written.
            mode: ``"leader"``: no row is older than this client's own acknowledged pushes. ``"linearizable"``: it sees
                each push that was acknowledged to any client before the call. ``"bounded"``: any replica that is new
                enough answers, also while a shard has no leader.
            max_age: for ``"bounded"``: seconds by which the rows may be old (default 1).
            timeout: seconds; None: the client's.

        Raises:
            TypeError, InvalidArgumentError: keys or out are not as above.
            TableNotFoundError: the table was dropped.
            DeadlineError: no answer within the timeout.
        """
        return self._client._pull([(self, keys, out)], mode, max_age, timeout)[0]

    def pull_present(self, keys: Keys, *, timeout: float | None = None) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the weights of keys, and for each key whether it was pushed or assigned."""
        k = _keys(keys)
        out, present = _out(None, k, self.dim), np.zeros(k.shape, np.bool_)
        segments = (_lib.Segment * 1)()
        _segment(segments[0], self._handle(), k, out, present)
        self._client._run(_lib.PULL, segments, (k, out, present), timeout)
        return out, present

    def pull_async(self, keys: Keys, out: Rows | None = None, *, timeout: float | None = None) -> Future[Rows]:
        """Start a :meth:`pull`. keys and out belong to the call until the future is done."""
        k = _keys(keys)
        w = _out(out, k, self.dim)
        segments = (_lib.Segment * 1)()
        _segment(segments[0], self._handle(), k, w)
        return self._client._start(_lib.PULL, segments, (k, w), w, timeout)

    def push(self, keys: Keys, grads: npt.ArrayLike, *, lr: float | None = None, timeout: float | None = None) -> None:
        """Apply gradients exactly once, and return when they are on a majority of disks.

        Args:
            keys: integers ≥ 0 of any shape. Gradients of a repeated key are summed.
            grads: finite float32 numbers of shape ``keys.shape + (dim,)``.
            lr: replaces the table's learning rate for this push.
            timeout: seconds; None: the client's.

        Raises:
            TypeError, InvalidArgumentError: an argument is not as above; nothing was applied.
            Error: with ``maybe_applied`` the push may have been applied or may still be: do not push the same gradients
                again; :meth:`Client.flush` waits for the outcome. Without it nothing was applied.
        """
        self._client.push_many([(self, keys, grads)], lr=lr, timeout=timeout)

    def push_async(
        self, keys: Keys, grads: npt.ArrayLike, *, lr: float | None = None, timeout: float | None = None
    ) -> Future[None]:
        """Start a :meth:`push`. keys and grads must not change until the future is done.

        If ``in_flight`` calls of the client are under way, it first waits for the oldest. An error that no
        ``Future.result`` has raised is raised by :meth:`Client.flush`.
        """
        return self._client.push_many_async([(self, keys, grads)], lr=lr, timeout=timeout)

    def assign(self, keys: Keys, weights: npt.ArrayLike, *, timeout: float | None = None) -> None:
        """Set weights, with the promises of :meth:`push`. Of a repeated key the last value counts."""
        k = _keys(keys)
        w = _values("weights", weights, k, self.dim)
        segments = (_lib.Segment * 1)()
        _segment(segments[0], self._handle(), k, w)
        self._client._run(_lib.ASSIGN, segments, (k, w), timeout)

    def delete(self, keys: Keys, *, timeout: float | None = None) -> None:
        """Remove the rows of keys, with the promises of :meth:`push`. A key without a row is ignored."""
        k = _keys(keys)
        segments = (_lib.Segment * 1)()
        _segment(segments[0], self._handle(), k)
        self._client._run(_lib.DELETE, segments, (k,), timeout)

    def scan(
        self, batch_rows: int = 65_536, *, timeout: float | None = None
    ) -> Iterator[tuple[npt.NDArray[np.uint64], Rows]]:
        """Iterate over all rows: pairs of keys ``(n,)`` and weights ``(n, dim)``, with n ≤ batch_rows.

        No key comes twice. Different rows may be of different moments; a checkpoint is the table at one moment.

        Args:
            batch_rows: most rows of a batch.
            timeout: seconds for each batch; None: the client's.
        """
        if batch_rows < 1:
            raise errors.InvalidArgumentError(f"batch_rows: {batch_rows}: want 1 or more", errors.Code.INVALID_ARGUMENT)
        scan = self._client._call("scan", timeout, handle=self._handle())["handle"]
        segments = (_lib.Segment * 1)()
        try:
            while True:
                k, w = np.empty(batch_rows, np.uint64), np.empty((batch_rows, self.dim), np.float32)
                _segment(segments[0], scan, k, w)
                rows = self._client._run(_lib.NEXT, segments, (k, w), timeout)
                if rows == 0:
                    return
                yield k[:rows], w[:rows]
        finally:
            with contextlib.suppress(errors.Error, errors.ForkError):
                self._client._call("end_scan", 1.0, handle=scan)


def check_table(
    name: object, dim: object, optimizer: object, init: object, admit: object, dim_name: str = "dim"
) -> None:
    """Raise TypeError for an argument of a table that is of another type; the library checks the values."""
    for argument, value, kind, want in (
        ("name", name, str, "a str"),
        (dim_name, dim, int, "an int"),
        ("optimizer", optimizer, (Optimizer, type(None)), "one of rowraft, as rowraft.Adam(lr=0.01)"),
        ("init", init, (*get_args(Initializer), type(None)), "rowraft.Zeros(), Uniform(…) or Normal(…)"),
        ("admit", admit, (*get_args(Admission), type(None)), "rowraft.Count(n) or rowraft.Probability(p)"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{argument}: {value!r} of table {name!r}: want {want}")


Part = Union[tuple[Table, Keys], tuple[Table, Keys, Optional[Rows]]]


class Client:
    """A session with a cluster. Safe for concurrent use by threads.

    It connects with its first call. It may be pickled, so ``spawn`` workers can have it: the copy connects by itself.
    As a context manager it flushes and closes.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        certs: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        dtype: str = "float32",
        in_flight: int = 64,
    ) -> None:
        self._endpoints = _addresses(endpoints)
        if not timeout > 0:
            raise errors.InvalidArgumentError(f"timeout: {timeout}: want seconds > 0", errors.Code.INVALID_ARGUMENT)
        if in_flight < 1:
            raise errors.InvalidArgumentError(f"in_flight: {in_flight}: want 1 or more", errors.Code.INVALID_ARGUMENT)
        self._certs = os.path.expanduser(certs) if certs is not None else ""
        self._timeout = timeout
        self._dtype = dtype
        self._in_flight = in_flight
        self._lock = threading.RLock()  # a signal handler may close a client that connects
        self._id = 0
        self._closed = False
        self._finalizer: Callable[[], object] | None = None
        self._pending: collections.deque[Future[Any]] = collections.deque()
        self._failed: Future[Any] | None = None  # the first write whose error nothing has raised
        self._checkpoint: Checkpoint | None = None  # the last one that this client made, or a job resumed from

    def __repr__(self) -> str:
        return f"<rowraft.Client {','.join(map(str, self._endpoints))}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickle, (self._endpoints, self._certs or None, self._timeout, self._dtype, self._in_flight)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            self.close()

    def close(self) -> None:
        """Close the client: it ends its calls, its goroutines and its connections. It may be called again.

        The outcome of pushes that are under way stays unknown: call :meth:`flush` first, or leave a ``with`` block.
        """
        self._closed = True
        if _lib._forked:  # the client is its parent's, and a thread of the parent may have held the lock
            return
        with self._lock:
            handle, self._id = self._id, 0
            finalizer, self._finalizer = self._finalizer, None
        if handle and finalizer is not None:
            finalizer.detach()  # type: ignore[attr-defined]
            _lib.call("close", handle=handle)

    def _handle(self) -> int:
        """Return the number of the client in the library. The first call connects."""
        if self._id and not _lib._forked:
            return self._id
        if self._closed:
            raise errors.ClosedError("the client is closed", errors.Code.CLOSING)
        _lib.load()  # raises in a forked child, before a lock that another thread may have held
        with self._lock:
            if not self._id and not self._closed:
                self._id = self._dial()
                self._finalizer = weakref.finalize(self, _close, self._id)
            if self._closed:  # meanwhile
                self.close()
                raise errors.ClosedError("the client is closed", errors.Code.CLOSING)
            return self._id

    def _dial(self) -> int:
        """Connect, and return the number of the client. After some seconds without an answer it logs a warning."""

        def dial(timeout: float) -> int:
            return cast(int, _lib.call(
                "dial", timeout=timeout, endpoints=self._endpoints, certs=self._certs, dtype=self._dtype,
                in_flight=min(self._in_flight, 512),
            )["handle"])  # fmt: skip

        try:
            if self._timeout <= _SILENCE:
                return dial(self._timeout)
            try:
                return dial(_SILENCE)
            except errors.Error as e:
                if not e.retryable:
                    raise
                left = self._timeout - _SILENCE
                _log.warning("no server answers; the client tries for %g s more (timeout): %s", left, e)
            return dial(left)
        except errors.Error as e:
            if self._certs or "server preface" not in str(e):
                raise
            raise type(e)(f"{e}: do the servers want TLS? connect(…, certs=DIRECTORY)", e.code) from None

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def _call(self, name: str, timeout: float | None, /, **arguments: Any) -> Any:
        return _lib.call(name, self._handle(), self._limit(timeout), **arguments)

    def _run(self, what: int, segments: Any, keep: object, timeout: float | None, request: bytes | None = None) -> int:
        """Run an operation and return its number of rows."""
        op = _lib.Operation(what, self._handle(), segments, request, self._limit(timeout), keep)
        op.result()
        return cast(int, op.status.rows)

    def _start(self, what: int, segments: Any, keep: object, value: T, timeout: float | None) -> Future[T]:
        """Start an operation. What nobody waits for is bounded: it waits for the oldest of too many."""
        self._reap(self._in_flight - 1)
        op = _lib.Operation(what, self._handle(), segments, None, self._limit(timeout), keep, wait=False)
        f = Future(self, op, value, what != _lib.PULL)
        self._pending.append(f)
        return f

    def _reap(self, most: int) -> None:
        """Forget the calls that have ended from the oldest on, and wait until at most so many are left."""
        while True:
            try:
                f = self._pending[0]
            except IndexError:  # another thread may have been faster
                return
            if not f._settle(-1 if len(self._pending) > most else 0):
                return
            first = self._failed
            if f._write and f._error is not None and not f._told and (first is None or first._told):
                self._failed = f  # before another thread's flush no longer finds f
            with contextlib.suppress(ValueError):
                self._pending.remove(f)

    def table(self, name: str, *, timeout: float | None = None) -> Table:
        """Return the table of a name.

        Raises:
            TableNotFoundError: there is none.
        """
        return self._table(self._call("table", timeout, name=name))

    def _table(self, v: dict[str, Any]) -> Table:
        return Table(self, TableInfo.decode(v, False), v["handle"])

    def tables(self, *, timeout: float | None = None) -> list[TableInfo]:
        """Return the tables of the cluster with their numbers of rows, the oldest first."""
        return [TableInfo.decode(v, True) for v in self._call("tables", timeout)]

    def create_table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        init: Initializer | None = None,
        storage: str = "float32",
        admit: Admission | None = None,
        expire: str | int | None = None,
        capacity: int | None = None,
        evict: str = "lru",
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Table:
        """Create a table, and return when every shard has it. Its shape never changes afterwards.

        Args:
            name: a letter, then letters, digits, ``_``, ``.`` or ``-``.
            dim: weights of a row, 1 to 4096.
            optimizer: default ``RowwiseAdagrad()``.
            init: weights of new rows, default ``Uniform(-0.01, 0.01)``.
            storage: ``"float32"`` or ``"bfloat16"``.
            admit: which keys get a row: ``Count(n)`` or ``Probability(p)``; None: all.
            expire: remove rows that get no push for so long: ``"168h"``, or seconds; None: never.
            capacity: most rows of the table; None: no bound.
            evict: what makes room in a full table, ``"lru"`` or ``"lfu"``.
            exist_ok: accept a table of the same name and shape.
            timeout: seconds; None: the client's.

        Raises:
            TypeError: an argument has another type.
            InvalidArgumentError: the shape is not possible.
            TableExistsError: there is a table of that name, with another shape or without exist_ok.
        """
        check_table(name, dim, optimizer, init, admit)
        rule = optimizer or RowwiseAdagrad()
        schema = {
            "name": name, "kind": "sparse", "dim": dim, "init": (init or Uniform()).encode(), "optimizer": rule.kind,
            "constants": rule.constants(), "storage": storage, "admit": str(admit or "all"),
            "expire": str(expire or ""), "capacity": capacity or 0, "evict": evict if capacity else "",
        }  # fmt: skip
        return self._table(self._call("create", timeout, schema=schema, exist_ok=exist_ok))

    def drop_table(self, table: str | Table, *, timeout: float | None = None) -> None:
        """Remove a table with all its rows, and return when no shard has it.

        Raises:
            TableNotFoundError: there is none.
        """
        t = self.table(table, timeout=timeout) if isinstance(table, str) else table
        self._call("drop", timeout, handle=t._handle())

    def pull_many(self, parts: Sequence[Part], *, timeout: float | None = None) -> list[Rows]:
        """Pull rows of several tables in one call: parts are (table, keys) or (table, keys, out)."""
        return self._pull([(p[0], p[1], p[2] if len(p) == 3 else None) for p in parts], "leader", None, timeout)

    def pull_many_async(self, parts: Sequence[Part], *, timeout: float | None = None) -> Future[list[Rows]]:
        """Start a :meth:`pull_many`. Keys and outs belong to the call until the future is done."""
        segments, keep, outs = self._pull_segments([(p[0], p[1], p[2] if len(p) == 3 else None) for p in parts])
        return self._start(_lib.PULL, segments, keep, outs, timeout)

    def _pull_segments(self, parts: list[tuple[Table, Keys, Rows | None]]) -> tuple[Any, object, list[Rows]]:
        segments = (_lib.Segment * len(parts))()
        keep, outs = [], []
        for s, (t, keys, out) in zip(segments, parts):
            k = _keys(keys)
            w = _out(out, k, t.dim)
            _segment(s, t._handle(), k, w)
            keep.append(k)
            outs.append(w)
        return segments, (keep, outs), outs

    def _pull(
        self, parts: list[tuple[Table, Keys, Rows | None]], mode: str, max_age: float | None,
        timeout: float | None,
    ) -> list[Rows]:  # fmt: skip
        segments, keep, outs = self._pull_segments(parts)
        request = None
        if mode != "leader" or max_age is not None:
            if max_age is not None and mode != "bounded":
                raise errors.InvalidArgumentError(
                    f'max_age: it is for mode "bounded", not {mode!r}', errors.Code.INVALID_ARGUMENT
                )
            age = round(1000 * (1.0 if max_age is None else max_age))
            request = json.dumps({"mode": mode, "max_age_ms": age}).encode()
        self._run(_lib.PULL, segments, keep, timeout, request)
        return outs

    def push_many(
        self, parts: Sequence[tuple[Table, Keys, npt.ArrayLike]], *, lr: float | None = None,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Push gradients of several tables in one call: parts are (table, keys, grads), one for each table."""
        segments, keep = self._push_segments(parts, lr)
        self._run(_lib.PUSH, segments, keep, timeout)

    def push_many_async(
        self, parts: Sequence[tuple[Table, Keys, npt.ArrayLike]], *, lr: float | None = None,
        timeout: float | None = None,
    ) -> Future[None]:  # fmt: skip
        """Start a :meth:`push_many`; see :meth:`Table.push_async`."""
        segments, keep = self._push_segments(parts, lr)
        return self._start(_lib.PUSH, segments, keep, None, timeout)

    def _push_segments(
        self, parts: Sequence[tuple[Table, Keys, npt.ArrayLike]], lr: float | None
    ) -> tuple[Any, object]:
        if lr is not None and not 0 < lr < _INFINITE:
            raise errors.InvalidArgumentError(f"lr: {lr}: want a finite number > 0", errors.Code.INVALID_ARGUMENT)
        segments = (_lib.Segment * len(parts))()
        keep = []
        for s, (t, keys, grads) in zip(segments, parts):
            k = _keys(keys)
            g = _values("grads", grads, k, t.dim)
            _segment(s, t._handle(), k, g, lr=lr or 0.0)
            keep.append((k, g))
        return segments, keep

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until each push, assign and delete of this client has its outcome.

        Raises:
            Error: the first error that neither its own call nor a ``Future.result`` has raised.
            DeadlineError: an outcome is still missing after the timeout.
        """
        if not self._id and not self._closed:
            return  # it has not connected
        limit = self._limit(timeout)
        late = time.monotonic() + limit
        for f in list(self._pending):  # not those that other threads start meanwhile
            left = _lib.milliseconds(max(0.0, late - time.monotonic())) if limit != _INFINITE else -1
            if not f._settle(left):
                raise errors.DeadlineError(f"flush: a call has not ended within {limit} s", errors.Code.DEADLINE, True)
        self._reap(sys.maxsize)
        failed, self._failed = self._failed, None
        if failed is not None and not failed._told and failed._error is not None:
            failed._told = True
            if not failed._error.maybe_applied:
                raise failed._error
            with contextlib.suppress(errors.DeadlineError):
                self._call("flush", timeout)  # its batches may still be on the way
            raise failed._error
        self._call("flush", timeout)

    def checkpoint(
        self, destination: str, *, name: str | None = None, delta: bool = False, timeout: float | None = None
    ) -> Checkpoint:
        """Write all tables at one cut to a destination, while training continues.

        Args:
            destination: an absolute path or ``s3://bucket/prefix`` as the servers see it, and allow it.
            name: of the checkpoint; None: from the time.
            delta: write what changed since the newest checkpoint there, if a delta can depend on it.
            timeout: seconds; None: no bound.
        """
        v = self._call(
            "checkpoint", _INFINITE if timeout is None else timeout, destination=destination, name=name or "",
            delta=delta,
        )  # fmt: skip
        return self._made(v, destination)

    def _made(self, v: dict[str, Any], destination: str) -> Checkpoint:
        """Return a checkpoint from the library's JSON. It is the one that a state_dict refers to from now on."""
        self._checkpoint = Checkpoint(
            v["id"], v["digest"], v["name"], destination, v["rows"], v["bytes"], v["held_ns"] / 1e9, v["note"]
        )
        return self._checkpoint

    def _restored(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Return the checkpoints that tables come from: id, tables, and whether a job has trained them since."""
        return cast("list[dict[str, Any]]", self._call("restored", timeout))

    def servers(self, *, timeout: float | None = None) -> list[Server]:
        """Return the servers of the cluster, by name."""
        return [Server(v["name"], v["addr"], v["up"], tuple(v["leads"])) for v in self._call("servers", timeout)]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was made.

    ``id`` is that of the cut. ``digest`` is the SHA-256 of the file MANIFEST, which has the checksums of all others.
    ``held`` is the longest time in seconds that a push waited for the cut. ``note`` is why the checkpoint is full, if a
    delta was requested.
    """

    id: str
    digest: str
    name: str
    destination: str
    rows: int
    bytes: int
    held: float
    note: str

    @property
    def path(self) -> str:
        """What ``rowraft checkpoint restore`` takes."""
        return f"{self.destination.rstrip('/')}/{self.name}"


@dataclasses.dataclass(frozen=True)
class Server:
    """A server of the cluster; ``leads`` are the shards that it leads."""

    name: str
    addr: str
    up: bool
    leads: tuple[int, ...]


def _addresses(endpoints: str | Sequence[str]) -> list[str]:
    """Return the addresses in endpoints, or raise an error that names a wrong one."""
    if not isinstance(endpoints, (str, Sequence)) or not all(isinstance(e, str) for e in endpoints):
        raise TypeError(f'endpoints: want "host:port,host:port" or a list, got {endpoints!r}')
    names = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    addresses = [n.strip() for n in names if n.strip()]
    for a in addresses:
        host, _, port = a.rpartition(":")
        if not host or "/" in host or not port.isdecimal():
            raise errors.InvalidArgumentError(f"endpoints: {a!r}: want host:port", errors.Code.INVALID_ARGUMENT)
    if not addresses:
        raise errors.InvalidArgumentError(
            "endpoints: want at least one server as host:port", errors.Code.INVALID_ARGUMENT
        )
    return addresses


def _close(handle: int) -> None:
    """Close a client that was not closed: it was collected, or Python ends."""
    with contextlib.suppress(errors.Error, errors.ForkError):
        _lib.call("close", handle=handle)


def _unpickle(endpoints: list[str], certs: str | None, timeout: float, dtype: str, in_flight: int) -> Client:
    return Client(endpoints, certs=certs, timeout=timeout, dtype=dtype, in_flight=in_flight)


def connect(
    endpoints: str | Sequence[str],
    *,
    certs: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    dtype: str = "float32",
    in_flight: int = 64,
) -> Client:
    """Return a client of a cluster. It opens nothing before its first use.

    Args:
        endpoints: ``host:port`` of one server or more, as a list or separated by commas; it finds the others.
        certs: directory with ca.pem, client.pem and client.key; None: plaintext, which servers allow on loopback only.
        timeout: seconds that a call may take, unless it has its own timeout; ``float("inf")`` for no bound.
        dtype: numbers on the wire, ``"float32"`` or ``"bfloat16"``, which halves the bytes and rounds.
        in_flight: most calls under way that were started with ``_async``; the next one waits for the oldest.

    Raises:
        InvalidArgumentError: an argument is not as above.
    """
    return Client(endpoints, certs=certs, timeout=timeout, dtype=dtype, in_flight=in_flight)
