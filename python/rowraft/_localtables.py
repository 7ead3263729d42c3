"""local_tables: tables in this process, without servers."""

from __future__ import annotations

from typing import Any

from rowraft import _lib
from rowraft._client import Client


class LocalTables(Client):
    """A client whose tables are in this process. They end with it."""

    def __init__(self, dtype: str) -> None:
        super().__init__("localhost:0", dtype=dtype)
        self._endpoints = ["tables of this process"]

    def _dial(self) -> int:
        handle: int = _lib.call("local_tables", dtype=self._dtype)["handle"]
        return handle

    def _restored(self, timeout: float | None = None) -> list[dict[str, Any]]:
        return []

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("tables of this process cannot be pickled: another process would not have their rows")

    def __deepcopy__(self, memo: dict[int, Any]) -> LocalTables:
        return self  # as a copy of a client has the same cluster


def local_tables(dtype: str = "float32") -> Client:
    """Return a client whose tables are in this process: for trying a model, and as the reference for a cluster.

    The rows have the bits that the same calls give on a cluster. There are no replicas, no disk and no network, and the
    rows end with the client. Calls that need a cluster raise PreconditionError: ``checkpoint``, ``servers``. A table
    with admission, expiry or a capacity is refused with InvalidArgumentError. Safe for concurrent use by threads.

    Args:
        dtype: ``"float32"`` or ``"bfloat16"``: pulls and pushes are rounded to it, as by ``connect(dtype=…)``.
    """
    return LocalTables(dtype)
