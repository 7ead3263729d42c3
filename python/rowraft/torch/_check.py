"""Arguments of the collections: a wrong one is refused where it is given, not at the first batch."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from rowraft._client import Client, check_table
from rowraft.torch._jagged import bad


def arguments(client: Any, tables: Any, kind: type, in_flight: Any) -> None:
    """Check what a collection is made of; kind is the class of its tables.

    Raises:
        TypeError: an argument, or a field of a table, has another type.
        InvalidArgumentError: its value is not possible.
    """
    if not isinstance(client, Client):
        raise TypeError(f"client: {client!r}: want a client, from rowraft.connect or rowraft.local_tables")
    if not isinstance(in_flight, int):
        raise TypeError(f"in_flight: {in_flight!r}: want an int")
    if in_flight < 0:
        raise bad(f"in_flight: {in_flight}: want 0 or more")
    if not isinstance(tables, Sequence) or not tables or not all(isinstance(t, kind) for t in tables):
        raise TypeError(f"tables: want a list of {kind.__name__}, got {tables!r}")
    for t in tables:
        if isinstance(t.feature_names, str) or not all(isinstance(f, str) for f in t.feature_names):
            raise TypeError(f"feature_names: {t.feature_names!r} of table {t.name!r}: want a list of names")
        check_table(t.name, t.embedding_dim, t.optimizer, t.init, t.admit, dim_name="embedding_dim")
    names = [f for t in tables for f in t.feature_names]
    for what, all_names in (("feature", names), ("table", [t.name for t in tables])):
        twice = [n for n, count in collections.Counter(all_names).items() if count > 1]
        if twice:
            raise bad(f"tables: the {what} {twice[0]!r} appears twice")
