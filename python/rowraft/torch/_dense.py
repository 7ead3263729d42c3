"""Dense weights of a job as rows of a table on the servers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from rowraft import errors
from rowraft._client import Table
from rowraft.torch._jagged import bad

WIDTH = 64
"""Weights of a row. Each parameter begins a row; its last one is padded with zeros."""

_POLL_SECONDS = 0.1


class Dense:
    """The parameters of a model that a table has, in the order of ``model.named_parameters()``.

    One thread uses it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise bad("dense: the model has no parameters that need gradients")
        self._first = [0]  # row of each parameter
        for p in self._parameters:
            self._first.append(self._first[-1] + (p.numel() + WIDTH - 1) // WIDTH)
        self.keys = np.arange(self._first[-1], dtype=np.uint64)
        self._values = np.zeros((len(self.keys), WIDTH), np.float32)

    def weights(self) -> np.ndarray[Any, Any]:
        """Return the present weights of the model, (rows, WIDTH)."""
        for i, p in enumerate(self._parameters):
            self._rows(i)[: p.numel()] = p.detach().to("cpu", torch.float32).reshape(-1).numpy()
        return self._values

    def set_weights(self, values: np.ndarray[Any, Any]) -> None:
        """Set the weights of the model, (rows, WIDTH)."""
        self._values[:] = values
        with torch.no_grad():
            for i, p in enumerate(self._parameters):
                p.copy_(torch.from_numpy(self._rows(i)[: p.numel()]).reshape(p.shape))

    def take_gradients(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return keys and gradients, (rows, WIDTH), of the parameters that have one, and clear them."""
        keys, grads = [], []
        for i, p in enumerate(self._parameters):
            if p.grad is None:
                continue
            low, high = self._first[i], self._first[i + 1]
            rows = np.zeros(((high - low) * WIDTH), np.float32)
            rows[: p.numel()] = p.grad.detach().to("cpu", torch.float32).reshape(-1).numpy()
            keys.append(self.keys[low:high])
            grads.append(rows.reshape(-1, WIDTH))
            p.grad = None
        if not keys:
            return np.empty(0, np.uint64), np.empty((0, WIDTH), np.float32)
        return np.concatenate(keys), np.concatenate(grads)

    def _rows(self, i: int) -> np.ndarray[Any, Any]:
        return self._values[self._first[i] : self._first[i + 1]].reshape(-1)

    def initialize(self, table: Table, writes: bool, patience: float) -> None:
        """Return when the table has all rows. writes: this worker assigns those that are missing.

        Raises:
            DeadlineError: the worker that writes has not, within patience (seconds).
        """
        late = time.monotonic() + patience
        while True:
            _, present = table.pull_present(self.keys)
            if present.all():
                return
            if writes:
                table.assign(self.keys[~present], self.weights()[~present])
                return
            if time.monotonic() > late:
                raise errors.DeadlineError(
                    f"worker 0 has not written the dense weights within {patience:.0f} s", errors.Code.DEADLINE
                )
            time.sleep(_POLL_SECONDS)
