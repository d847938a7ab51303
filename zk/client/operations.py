"""What is read from znodes, asked of them, and told of them: values without behaviour.

Writes are atomic multis of conditional operations. ``zk.client.zookeeper`` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from typing import NamedTuple, TypeAlias

from regent.core.errors import RegentError, UnreadableError

ANY_VERSION = -1


class ZnodeStat(NamedTuple):
    """The fields of a znode's stat that Regent uses."""

    czxid: int
    mzxid: int
    ctime_ms: int
    version: int
    ephemeral_owner: int  # session id, 0 for a persistent node


class Znode(NamedTuple):
    """A znode as read."""

    data: bytes
    stat: ZnodeStat


class UnreadableZnode(Znode):
    """A znode that exists but that the server refuses to show, for example because of its ACL.

    Access to ``data`` or ``stat`` raises ``UnreadableError``, a ``BadDataError`` like those of
    decoders: so one such node fails alone, and the other nodes of the same read are used. Its
    watch may not fire (CVE-2024-23944).
    """

    __slots__ = ()

    @classmethod
    def because(cls, reason: str) -> UnreadableZnode:
        """Return an unreadable znode with this reason."""
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


class Permission(IntFlag):
    """What an entry of an ACL permits; ``CREATE`` and ``DELETE`` are of children."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16

    @classmethod
    def changes(cls) -> Permission:
        """Return every permission but that to read."""
        return cls.WRITE | cls.CREATE | cls.DELETE | cls.ADMIN


class AclEntry(NamedTuple):
    """A user of a scheme, and what it may do; ``world:anyone`` is everybody."""

    permissions: Permission
    scheme: str
    user: str

    @property
    def is_everybody(self) -> bool:
        """Whether it is for every client."""
        return (self.scheme, self.user) == ("world", "anyone")


def why_unreadable(path: str, error: str) -> str:
    """Return a message: ZooKeeper refuses to show a znode or its children, and the remedy."""
    remedy = f"; to allow it: setAcl {path} world:anyone:cdrwa" if error == "NO_AUTH" else ""
    return f"{path}: ZooKeeper refuses to show it: {error}{remedy}"


def why_uncreated(path: str, error: ZkError) -> str:
    """Return a message: ZooKeeper refuses to create a znode, and the remedy."""
    remedy = ": it asks for a login; name its secret with secret_file, or with --data-dir"
    return f"cannot create {path}: {error.name}{remedy if error is ZkError.NO_AUTH else ''}"


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
    """Check that the node exists and has ``version``; change nothing."""

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

    ``results`` has one entry per operation: the created path for Create, the new stat for SetData,
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
    """The change that a watch reports; the new data must be read."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchEvent(NamedTuple):
    """A watch fired (one shot: the next read with ``watch`` arms it again)."""

    kind: WatchKind
    path: str


MAX_ATTEMPTS = 10
"""Attempts of a conditional write while other clients write the same nodes."""


class ConflictError(RegentError):
    """In every attempt another client changed the nodes between the read and the write."""


class ConnectionLossError(RegentError):
    """The connection broke before an answer came: a write may or may not have been applied."""
