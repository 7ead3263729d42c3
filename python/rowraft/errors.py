"""The errors of rowraft, with the codes of its Go client.

An error answers two questions: what may the caller do (:attr:`Error.code`), and may the push still take effect
(:attr:`Error.maybe_applied`)? docs/push.md has the table.
"""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """A code of the Go client (errors.go). The numbers never change."""

    UNKNOWN = 0
    INVALID_ARGUMENT = 1
    TABLE_NOT_FOUND = 2
    TABLE_EXISTS = 3
    NOT_LEADER = 4
    WRONG_SHARD = 5
    NO_LEADER = 6
    STARTING = 7
    CLOSING = 8
    TOO_STALE = 9
    OVERLOADED = 10
    LEADERSHIP_LOST = 11
    DEADLINE = 12
    SESSION_EXPIRED = 13
    VERSION_TOO_NEW = 14
    CORRUPT = 15
    INTERNAL = 16
    IDENTITY = 17
    NOT_FOUND = 18
    ALREADY_EXISTS = 19
    PRECONDITION = 20
    FENCED = 21
    STEP_CLOSED = 22
    STALE_GENERATION = 23
    NOT_MEMBER = 24
    DENIED = 25
    NOT_SENT = 26


_RETRYABLE = {
    Code.UNKNOWN, Code.NOT_LEADER, Code.WRONG_SHARD, Code.NO_LEADER, Code.STARTING, Code.CLOSING, Code.TOO_STALE,
    Code.OVERLOADED, Code.LEADERSHIP_LOST, Code.DEADLINE, Code.FENCED, Code.NOT_SENT,
}  # fmt: skip


class Error(Exception):
    """An error of the client or of the cluster.

    Attributes:
        code: what happened.
        maybe_applied: a push, assign or delete may have been applied, or may still be: do not repeat it blindly.
            ``Client.flush`` waits for the outcome where there will be one.
    """

    code: Code
    maybe_applied: bool

    def __init__(self, message: str, code: Code = Code.UNKNOWN, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.maybe_applied = maybe_applied

    @property
    def retryable(self) -> bool:
        """The same call may succeed later without a change by the caller."""
        return self.code in _RETRYABLE

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code, self.maybe_applied)


class InvalidArgumentError(Error, ValueError):
    """An argument is wrong on any server: fix the call. Nothing was applied."""


class TableNotFoundError(Error, LookupError):
    """There is no such table (any more)."""


class TableExistsError(Error):
    """There is a table of this name already, with another shape or without ``exist_ok``."""


class NotFoundError(Error, LookupError):
    """A named thing other than a table does not exist."""


class AlreadyExistsError(Error):
    """A named thing other than a table exists already."""


class DeadlineError(Error, TimeoutError):
    """The timeout has passed. A push of which something was sent goes on: ``Client.flush`` waits for it."""


class NotSentError(Error, TimeoutError):
    """The client gave up before it sent anything of the call: the same call may be made again."""


class ClosedError(Error):
    """The client is closed, or was closed during the call."""


class OverloadedError(Error):
    """A queue, the memory or the disk of a server is full. Nothing was applied."""


class TooStaleError(Error):
    """No replica meets the bound of a bounded read."""


class SessionExpiredError(Error):
    """The client's session is over: fenced by another one, or a checkpoint was restored."""


class PreconditionError(Error):
    """The cluster is not as the call needs it, or an earlier push failed. Nothing was applied."""


class DeniedError(Error, PermissionError):
    """The certificate does not allow the call. Nothing was applied."""


class CorruptError(Error):
    """A checksum or a format is broken."""


class InternalError(Error):
    """An invariant does not hold: please report it."""


class ForkError(RuntimeError):
    """rowraft was used in a forked child of a process that uses it.

    A Go runtime does not survive fork. Use rowraft only in the parent, or start workers with ``spawn``
    (``DataLoader(…, multiprocessing_context="spawn")``).
    """


class LibraryError(ImportError):
    """librowraft.so cannot be loaded here."""


_CLASSES: dict[Code, type[Error]] = {
    Code.INVALID_ARGUMENT: InvalidArgumentError,
    Code.TABLE_NOT_FOUND: TableNotFoundError,
    Code.TABLE_EXISTS: TableExistsError,
    Code.NOT_FOUND: NotFoundError,
    Code.ALREADY_EXISTS: AlreadyExistsError,
    Code.DEADLINE: DeadlineError,
    Code.NOT_SENT: NotSentError,
    Code.CLOSING: ClosedError,
    Code.OVERLOADED: OverloadedError,
    Code.TOO_STALE: TooStaleError,
    Code.SESSION_EXPIRED: SessionExpiredError,
    Code.PRECONDITION: PreconditionError,
    Code.DENIED: DeniedError,
    Code.CORRUPT: CorruptError,
    Code.INTERNAL: InternalError,
}


def from_code(number: int, message: str, maybe_applied: bool) -> Error:
    """Return the error for a code; a code of a later version is UNKNOWN."""
    try:
        code = Code(number)
    except ValueError:
        code = Code.UNKNOWN
    return _CLASSES.get(code, Error)(message, code, maybe_applied)
