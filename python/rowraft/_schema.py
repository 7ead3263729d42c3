"""What a table is created with: optimizers, initial weights, admission."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, Union

from rowraft import errors


class Optimizer:
    """The update rule that the servers run for each row; docs/optimizers.md compares them with PyTorch's.

    The names of the constants are those of ``torch.optim``. A constant that is None has the server's default.
    """

    kind: ClassVar[str]
    # Names of the servers, where they differ from those of torch.
    _renamed: ClassVar[dict[str, str]] = {"eps": "epsilon", "initial_accumulator_value": "initial_accumulator"}

    def constants(self) -> dict[str, float]:
        """Return the constants that are not None, by the servers' names."""
        out: dict[str, float] = {}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value is None:
                continue
            try:
                if f.name == "betas":
                    out["beta1"], out["beta2"] = (float(b) for b in value)
                else:
                    out[self._renamed.get(f.name, f.name)] = float(value)
            except (TypeError, ValueError):
                want = "two numbers" if f.name == "betas" else "a number"
                raise TypeError(f"optimizer: {f.name} {value!r} of {type(self).__name__}: want {want}") from None
            if not all(map(math.isfinite, out.values())):
                raise errors.InvalidArgumentError(
                    f"optimizer: {f.name} {value} of {type(self).__name__}: want a finite number",
                    errors.Code.INVALID_ARGUMENT,
                )
        return out


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr · g. With momentum, use :class:`Momentum`."""

    kind = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum."""

    kind = "momentum"
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad with an accumulator for each weight."""

    kind = "adagrad"
    lr: float | None = None
    initial_accumulator_value: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class RowwiseAdagrad(Optimizer):
    """Adagrad with one accumulator for each row, as in TorchRec."""

    kind = "rowwise-adagrad"
    lr: float | None = None
    initial_accumulator_value: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, or AdamW with weight_decay. A row counts its own steps, as in SparseAdam."""

    kind = "adam"
    lr: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    weight_decay: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class FTRL(Optimizer):
    """FTRL-Proximal (McMahan et al. 2013)."""

    kind = "ftrl"
    lr: float | None = None
    l1: float | None = None
    l2: float | None = None
    beta: float | None = None
    initial_accumulator_value: float | None = None
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Add(Optimizer):
    """w += g: no learning rate and no state."""

    kind = "add"
    bound: float | None = None


OPTIMIZERS: dict[str, type[Optimizer]] = {c.kind: c for c in (SGD, Momentum, Adagrad, RowwiseAdagrad, Adam, FTRL, Add)}


@dataclasses.dataclass(frozen=True)
class Zeros:
    """New rows are 0."""

    def encode(self) -> dict[str, Any]:
        return {"kind": "zeros"}


@dataclasses.dataclass(frozen=True)
class Uniform:
    """New rows are uniform in [low, high), a pure function of seed, table name and key."""

    low: float = -0.01
    high: float = 0.01
    seed: int = 1

    def encode(self) -> dict[str, Any]:
        return {"kind": "uniform", "low": self.low, "high": self.high, "seed": self.seed}


@dataclasses.dataclass(frozen=True)
class Normal:
    """New rows are normal, a pure function of seed, table name and key."""

    mean: float = 0.0
    std: float = 0.01
    seed: int = 1

    def encode(self) -> dict[str, Any]:
        return {"kind": "normal", "mean": self.mean, "std": self.std, "seed": self.seed}


Initializer = Union[Zeros, Uniform, Normal]


@dataclasses.dataclass(frozen=True)
class Count:
    """A key gets a row with its n-th push."""

    n: int

    def __str__(self) -> str:
        return f"count:{self.n}"


@dataclasses.dataclass(frozen=True)
class Probability:
    """A key gets a row with each push with probability p."""

    p: float

    def __str__(self) -> str:
        return f"probability:{self.p!r}"


Admission = Union[Count, Probability]


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table as it was created, with its size.

    ``optimizer`` is the kind and ``constants`` its constants by the servers' names; ``rows`` is what the leaders of the
    shards reported about a second ago, and None where it was not asked for.
    """

    name: str
    kind: str
    dim: int
    init: dict[str, Any]
    optimizer: str
    constants: dict[str, float]
    storage: str
    admit: str
    expire: str
    capacity: int
    evict: str
    rows: int | None = None

    @classmethod
    def decode(cls, v: dict[str, Any], rows: bool) -> TableInfo:
        """Build it from the library's JSON."""
        v = dict(v)
        del v["handle"]
        if not rows:
            v["rows"] = None
        return cls(**v)
