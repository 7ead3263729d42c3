"""Lists of ids of several features for a batch, and their vectors; their classes are in the file that export copies."""

from __future__ import annotations

import torch

from rowraft import errors
from rowraft.torch import _embeddings
from rowraft.torch._embeddings import Jagged, JaggedTensor, KeyedJaggedTensor, KeyedTensor

__all__ = ["Jagged", "JaggedTensor", "KeyedJaggedTensor", "KeyedTensor", "bad", "positions"]


def positions(batch: Jagged) -> dict[str, tuple[int, int, torch.Tensor]]:
    """Return where the ids of each feature are, and the lengths of its bags."""
    try:
        return _embeddings.positions(batch)
    except ValueError as e:
        raise bad(str(e)) from None


def bad(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(message, errors.Code.INVALID_ARGUMENT)
