"""Lists of ids of several features for a batch, and their vectors, with TorchRec's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from rowraft import errors


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
        lengths: integers of shape ``(len(keys) · batch,)``: how many ids each example has of each feature.
        weights: a factor for each id, for sum pooling.
    """

    def __init__(
        self, keys: Sequence[str], values: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor | None = None
    ) -> None:
        self._keys, self._values, self._lengths, self._weights = list(keys), values, lengths, weights

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
            self._lengths.to(device, non_blocking=non_blocking),
            weights,
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
    if not keys or values.dim() != 1 or lengths.dim() != 1 or lengths.numel() % len(keys):
        raise bad(
            f"features: {len(keys)} keys, values of shape {tuple(values.shape)}, lengths of shape "
            f"{tuple(lengths.shape)}: want values with one dimension, and lengths for each key and example"
        )
    if lengths.device != values.device:
        raise bad(f"lengths: on {lengths.device}, and values on {values.device}")
    weights = batch.weights_or_none()
    if weights is not None and weights.shape != values.shape:
        raise bad(f"weights: shape {tuple(weights.shape)}: want that of values, {tuple(values.shape)}")
    by_key = lengths.reshape(len(keys), -1)
    sums = by_key.sum(1).tolist()
    if sum(sums) != values.numel() or (lengths.numel() and int(lengths.min()) < 0):
        raise bad(f"lengths: they sum to {sum(sums)}, and there are {values.numel()} values")
    out, begin = {}, 0
    for key, row, n in zip(keys, by_key, sums):
        out[key] = (begin, begin + n, row)
        begin += n
    return out


def bad(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(message, errors.Code.INVALID_ARGUMENT)
