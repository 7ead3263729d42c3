from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import rowraft


@pytest.fixture(scope="session")
def cluster() -> Iterator[rowraft.LocalCluster]:
    """Three servers for all tests. A test that kills one starts it again."""
    with rowraft.local(3) as c:
        yield c


@pytest.fixture
def ps(cluster: rowraft.LocalCluster) -> Iterator[rowraft.Client]:
    with cluster.connect() as client:
        yield client


_names = itertools.count()


@pytest.fixture
def name() -> str:
    """The name of a table that no other test has."""
    return f"t{next(_names)}"
