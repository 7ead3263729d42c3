"""A worker's share of the data, and its place in it."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader


class Place:
    """How far a worker has read its share. The job that has it is used by one thread.

    A pass is one iteration over the data, in which the worker gets each ``workers``-th batch, from ``rank`` on. With
    even, all workers get equally many: the last batches, fewer than workers, are left out.
    """

    def __init__(self, rank: int, workers: int, even: bool = False) -> None:
        self._rank, self._workers, self._even = rank, workers, even
        self._skip_passes = 0
        self._skip_batches = 0  # of the share, in the pass after those
        self._resumed: torch.Tensor | None = None  # the random state with which that pass began
        self._passes = 0
        self._read = 0
        self._begins: list[tuple[int, int, torch.Tensor]] = []  # passes: number, batches read before, random state

    def save(self, ahead: int) -> dict[str, Any]:
        """Return the place behind the batches that the caller has got; the last ``ahead`` are still in a queue."""
        got = self._read - ahead
        while len(self._begins) > 1 and self._begins[1][1] <= got:
            del self._begins[0]
        if not self._begins:
            return {"pass": self._skip_passes, "batch": self._skip_batches, "random": self._resumed}
        number, before, state = self._begins[0]
        return {"pass": number, "batch": got - before, "random": state}

    def load(self, saved: dict[str, Any]) -> None:
        """Begin behind a place."""
        self._skip_passes, self._skip_batches = saved["pass"], saved["batch"]
        self._resumed = saved["random"]

    def iterate(self, data: Iterable[Any]) -> Iterator[Any]:
        """Iterate over the share in one pass."""
        number, self._passes = self._passes, self._passes + 1
        if number < self._skip_passes:
            return
        skip, after = 0, None
        if number == self._skip_passes and self._resumed is not None:  # the order of the pass that was interrupted
            skip, after = self._skip_batches, torch.get_rng_state()
            torch.set_rng_state(self._resumed)
        self._begins.append((number, self._read - skip, torch.get_rng_state()))
        batches = self._batches(data, skip)
        if after is not None:
            torch.set_rng_state(after)
        for batch in batches:
            self._read += 1
            yield batch

    def _batches(self, data: Iterable[Any], skip: int) -> Iterator[Any]:
        """Return the iterator; it has drawn what it draws from torch's random generator."""
        if type(data) is DataLoader and data.batch_sampler is not None:
            mine = self._every(data.batch_sampler, skip)
            first = list(itertools.islice(mine, 1))  # the sampler has drawn its order
            return iter(_with_sampler(data, itertools.chain(first, mine)))
        return self._every(data, skip)

    def _every(self, data: Iterable[Any], skip: int) -> Iterator[Any]:
        """Return the elements of the share, without the first skip of these."""
        it = iter(data)
        last = self._workers - 1 if self._even else self._rank  # element of a round with which the own one is due

        def rest() -> Iterator[Any]:
            mine = None
            for i, x in enumerate(it):
                turn = i % self._workers
                if turn == self._rank:
                    mine = x
                if turn == last and i // self._workers >= skip:
                    yield mine

        return rest()


def _with_sampler(loader: DataLoader[Any], batches: Iterable[Any]) -> DataLoader[Any]:
    """Return a loader like this one that loads these batches of indices."""
    own = {"self", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    names = [n for n in inspect.signature(DataLoader.__init__).parameters if n not in own and hasattr(loader, n)]
    return DataLoader(batch_sampler=batches, **{n: getattr(loader, n) for n in names})
