"""rowraft: embedding tables on a replicated cluster that trains them.

::

    import numpy as np, rowraft

    with rowraft.local(3) as cluster, cluster.connect() as ps:
        user = ps.create_table("user", dim=16, optimizer=rowraft.RowwiseAdagrad(lr=0.05))
        keys = np.array([7, 8, 9])
        rows = user.pull(keys)                 # float32, (3, 16)
        user.push(keys, np.ones_like(rows))    # exactly once, on a majority of disks

``rowraft.torch`` has the modules for PyTorch.
"""

from rowraft._client import Checkpoint, Client, Future, Server, Table, connect
from rowraft._local import LocalCluster, LocalServer, local
from rowraft._localtables import local_tables
from rowraft._schema import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    Add,
    Admission,
    Count,
    Initializer,
    Momentum,
    Normal,
    Optimizer,
    Probability,
    RowwiseAdagrad,
    TableInfo,
    Uniform,
    Zeros,
)
from rowraft._version import __version__
from rowraft.errors import (
    AlreadyExistsError,
    ClosedError,
    Code,
    CorruptError,
    DeadlineError,
    DeniedError,
    Error,
    ForkError,
    InternalError,
    InvalidArgumentError,
    LibraryError,
    NotFoundError,
    NotSentError,
    OverloadedError,
    PreconditionError,
    SessionExpiredError,
    TableExistsError,
    TableNotFoundError,
    TooStaleError,
)

__all__ = [
    "FTRL",
    "SGD",
    "Adagrad",
    "Adam",
    "Add",
    "Admission",
    "AlreadyExistsError",
    "Checkpoint",
    "Client",
    "ClosedError",
    "Code",
    "CorruptError",
    "Count",
    "DeadlineError",
    "DeniedError",
    "Error",
    "ForkError",
    "Future",
    "Initializer",
    "InternalError",
    "InvalidArgumentError",
    "LibraryError",
    "LocalCluster",
    "LocalServer",
    "Momentum",
    "Normal",
    "NotFoundError",
    "NotSentError",
    "Optimizer",
    "OverloadedError",
    "PreconditionError",
    "Probability",
    "RowwiseAdagrad",
    "Server",
    "SessionExpiredError",
    "Table",
    "TableExistsError",
    "TableInfo",
    "TableNotFoundError",
    "TooStaleError",
    "Uniform",
    "Zeros",
    "__version__",
    "connect",
    "local",
    "local_tables",
]
