"""librowraft.so through ctypes: capi/rowraft.h is the interface.

ctypes releases the GIL during each call. The library is loaded at the first use, and with it the Go runtime, so a
process may import rowraft, create clients, and fork before that.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from typing import Any

from rowraft import errors

ABI = 1
PULL, PUSH, ASSIGN, DELETE, NEXT, CALL = 1, 2, 3, 4, 5, 6
JOB_PULL, JOB_PUSH, JOB_STATE, JOB_HOLD, JOB_FINISH = 7, 8, 9, 10, 11
_RUNNING, _DONE, _FAILED = 0, 1, 2
_FORKED, _ENDED = -1, -2

# How long a call of the main thread waits before Python may run its signal handlers: the longest time until Ctrl-C
# has an effect. Other threads get no signals.
_SLICE_MS = 50

# How long an interrupted call waits for its operation to let go of the caller's memory.
_CANCEL_MS = 10_000


class Segment(ctypes.Structure):
    """rowraft_segment."""

    _fields_ = [
        ("table", ctypes.c_uint64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("present", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("lr", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
    ]


class Status(ctypes.Structure):
    """rowraft_status."""

    _fields_ = [
        ("op", ctypes.c_uint64),
        ("state", ctypes.c_int32),
        ("code", ctypes.c_int32),
        ("maybe_applied", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("text_bytes", ctypes.c_int64),
    ]


_library: ctypes.CDLL | None = None
_loading = threading.Lock()
_forked = False


def _after_fork() -> None:
    global _forked, _loading
    _loading = threading.Lock()
    _forked = _library is not None


os.register_at_fork(after_in_child=_after_fork)


def find(name: str, variable: str) -> pathlib.Path | None:
    """Return the path of a file of the wheel, or the one that an environment variable names."""
    if given := os.environ.get(variable):
        return pathlib.Path(given)
    inside = pathlib.Path(__file__).parent / "lib" / name
    return inside if inside.exists() else None


def load() -> ctypes.CDLL:
    """Return the library; the first call loads it.

    Raises:
        ForkError: in a forked child of a process that has loaded it.
        LibraryError: it is not there, or does not run on this system.
    """
    if _forked:
        raise _fork_error()
    if _library is not None:
        return _library
    with _loading:
        return _library or _load()


def _load() -> ctypes.CDLL:
    global _library
    check_libc()
    path = find("librowraft.so", "ROWRAFT_LIBRARY")
    if path is None:
        raise errors.LibraryError("librowraft.so is not in this installation: install the wheel of rowraft")
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise errors.LibraryError(f"{path} does not load: {e}") from e
    lib.rowraft_abi.restype = ctypes.c_uint32
    if (abi := lib.rowraft_abi()) != ABI:
        raise errors.LibraryError(f"{path} has ABI version {abi}, this package needs {ABI}")
    status = ctypes.POINTER(Status)
    i64, u64, i32, ptr = ctypes.c_int64, ctypes.c_uint64, ctypes.c_int32, ctypes.c_void_p
    lib.rowraft_start.argtypes = [u64, i32, ptr, i64, ctypes.c_char_p, i64, i64, i64, status]
    lib.rowraft_wait.argtypes = [u64, i64, status]
    lib.rowraft_cancel.argtypes = [u64]
    lib.rowraft_take.argtypes = [u64, ptr, i64]
    for f in (lib.rowraft_start, lib.rowraft_wait, lib.rowraft_cancel, lib.rowraft_take):
        f.restype = None
    _library = lib
    return lib


def check_libc() -> None:
    """Raise LibraryError unless the C library is glibc: a Go library does not load with musl (golang/go#13492)."""
    try:
        known = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        known = None
    if not known:
        raise errors.LibraryError(
            "rowraft needs glibc, and this Python runs with another C library (musl, as in Alpine Linux?): "
            "use a glibc image such as python:3.12-slim"
        )


def _fork_error() -> errors.ForkError:
    return errors.ForkError(
        f"process {os.getpid()} is a fork of a process that uses rowraft, and a Go runtime does not survive fork: "
        'use rowraft only in the parent, or start workers with "spawn"'
    )


def milliseconds(seconds: float) -> int:
    """Return a timeout for the library: -1 for infinity."""
    return -1 if seconds == float("inf") else max(0, min(round(seconds * 1000), 1 << 40))


class Operation:
    """One operation of the library, from its start to its result.

    Not safe for concurrent use. keep holds what the library reads and writes until the operation has ended.
    """

    __slots__ = ("keep", "status")

    def __init__(
        self,
        what: int,
        client: int,
        segments: ctypes.Array[Segment] | None = None,
        request: bytes | None = None,
        timeout: float = float("inf"),
        keep: object = None,
        wait: bool = True,
    ) -> None:
        self.status = Status()
        self.keep = keep
        lib = load()
        try:
            lib.rowraft_start(
                client, what, segments, len(segments) if segments is not None else 0,
                request, len(request) if request is not None else 0, milliseconds(timeout),
                _slice(-1) if wait else 0, self.status,
            )  # fmt: skip
            if wait:
                self._finish()
        except BaseException as e:
            self._abandon(e)
            raise

    def wait(self, wait_ms: int) -> bool:
        """Wait for the end, for ever with wait_ms < 0, and return whether it has come. May be interrupted."""
        st = self.status
        while st.state == _RUNNING:
            step = _slice(wait_ms)
            load().rowraft_wait(st.op, step, st)
            if wait_ms >= 0:
                wait_ms -= step
                if wait_ms <= 0:
                    break
        if st.state != _RUNNING:
            self.keep = None
            return True
        return False

    def _finish(self) -> None:
        if self.status.state == _RUNNING:
            self.wait(-1)
        self.keep = None

    def cancel(self) -> None:
        """Make the operation end soon."""
        if self.status.state == _RUNNING and self.status.op:
            load().rowraft_cancel(self.status.op)

    def __del__(self) -> None:
        """End an operation that nothing can wait for any more: Ctrl-C may come before there is a Future."""
        st = self.status
        if not st.op or _forked:
            return
        if st.state == _RUNNING:
            self._abandon(None)
        else:
            load().rowraft_take(st.op, None, 0)

    def _abandon(self, why: BaseException | None) -> None:
        """Cancel. The caller's memory stays alive until the library has let go of it."""
        st = self.status
        if st.state != _RUNNING or not st.op:
            return
        lib = load()
        lib.rowraft_cancel(st.op)
        lib.rowraft_wait(st.op, _CANCEL_MS, st)
        if st.state == _RUNNING:
            _leaked.append(self)
            return
        try:
            self.result()
        except errors.Error as e:
            if why is not None:
                why.__context__ = e  # tells whether a push may have been applied

    def result(self) -> bytes:
        """Return the text of an operation that has ended, or raise its error."""
        st = self.status
        text = b""
        if st.text_bytes and st.op:
            buffer = ctypes.create_string_buffer(st.text_bytes)
            load().rowraft_take(st.op, buffer, st.text_bytes)
            text, st.op = buffer.raw, 0
        if st.state == _DONE:
            return text
        if st.code == _FORKED:
            raise _fork_error()
        raise errors.from_code(st.code, text.decode() or "the operation has ended", bool(st.maybe_applied))


# Operations that did not end after they were cancelled: the library may still use their memory.
_leaked: list[Operation] = []


def _slice(wait_ms: int) -> int:
    if threading.current_thread() is not threading.main_thread():
        return wait_ms
    return _SLICE_MS if wait_ms < 0 else min(wait_ms, _SLICE_MS)


def call(name: str, /, client: int = 0, timeout: float = float("inf"), **arguments: Any) -> Any:
    """Run a request in JSON and return its result."""
    request = json.dumps({"call": name, "with": arguments}).encode()
    text = Operation(CALL, client, request=request, timeout=timeout).result()
    return json.loads(text) if text else None
