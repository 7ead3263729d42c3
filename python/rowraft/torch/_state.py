"""What state_dict holds of a collection: a reference to its tables and their last checkpoint.

It is JSON in a string, which ``torch.load(weights_only=True)`` and ``torch.distributed.checkpoint`` take as one value::

    {"rowraft": 1,
     "tables": [{"name": "user", "dim": 16, …}],  # a TableInfo; before the first use: name, dim, storage
     "checkpoint": {"path": …, "id": …, "digest": …}}  # or null
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rowraft import errors
from rowraft._client import Client, Table
from rowraft.torch._jagged import bad

if TYPE_CHECKING:
    from rowraft.torch._modules import EmbeddingConfig

VERSION = 1


def reference(client: Client, configs: Sequence[EmbeddingConfig], tables: Sequence[Table] | None) -> str:
    """Return the extra state of a collection. tables is None before their first use."""
    if tables is None:
        shapes = [{"name": c.name, "dim": c.embedding_dim, "storage": c.storage} for c in configs]
    else:
        shapes = [dataclasses.asdict(t.describe()) for t in tables]
        for s in shapes:
            del s["rows"]
    made = client._checkpoint
    point = None if made is None else {"path": made.path, "id": made.id, "digest": made.digest}
    return json.dumps({"rowraft": VERSION, "tables": shapes, "checkpoint": point})


def check(state: Any, client: Client, configs: Sequence[EmbeddingConfig]) -> None:
    """Compare a reference with the model and with the tables of its cluster.

    It warns if the rows of the cluster are not known to be those of the checkpoint.

    Raises:
        InvalidArgumentError: it is no reference, or one of another model.
        TableExistsError: the cluster has a table of the name, with another shape.
    """
    shapes, point = _parse(state)
    want = {c.name: c.embedding_dim for c in configs}
    got = {str(s.get("name")): s.get("dim") for s in shapes}
    if got != want:
        raise bad(f"state_dict: it has the tables {_dims(got)}, and the module has {_dims(want)}")
    there = {t.name: dataclasses.asdict(t) for t in client.tables()}
    for shape in shapes:
        now = there.get(shape["name"])
        for field, value in shape.items() if now is not None else ():
            if now.get(field) != value:  # type: ignore[union-attr]
                raise errors.TableExistsError(
                    f"state_dict: table {shape['name']!r} has {field} {value!r}, and on the cluster it exists with "
                    f"{now.get(field)!r}",  # type: ignore[union-attr]
                    errors.Code.TABLE_EXISTS,
                )
    if point is None:
        if missing := sorted(set(want) - set(there)):
            _warn(f"{_names(missing)} not on the cluster, and the state_dict names no checkpoint: all rows are initial")
        return
    same = {
        name
        for source in client._restored()
        if source["id"] == point["id"] and not source["trained"]
        for name in source["tables"]
    }
    if other := sorted(set(want) - same):
        options = " ".join(f"--table {shlex.quote(n)}" for n in other)
        _warn(
            f"{_names(other)} not restored from the checkpoint of the state_dict, or trained since: the rows may not "
            f"be those of its cut ({point['id']}). To put them in place: rowraft checkpoint restore "
            f"{shlex.quote(point['path'])} {options} --replace"
        )


def _parse(state: Any) -> tuple[list[dict[str, Any]], dict[str, str] | None]:
    if not isinstance(state, str):
        raise bad(f"state_dict: _extra_state is a {type(state).__name__}: want the text of a rowraft collection")
    try:
        v = json.loads(state)
        version, shapes, point = v["rowraft"], v["tables"], v["checkpoint"]
        if version == VERSION:
            shapes = [dict(s) for s in shapes]
            point = None if point is None else {k: str(point[k]) for k in ("path", "id", "digest")}
    except (ValueError, KeyError, TypeError) as e:
        raise bad(f"state_dict: _extra_state is none of a rowraft collection: {state[:80]!r}") from e
    if version != VERSION:
        raise bad(f"state_dict: it has version {version!r}, this rowraft knows {VERSION}: upgrade it")
    return shapes, point


def _dims(tables: dict[str, Any]) -> str:
    return ", ".join(f"{name!r} (dim {dim})" for name, dim in sorted(tables.items()))


def _names(names: list[str]) -> str:
    text = ", ".join(map(repr, names))
    return f"table {text} is" if len(names) == 1 else f"tables {text} are"


def _warn(text: str) -> None:
    warnings.warn(f"load_state_dict: {text}", UserWarning, stacklevel=2)
