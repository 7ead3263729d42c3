"""local: a cluster of real servers on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import os
import shutil
import tempfile
import weakref
from typing import IO, Any

from rowraft import _lib, errors
from rowraft._client import Client, connect

_PREFIX = "rowraft-local-"


@dataclasses.dataclass(frozen=True)
class LocalServer:
    """A server process of this machine. ``pid`` is 0 once it has ended."""

    name: str
    addr: str
    pid: int
    log: str


class LocalCluster:
    """Servers that this process has started; they end with it. As a context manager it stops them."""

    def __init__(self, n: int, shards: int | None, timeout: float) -> None:
        for name, value in (("n", n), ("shards", shards)):
            if not isinstance(value, int) and (name == "n" or value is not None):
                raise TypeError(f"{name}: want an int, got {value!r}")
        if shards is not None and shards < 1:
            raise errors.InvalidArgumentError(f"shards: {shards}: want 1 or more", errors.Code.INVALID_ARGUMENT)
        binary = find_program()
        _remove_abandoned()
        self._dir = tempfile.mkdtemp(prefix=_PREFIX)
        self._lock = _lock(self._dir)
        try:
            self._view: dict[str, Any] = _lib.call(
                "start_cluster", timeout=timeout, binary=binary, dir=self._dir, servers=n, shards=shards or 0
            )
        except BaseException:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._lock.close()
            raise
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, _stop, self._view["handle"], self._dir, os.getpid())

    def __repr__(self) -> str:
        return f"<rowraft.LocalCluster {','.join(self.endpoints)}{'' if self._finalizer.alive else ' closed'}>"

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    @property
    def endpoints(self) -> list[str]:
        """Addresses of the servers."""
        return list(self._view["endpoints"])

    @property
    def certs(self) -> str:
        """Directory of the certificates, for ``rowraft.connect`` and the command line."""
        return str(self._view["certs"])

    @property
    def servers(self) -> list[LocalServer]:
        """The servers, n1 first."""
        return [LocalServer(**s) for s in self._view["servers"]]

    def connect(self, **options: Any) -> Client:
        """Return a client; options are those of ``rowraft.connect``. The cluster closes it when it stops."""
        if not self._finalizer.alive:
            raise errors.ClosedError("the cluster is closed", errors.Code.CLOSING)
        c = connect(self.endpoints, certs=self.certs, **options)
        self._clients.add(c)
        return c

    def kill(self, name: str) -> None:
        """Kill a server with SIGKILL."""
        self._view = _lib.call("kill_server", handle=self._view["handle"], name=name)

    def restart(self, name: str, *, timeout: float = 60.0) -> None:
        """Start a server that was killed, with its data, and return when it is ready."""
        self._view = _lib.call("restart_server", timeout=timeout, handle=self._view["handle"], name=name)

    def close(self) -> None:
        """Stop the servers and remove their data."""
        for c in list(self._clients):
            c.close()
        self._finalizer()
        self._lock.close()


def find_program() -> str:
    """Return the path of the program rowraft: that of the wheel, or the one in PATH."""
    path = _lib.find("rowraft", "ROWRAFT_BINARY") or shutil.which("rowraft")
    if path is None:
        raise errors.LibraryError("the program rowraft is neither in this installation nor in PATH")
    return str(path)


def _lock(directory: str) -> IO[bytes]:
    """Return an open file that this process has locked until it ends: the directory is in use."""
    new = os.path.join(directory, "new")
    f = open(new, "wb")  # noqa: SIM115
    fcntl.flock(f, fcntl.LOCK_EX)
    os.rename(new, os.path.join(directory, "lock"))
    return f


def _remove_abandoned() -> None:
    """Remove the directories of processes that were killed: their servers have ended with them."""
    for path in glob.glob(os.path.join(tempfile.gettempdir(), f"{_PREFIX}*", "lock")):
        with contextlib.suppress(OSError), open(path, "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _stop(handle: int, directory: str, pid: int) -> None:
    if os.getpid() != pid:  # a forked child has no servers
        return
    with contextlib.suppress(errors.Error):
        _lib.call("stop_cluster", handle=handle)
    shutil.rmtree(directory, ignore_errors=True)


def local(n: int = 3, *, shards: int | None = None, timeout: float = 120.0) -> LocalCluster:
    """Start a cluster of n servers on this machine, for notebooks and tests.

    The data is in a temporary directory, which :meth:`LocalCluster.close` removes, or the end of Python. If Python is
    killed, the servers end with it, and the next call removes the directory.

    Args:
        n: servers, 1 to 9; with fewer than 3 no server may die.
        shards: of the cluster; None: the default.
        timeout: seconds until all servers are ready.
    """
    return LocalCluster(n, shards, timeout)
