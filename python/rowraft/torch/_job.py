"""A training job: workers with ranks, modes, checkpoints with one cut."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Optional, Protocol, cast

import numpy as np
import torch
from torch import nn

from rowraft import _lib, errors
from rowraft._client import Checkpoint, Client, Future, Table, _segment
from rowraft._localtables import LocalTables
from rowraft._schema import Add, Optimizer, RowwiseAdagrad, Zeros
from rowraft.torch._dense import WIDTH, Dense
from rowraft.torch._jagged import bad
from rowraft.torch._modules import Prepared, _Collection
from rowraft.torch._share import Place

MODES = ("async", "sync", "ssp", "geo")

_GATHER_SECONDS = 600.0
"""How long a worker waits for the other workers of its job to begin."""

_SERVE_SECONDS = 0.02

_log = logging.getLogger("rowraft")


class Stateful(Protocol):
    """What has a state, for example an optimizer."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclasses.dataclass
class _JobTable:
    table: Table
    rule: Optimizer  # of the workers in mode geo


class Job:
    """A worker of a training job, which trains a model with embeddings, and its place in it.

    All collections inside ``model`` belong to the job: their gradients are pushed by :meth:`step`. A worker has a rank;
    a later process with the same rank takes its place, and the earlier one gets :class:`rowraft.SessionExpiredError`.
    Nothing is sent before :meth:`resume`, or the first batch without it. One thread uses a job.

    Args:
        client: of the cluster. The job makes a connection of its own from it.
        name: of the job: the same for all of its workers, and for a worker that is started again.
        model: with at least one EmbeddingBagCollection or EmbeddingCollection.
        opt: the optimizer of the dense weights, which checkpoints keep; None: none, or ``dense``.
        mode: ``"async"``: each step is applied at once. ``"sync"``: a step is applied once, as the mean of all
            workers. ``"ssp"``: as async, but no worker gets more than ``staleness`` steps ahead of the slowest.
            ``"geo"``: a worker trains its own copy of the rows and exchanges changes every ``geo_every`` steps.
        in_flight: steps whose pushes may be under way. 0: each step waits for its push.
        workers: of the job; None: WORLD_SIZE of torchrun, or 1. It stays the same for the whole job.
        worker: number of this worker, 0 to workers-1, or a name that ends in it, such as ``"w1"``; None: RANK of
            torchrun, or 0.
        staleness: of mode ssp, in steps.
        geo_every: of mode geo, in steps; the first rounds come sooner.
        dense: an optimizer of the servers: they have the dense weights, too, in the table ``NAME.dense``. None: the
            dense weights are the caller's, with opt, or in DistributedDataParallel.
        lease: seconds of silence after which the job goes on without this worker, 1 to 3600.

    Raises:
        InvalidArgumentError: an argument is not as above.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        model: nn.Module,
        opt: Stateful | None = None,
        mode: str = "async",
        in_flight: int = 4,
        workers: int | None = None,
        worker: int | str | None = None,
        staleness: int | None = None,
        geo_every: int | None = None,
        dense: Optimizer | None = None,
        lease: float = 10.0,
    ) -> None:
        if isinstance(client, LocalTables):
            raise TypeError(
                "client: a job needs a cluster (rowraft.connect, rowraft.local), not tables in this process"
            )
        if mode not in MODES:
            raise bad(f"mode: {mode!r}: want one of {', '.join(MODES)}")
        if (staleness is not None) != (mode == "ssp"):
            raise bad(f"staleness: {staleness}: mode ssp needs the number of steps, and no other mode has one")
        if staleness is not None and not 0 <= staleness <= 1 << 20:
            raise bad(f"staleness: {staleness}: want 0 to {1 << 20} steps")
        if geo_every is not None and (mode != "geo" or geo_every < 1):
            raise bad(f"geo_every: {geo_every}: it is for mode geo, 1 or more steps")
        if in_flight < 0:
            raise bad(f"in_flight: {in_flight}: want 0 or more")
        if dense is not None and opt is not None:
            raise bad("dense: the servers train the dense weights, so there is no opt")
        self._collections = [(n, m) for n, m in model.named_modules() if isinstance(m, _Collection)]
        if not self._collections:
            raise bad("model: it has no EmbeddingBagCollection and no EmbeddingCollection of rowraft.torch")
        for n, m in self._collections:
            if m._job is not None:
                raise bad(f"model: {n or 'it'} belongs to another job already: close that first")
        self._workers, self._rank = _place(workers, worker)
        self._name, self._model, self._opt, self._mode = name, model, opt, mode
        self._staleness, self._in_flight, self._lease = staleness or 0, in_flight, lease
        self._every = geo_every or 50
        self._dense = Dense(model) if dense is not None else None
        self._dense_rule = dense
        self._together = any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules())
        make, arguments = cast("tuple[Any, tuple[Any, ...]]", client.__reduce__())
        self._client: Client = make(*arguments)
        self._ps = client  # a state_dict refers to its last checkpoint
        self._tables: dict[str, _JobTable] = {}
        self._entered = self._closed = self._stopping = False
        self._step = 0
        self._grads: dict[str, list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = {}
        self._pushes: collections.deque[Future[None]] = collections.deque()
        self._checkpoints: list[_Made] = []
        self._place = Place(self._rank, self._workers, self._together)
        self._cut: dict[str, Any] = {}  # place in the data and random state, of the end of the last step
        self.ahead = 0
        for _, m in self._collections:
            m._job = self

    def __repr__(self) -> str:
        return f"<rowraft.torch.Job {self._name!r} worker {self._rank} of {self._workers}, step {self._step}>"

    @property
    def rank(self) -> int:
        """The number of this worker."""
        return self._rank

    @property
    def workers(self) -> int:
        """The number of workers of the job."""
        return self._workers

    # Entering.

    def resume(self, checkpoint: str | None = None, *, restore: bool = True) -> int:
        """Continue where a checkpoint was made, and return the number of steps that this worker has done.

        It loads the dense weights, the state of opt and torch's random generators, and sets the place in the data. If
        the tables do not exist or were trained since, rank 0 puts them back first, and warns. The other workers wait
        for rank 0. In modes sync and ssp all workers wait for each other.

        Args:
            checkpoint: DESTINATION/NAME. None: the one that the tables were restored from, if no worker has trained
                them since; else the newest of this job that the cluster knows; else the job begins, at step 0.
            restore: False: do not put the tables back; raise an error with the command that does.

        Raises:
            PreconditionError: workers of the job train; or the job has trained before, and no checkpoint is known.
            NotFoundError: there is no such checkpoint, or it has no state of this worker.
            InvalidArgumentError: the job has another number of workers, or the model another shape.
        """
        if self._entered:
            raise bad("resume: the job has begun: call it once, before the first batch")
        found = self._call(
            "job_find", _GATHER_SECONDS, job=self._name, rank=self._rank, workers=self._workers,
            tables=self._table_names(), checkpoint=checkpoint or "", restore=restore,
        )  # fmt: skip
        if found["restored"]:
            since = f"step {found['was']}" if found["was"] > found["step"] else "its last step"
            warnings.warn(
                f"job {self._name}: the tables {', '.join(self._table_names())} are those of checkpoint "
                f"{found['checkpoint']}, step {found['step']}: what was trained since, to {since}, is gone",
                stacklevel=2,
            )
        try:
            self._enter(found["checkpoint"])
        except BaseException as e:
            self._fail(e)  # otherwise the next batch would be that of step 0, with the rows of the checkpoint
            raise
        if found["made"]:
            self._ps._made(found["made"], found["checkpoint"].rpartition("/")[0])
        return self._step

    def _table_names(self) -> list[str]:
        names = list(dict.fromkeys(c.name for _, m in self._collections for c in m._configs))
        return names + [f"{self._name}.dense"] * (self._dense is not None)

    def _begin(self) -> None:
        if self._closed:
            raise errors.ClosedError(f"job {self._name} is closed", errors.Code.CLOSING)
        if not self._entered:
            self._enter("")

    def _enter(self, checkpoint: str) -> None:
        if checkpoint:
            self._load(_lib.Operation(_lib.JOB_STATE, self._client._handle()).result(), checkpoint)
        self._open_tables()
        self._call(
            "job_enter", _GATHER_SECONDS, job=self._name, rank=self._rank, workers=self._workers, mode=self._mode,
            staleness=self._staleness, every=self._every, in_flight=self._in_flight, together=self._together,
            lease=self._lease, patience=min(self._client._timeout, 1e6), gather=_GATHER_SECONDS,
            tables=[
                {"handle": t.table._handle(), "optimizer": _schema(t.table.name, t.table.dim, t.rule)}
                for t in self._tables.values()
            ],
        )  # fmt: skip
        self._entered = True
        self._note_cut()
        if self._dense is not None:
            self._dense.initialize(self._dense_table, self._rank == 0, _GATHER_SECONDS)
        self._next()

    def _open_tables(self) -> None:
        for _, m in self._collections:
            for c in m._configs:
                rule = Add() if self._mode == "geo" else c.optimizer
                table = self._client.create_table(
                    c.name, c.embedding_dim, optimizer=rule, init=c.init, storage=c.storage, admit=c.admit,
                    expire=c.expire, capacity=c.capacity, evict=c.evict, exist_ok=True,
                )  # fmt: skip
                self._tables[c.name] = _JobTable(table, c.optimizer or RowwiseAdagrad())
            # For state_dict, and after the job. In mode geo their optimizer is add, not that of the configuration.
            m._tables = [Table(m._client, self._tables[c.name].table.describe(), 0) for c in m._configs]
        if self._dense is not None:
            assert self._dense_rule is not None
            name, rule = f"{self._name}.dense", Add() if self._mode == "geo" else self._dense_rule
            table = self._client.create_table(name, WIDTH, optimizer=rule, init=Zeros(), exist_ok=True)
            self._tables[name] = _JobTable(table, self._dense_rule)

    @property
    def _dense_table(self) -> Table:
        return self._tables[f"{self._name}.dense"].table

    # What the collections ask.

    def open(self, collection: _Collection) -> list[Table]:
        """Return the tables of a collection."""
        self._begin()
        return [self._tables[c.name].table for c in collection._configs]

    def pull(self, tables: list[Table], prepared: Prepared) -> None:
        """Start to pull the rows of a batch, unless they must be those after the present step."""
        prepared._step = self._step
        if self._mode != "sync":
            prepared._pull = self._start_pull([(t, p.ids, p.rows.numpy()) for t, p in zip(tables, prepared._parts)])

    def await_rows(self, tables: list[Table], prepared: Prepared) -> None:
        """Return when the rows of a batch are there, and new enough for the present step."""
        self._begin()
        lag = self._step - prepared._step
        if prepared._pull is not None:
            prepared._pull.result()
            stale = prepared._pull._op.status.rows
            if self._mode == "async" or (self._mode == "ssp" and (lag == 0 or stale + lag <= self._staleness)):
                return
            if self._mode == "geo" and lag == 0:
                return
        if self._mode == "sync":
            self._drain(0)  # the rows must have the step before
        self._start_pull([(t, p.ids, p.rows.numpy()) for t, p in zip(tables, prepared._parts)]).result()

    def collect(self, table: Table, ids: np.ndarray[Any, Any], grad: np.ndarray[Any, Any]) -> None:
        """Take the gradients of a backward until the next step."""
        self._grads.setdefault(table.name, []).append((ids, grad))

    def _start_pull(self, parts: list[tuple[Table, np.ndarray[Any, Any], np.ndarray[Any, Any]]]) -> Future[None]:
        return self._start(_lib.JOB_PULL, parts, self._client._timeout)

    def _start(
        self, what: int, parts: list[tuple[Table, np.ndarray[Any, Any], np.ndarray[Any, Any]]], timeout: float,
        request: bytes | None = None,
    ) -> Future[None]:  # fmt: skip
        segments = (_lib.Segment * len(parts))()
        for s, (t, keys, values) in zip(segments, parts):
            _segment(s, t._handle(), keys, values)
        op = _lib.Operation(what, self._client._handle(), segments, request, timeout, parts, wait=False)
        f: Future[None] = Future(self._client, op, None, what == _lib.JOB_PUSH)
        self._client._reap(self._client._in_flight)  # the memory lives as long as the call, whoever keeps the future
        self._client._pending.append(f)
        return f

    def _call(self, name: str, timeout: float, /, **arguments: Any) -> Any:
        return _lib.call(name, self._client._handle(), timeout, **arguments)

    # Steps.

    def step(self, step: int) -> None:
        """End a step: push its gradients, exactly once, and return when the next step may begin.

        It waits while ``in_flight`` pushes are under way, in mode ssp for the slowest worker, and while a checkpoint
        takes this worker's state. Gradients of several backward passes add up.

        Args:
            step: number of the step: what :meth:`resume` returned, and one more with each call.

        Raises:
            InvalidArgumentError: step is another number, or a gradient is not finite; nothing was pushed then, and the
                gradients are dropped.
            SessionExpiredError: another process has taken the place of this worker.
            Error: a push failed, of this step or an earlier one: the worker cannot go on; start it again. Or a
                checkpoint failed: the training may go on.
        """
        self._begin()
        if step != self._step:
            raise bad(f"step: {step}: want {self._step}, the next step of job {self._name}")
        self._drain(max(self._in_flight - 1, 0))
        parts = self._take_gradients()
        request = json.dumps({"step": step}).encode()
        self._pushes.append(self._start(_lib.JOB_PUSH, parts, float("inf"), request))
        self._step += 1
        self._note_cut()
        if self._in_flight == 0:
            self._drain(0)
        self._next()
        self._raise_checkpoint()

    def _take_gradients(self) -> list[tuple[Table, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        grads, self._grads = self._grads, {}
        parts = []
        for name, all_of in grads.items():
            ids, values = all_of[0]
            if len(all_of) > 1:
                ids, at = np.unique(np.concatenate([i for i, _ in all_of]), return_inverse=True)
                values = np.zeros((len(ids), values.shape[1]), np.float32)
                np.add.at(values, at, np.concatenate([g for _, g in all_of]))
            parts.append((self._tables[name].table, ids, values))
        if self._dense is not None:
            ids, values = self._dense.take_gradients()
            if len(ids):
                parts.append((self._dense_table, ids, values))
        for table, _, values in parts:
            if not np.isfinite(values).all():
                raise bad(f"gradients of table {table.name!r}: want finite numbers; nothing of this step was pushed")
        return parts

    def _drain(self, most: int) -> None:
        """Wait for the oldest pushes until at most so many are under way, and raise the error of one."""
        while self._pushes and (len(self._pushes) > most or self._pushes[0].done()):
            self._pushes[0]._settle(-1)  # Ctrl-C leaves it here, for the next call
            self._pushes.popleft().result()

    def _next(self) -> None:
        """Return when the next step may begin, with the dense weights for it."""
        self._serve()
        if self._dense is not None:
            if self._mode == "sync":
                self._drain(0)
            values = np.empty((len(self._dense.keys), WIDTH), np.float32)
            self._start_pull([(self._dense_table, self._dense.keys, values)]).result()
            self._dense.set_weights(values)

    def _serve(self) -> None:
        """Return when the next step may begin: give the state to each checkpoint that wants it."""
        while True:
            v = self._call("job_next", float("inf"), step=self._step - 1)
            self._stopping = self._stopping or v["stop"]
            if not v["pause"]:
                return
            self._drain(0)
            self._give_state(_lib.JOB_HOLD)

    def data(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Iterate over this worker's share of the batches, from its place on.

        The share is each batch whose number modulo workers is rank. Each call is a pass over the data; passes that were
        trained before yield nothing, so a loop over epochs is written as without a job. All workers must see the
        batches in the same order, and a later process in the order of the one before: draw a random order from torch's
        default generator, seeded alike in all workers, or from a generator that each pass seeds. A DataLoader with a
        batch sampler does not load what it skips. With DistributedDataParallel each worker gets equally many batches:
        the last ones of a pass, fewer than workers, are left out. The iteration ends early if an operator stops the
        job.
        """
        self._begin()
        self.ahead = 0  # what an earlier pass has read ahead is lost, or prefetch counts it again
        for batch in self._place.iterate(loader):
            if self._stopping:
                return
            yield batch

    # Checkpoints.

    def checkpoint(self, destination: str) -> Future[Checkpoint | None]:
        """Start a checkpoint of all tables, and of all workers' states, at one cut. Training continues meanwhile.

        The next :meth:`step` of each worker gives its state: dense weights, optimizer, place in the data. Rank 0 makes
        the checkpoint; for the others the call does nothing, and the result is None. The cluster keeps the last 5
        checkpoints of a job, as the policy ``job-NAME``, and ``rowraft checkpoint policy`` lists them. While a
        checkpoint is being made, a second one is not begun: the result is that of the first.

        Args:
            destination: an absolute path or ``s3://bucket/prefix``, as the servers and this worker see it.

        Returns:
            A future. Its error is also raised by a later step, or by close, unless result has raised it.
        """
        self._begin()
        if self._rank != 0:
            return cast("Future[Checkpoint | None]", _Nothing(self._client))
        if running := [f for f in self._checkpoints if not f.done()]:
            _log.warning("job %s: the checkpoint before is still being made, so none is begun", self._name)
            return running[0]
        request = json.dumps({"call": "job_checkpoint", "with": {"destination": destination}}).encode()
        op = _lib.Operation(_lib.CALL, self._client._handle(), request=request, wait=False)
        made = _Made(self, op, destination)
        self._checkpoints.append(made)
        return made

    def _raise_checkpoint(self, wait: bool = False) -> None:
        for f in list(self._checkpoints):
            if wait or f.done():
                self._checkpoints.remove(f)
                if not f._told:
                    Future.result(f)

    def _give_state(self, what: int) -> None:
        """Give the state of this worker to the library."""
        state = np.frombuffer(self._save(), np.uint8)
        segments = (_lib.Segment * 1)()
        segments[0].values, segments[0].n = state.__array_interface__["data"][0], len(state)
        _lib.Operation(what, self._client._handle(), segments, keep=state).result()

    def _note_cut(self) -> None:
        """Note where a later process begins: a batch that the caller gets from now on has no step yet."""
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call, unused-ignore]
            random["cuda"] = torch.cuda.get_rng_state()
        self._cut = {"place": self._place.save(self.ahead), "random": random}

    def _save(self) -> bytes:
        out = io.BytesIO()
        torch.save(
            {
                "model": {k: v for k, v in self._model.state_dict().items() if not self._of_table(k)},
                "opt": None if self._opt is None else _pack(self._opt.state_dict()),
                "step": self._step,
                **self._cut,
            },
            out,
        )
        return out.getvalue()

    def _of_table(self, key: str) -> bool:
        """Return whether an entry of a state is that of a collection: its rows are in the tables."""
        return any(key.startswith(f"{n}." if n else "") for n, _ in self._collections)

    def _load(self, state: bytes, checkpoint: str) -> None:
        saved = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
        if (saved["opt"] is None) != (self._opt is None):
            has = "no optimizer" if saved["opt"] is None else "an optimizer"
            raise bad(f"opt: checkpoint {checkpoint} has {has}, and this worker differs")
        try:
            result = self._model.load_state_dict(saved["model"], strict=False)
            differ = [k for k in (*result.missing_keys, *result.unexpected_keys) if not self._of_table(k)]
            if differ:
                raise ValueError(f"{differ[0]} is in one of both only")
            if self._opt is not None:
                self._opt.load_state_dict(_unpack(saved["opt"]))
        except (RuntimeError, ValueError, KeyError) as e:
            raise bad(f"model: it is not that of checkpoint {checkpoint}: {e}") from e
        self._place.load(saved["place"])
        torch.set_rng_state(saved["random"]["cpu"])
        if "cuda" in saved["random"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(saved["random"]["cuda"])
        self._step = saved["step"]

    # The end.

    def close(self) -> None:
        """Return when every push is on a majority of disks, every checkpoint is made, and the other workers are done.

        Until then it gives this worker's last state to the checkpoints of the job. It warns if gradients are left that
        no step has pushed. It may be called again.

        Raises:
            Error: of a push or a checkpoint that nothing has raised. The worker leaves its job as failed then.
        """
        if self._closed:
            return
        if self._grads:
            warnings.warn(
                f"job {self._name}: gradients of table {', '.join(self._grads)} are dropped: no step followed their "
                "backward",
                stacklevel=2,
            )
        try:
            if self._entered:
                self._drain(0)
                self._give_state(_lib.JOB_FINISH)
                self._call("job_leave", _GATHER_SECONDS, failed="")
                try:
                    self._raise_checkpoint(wait=True)
                finally:
                    self._call("job_park", float("inf"))
        except BaseException as e:
            self._fail(e)
            raise
        self._end()

    def _fail(self, why: BaseException) -> None:
        """Leave the job as failed."""
        if self._closed:
            return
        if self._entered:
            with contextlib.suppress(errors.Error, errors.ForkError):
                self._call("job_leave", 10.0, failed=f"{type(why).__name__}: {why}"[:1000])
        self._end()

    def _end(self) -> None:
        self._closed = True
        for _, m in self._collections:
            m._job = None
        self._client.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self._fail(error)


def _place(workers: int | None, worker: int | str | None) -> tuple[int, int]:
    """Return the number of workers and the rank of this one."""
    n = int(os.environ.get("WORLD_SIZE", "1")) if workers is None else workers
    if n < 1:
        raise bad(f"workers: {n}: want 1 or more")
    given: int | str = os.environ.get("RANK", "0") if worker is None else worker
    if worker is None and "RANK" not in os.environ and n > 1:
        raise bad(f"worker: want the number of this worker, 0 to {n - 1}: there is no RANK of torchrun")
    digits = re.search(r"\d+$", str(given))
    if digits is None or not 0 <= int(digits[0]) < n or str(given).startswith("-"):
        raise bad(f"worker: {given!r}: want a number, or a name that ends in one, 0 to {n - 1}")
    return n, int(digits[0])


_FLOAT = "rowraft.float"


def _pack(v: Any) -> Any:
    """Return a state with its floats as tensors: torch 1.13 reads no float with weights_only."""
    if isinstance(v, float):
        return {_FLOAT: torch.tensor(v, dtype=torch.float64)}
    if isinstance(v, dict):
        return {k: _pack(x) for k, x in v.items()}
    return type(v)(map(_pack, v)) if isinstance(v, (list, tuple)) else v


def _unpack(v: Any) -> Any:
    """Return what was given to _pack."""
    if isinstance(v, dict):
        return float(v[_FLOAT]) if _FLOAT in v else {k: _unpack(x) for k, x in v.items()}
    return type(v)(map(_unpack, v)) if isinstance(v, (list, tuple)) else v


def _schema(name: str, dim: int, rule: Optimizer) -> dict[str, Any]:
    return {
        "name": name, "kind": "sparse", "dim": dim, "init": Zeros().encode(), "optimizer": rule.kind,
        "constants": rule.constants(), "storage": "float32", "admit": "all", "expire": "", "capacity": 0, "evict": "",
    }  # fmt: skip


class _Made(Future[Optional[Checkpoint]]):
    """The result of a checkpoint of a job."""

    def __init__(self, job: Job, op: _lib.Operation, destination: str) -> None:
        super().__init__(job._client, op, None, False)
        self._job, self._destination = job, destination

    def _settle(self, wait_ms: int) -> bool:
        ended = super()._settle(wait_ms)
        if ended and self._text and self._value is None:
            v = json.loads(self._text)
            self._value = self._job._ps._made(v, self._destination)
        return ended

    def result(self, timeout: float | None = None) -> Checkpoint | None:
        """Wait for the checkpoint and return it. Between two steps of a single worker, it gives the state itself."""
        job = self._job
        if not self.done() and job._entered and not job._closed:
            if job._workers > 1:
                raise errors.PreconditionError(
                    "the checkpoint is being made, with the next step of each worker: ask for the result later",
                    errors.Code.PRECONDITION,
                )
            if job._grads:
                raise bad("result: gradients wait for Job.step: ask for the result after it")
            left = timeout
            while (left is None or left > 0) and not self._settle(round(_SERVE_SECONDS * 1000)):
                job._serve()
                left = None if left is None else left - _SERVE_SECONDS
        return super().result(timeout if timeout is None else 0)


class _Nothing(Future[None]):
    """The result of a checkpoint of another rank than 0."""

    def __init__(self, client: Client) -> None:
        super().__init__(client, cast(_lib.Operation, None), None, False)
        self._ended = True
