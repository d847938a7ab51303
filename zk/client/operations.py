"""The narrow ZooKeeper interface everything else is built on, real or fake.

Reads come in bulk and may arm watches; writes come as atomic multis of conditional operations.
Two implementations pass the same contract tests: ``ZooKeeperClient`` (kazoo) and the fake of the
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.errors import RegentError, UnreadableError

ANY_VERSION = -1


class ZnodeStat(NamedTuple):
    """The fields of a znode's stat that decisions are based on."""

    czxid: int
    mzxid: int
    version: int
    ephemeral_owner: int  # session id, 0 for a persistent node
    ctime_ms: int


class Znode(NamedTuple):
    """A znode as read."""

    data: bytes
    stat: ZnodeStat


class UnreadableZnode(Znode):
    """A znode that is there, but that the server refuses to show (because of its ACL, say).

    Looking at ``data`` or ``stat`` raises ``UnreadableError``, a ``BadDataError`` like those of
    decoders: one such node is bad data of its own path, and no reason to give up the others that
    were read with it. Its watch may not fire either (CVE-2024-23944).
    """

    __slots__ = ()

    @classmethod
    def because(cls, reason: str) -> UnreadableZnode:
        """Make one from why it cannot be read."""
        return cls(reason.encode(), ZnodeStat(0, 0, ANY_VERSION, 0, 0))

    @property
    def data(self) -> bytes:
        """Raise ``UnreadableError``."""
        raise UnreadableError(self.reason)

    @property
    def stat(self) -> ZnodeStat:
        """Raise ``UnreadableError``."""
        raise UnreadableError(self.reason)

    @property
    def reason(self) -> str:
        """Why it cannot be read; names the path."""
        return self[0].decode()


def why_unreadable(path: str, error: str) -> str:
    """Say that ZooKeeper refuses to show a znode, or its children, and what can be done."""
    remedy = f"; to allow it: setAcl {path} world:anyone:cdrwa" if error == "NO_AUTH" else ""
    return f"{path}: ZooKeeper refuses to show it: {error}{remedy}"


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; fails with NODE_EXISTS, or NO_NODE when the parent is missing.

    With ``sequential`` ZooKeeper appends ten digits to ``path``.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace the data of a node whose version is ``version``."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a childless node whose version is ``version``."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Nothing but a condition: the node exists and has ``version``."""

    path: str
    version: int


Operation: TypeAlias = Create | SetData | Delete | Check


class ZkError(IntEnum):
    """Why an operation of a multi was refused (ZooKeeper's own codes)."""

    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    OTHER = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """Every operation was applied.

    ``results`` has an entry an operation: the created path for Create, the new stat for SetData,
    None for Delete and Check.
    """

    results: tuple[str | ZnodeStat | None, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was applied, because operation number ``index`` failed with ``error``."""

    index: int
    error: ZkError


MultiResult: TypeAlias = Committed | Refused


class WatchKind(Enum):
    """What a watch says happened; the data must be read again."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """A watch fired (one shot: the next read with ``watch`` arms it again)."""

    kind: WatchKind
    path: str


MAX_ATTEMPTS = 10
"""How often a conditional write is tried while others write the same nodes."""


class ConflictError(RegentError):
    """Others changed the same nodes between every read and the write that followed it."""


class ConnectionLossError(RegentError):
    """The connection broke before an answer came: a write may or may not have been applied."""


class ZooKeeper(Protocol):
    """One ZooKeeper session.

    Reads wait for the connection and repeat themselves after a connection loss. Writes are sent
    once and raise ``ConnectionLossError`` when their outcome is unknown. Every method raises
    ``core.errors.SessionExpiredError`` once the session is over.
    """

    @property
    def session_id(self) -> int:
        """The id that stands as ``ephemeral_owner`` in nodes this session creates."""
        ...

    @property
    def newest_zxid(self) -> int:
        """The newest transaction id in any answer so far; sends nothing, and never raises."""
        ...

    @property
    def max_request_bytes(self) -> int:
        """How large a multi may be; a server cuts the connection for a larger request."""
        ...

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Read one node; None when absent. The watch covers change, deletion and creation.

        A node that may not be read is an ``UnreadableZnode``, here and in ``get_many``.
        """
        ...

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """Read many nodes at the cost of a few requests, in the order of ``paths``.

        Not a snapshot: each node is as of its own moment. No change between a node's read and the
        arming of its watch is missed.
        """
        ...

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """List the children's names, sorted; None when the node is absent (no watch then).

        Raises ``UnreadableError`` when the server refuses to list them.
        """
        ...

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """List the children of many nodes at the cost of a few requests.

        None for a node that is absent, or whose children may not be listed.
        """
        ...

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Apply all operations or none."""
        ...

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """Apply several multis in order, pipelined; each is atomic by itself.

        Raises ``ConnectionLossError`` when the outcome of any of them is unknown.
        """
        ...

    def sync(self) -> None:
        """Have reads see every write that was acknowledged before this call.

        A read alone may be answered by a server of the ensemble that lags behind.
        """
        ...

    def latest_zxid(self) -> int:
        """Ask for a transaction id that every read sent from now on includes."""
        ...

    def wait_connected(self) -> None:
        """Return when connected; raise ``SessionExpiredError`` when that cannot happen any more."""
        ...

    def unwatch(self, paths: Sequence[str]) -> None:
        """Drop the watches on these paths: events of theirs are not delivered any more."""
        ...
