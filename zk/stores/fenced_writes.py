"""Writes of znodes: of one value, of one transaction, of thousands in a few multis.

Every multi of a controller begins with checks that fail once another controller is elected: from
then on no write of the old controller takes effect (KAFKA-6082). A multi is all or nothing and
reports only the first write that failed. So that write is removed and the rest is sent again. If a
second write fails, each write is sent in its own multi.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from regent.core.errors import ControllerMovedError
from regent.core.ports import WriteError
from regent.zk.client.operations import (
    MAX_ATTEMPTS,
    Check,
    Committed,
    ConflictError,
    ConnectionLossError,
    Create,
    MultiResult,
    Operation,
    SetData,
    ZkError,
    ZnodeStat,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper

MAX_OPERATIONS = 1000
BYTES_BESIDE_DATA = 80  # per operation on the wire: headers, version, ACL
BYTES_OF_FENCE = 1024  # at most

_WITH_DATA = (Create, SetData)

T = TypeVar("T")

Write: TypeAlias = Sequence[Operation]
"""Operations that belong together: they are applied together or not at all."""


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A write was not applied because of its operation number ``index``."""

    error: WriteError
    index: int


Outcome: TypeAlias = tuple[str | ZnodeStat | None, ...] | WriteRefused

_WRITE_ERRORS = {
    ZkError.BAD_VERSION: WriteError.BAD_VERSION,
    ZkError.NO_NODE: WriteError.NO_NODE,
    ZkError.NODE_EXISTS: WriteError.NODE_EXISTS,
    ZkError.NOT_EMPTY: WriteError.NOT_EMPTY,
    ZkError.NO_AUTH: WriteError.NOT_ALLOWED,
    ZkError.NO_CHILDREN_FOR_EPHEMERALS: WriteError.NOT_ALLOWED,
}


def apply(zookeeper: ZooKeeper, operations: Sequence[Operation]) -> MultiResult:
    """Apply one multi; repeat it after a connection loss, even if it may have been applied."""
    while True:
        try:
            return zookeeper.multi(operations)
        except ConnectionLossError:
            zookeeper.wait_connected()


def apply_each(zookeeper: ZooKeeper, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
    """Apply several multis; repeat them all after a connection loss, as ``apply`` does."""
    while True:
        try:
            return zookeeper.multi_many(batches)
        except ConnectionLossError:
            zookeeper.wait_connected()


def change_znodes(
    zookeeper: ZooKeeper, decide: Callable[[], tuple[T, Sequence[Operation]]], contested: str
) -> T:
    """Read, decide and write, again as long as another client changes what was read.

    ``decide`` reads and returns a result with the writes that it needs, each conditional on what
    was read. Returns the result of the decision that was written, or that needs no write. After a
    lost answer it decides again, so the write may have been applied. Raises what ``decide`` raises,
    and ``ConflictError`` with the message ``contested`` after ``MAX_ATTEMPTS``.
    """
    for _ in range(MAX_ATTEMPTS):
        result, writes = decide()
        if not writes:
            return result
        try:
            if isinstance(zookeeper.multi(writes), Committed):
                return result
        except ConnectionLossError:
            zookeeper.wait_connected()
    raise ConflictError(f"{contested}; try again")


def write_fenced(
    zookeeper: ZooKeeper,
    writes: Sequence[Write],
    fence: Sequence[Check],
    *,
    send_again: bool = True,
) -> list[Outcome]:
    """Apply each write while every check of ``fence`` holds.

    Returns one outcome per write, in their order: the results of its operations, or why it was
    refused. After a connection loss all writes without an outcome are sent again. So a write may be
    refused because its first attempt succeeded: the caller must read to find out. Without
    ``send_again`` this waits for the connection and raises ``ConnectionLossError`` instead; use it
    for writes that must not be repeated without a read. Raises ``ControllerMovedError`` (some
    writes may have been applied) and ``SessionExpiredError``.
    """
    max_bytes = zookeeper.max_request_bytes
    sizes = list(map(_size, writes))
    outcomes: dict[int, Outcome] = {
        number: WriteRefused(WriteError.TOO_LARGE, 0)
        for number, size in enumerate(sizes)
        if size > max_bytes - BYTES_OF_FENCE
    }
    fitting = [number for number in range(len(writes)) if number not in outcomes]
    undecided = _chunks(writes, sizes, fitting, max_bytes // 2)
    while undecided:
        batches = [
            [*fence, *(operation for number in chunk.numbers for operation in writes[number])]
            for chunk in undecided
        ]
        try:
            results = zookeeper.multi_many(batches)
        except ConnectionLossError:
            zookeeper.wait_connected()
            if not send_again:
                raise
            continue
        undecided = [
            again
            for chunk, result in zip(undecided, results, strict=True)
            for again in _settle(writes, chunk, result, outcomes, len(fence))
        ]
    return [outcomes[number] for number in range(len(writes))]


def write_unfenced(zookeeper: ZooKeeper, writes: Sequence[Write]) -> list[Outcome]:
    """Apply each write without a check of the controller epoch, as ``write_fenced`` does."""
    return write_fenced(zookeeper, writes, [])


def fits_a_multi(zookeeper: ZooKeeper, write: Write) -> bool:
    """Whether a write surely fits into one multi: half of the limit is left for longer ACLs."""
    return _size(write) <= zookeeper.max_request_bytes // 2 - BYTES_OF_FENCE


def version_or_error(outcome: Outcome) -> int | WriteError:
    """Return the new version of a node that was set, or why it was not."""
    if isinstance(outcome, WriteRefused):
        return outcome.error
    stat = outcome[0]
    assert isinstance(stat, ZnodeStat)
    return stat.version


@dataclass(slots=True)
class _Chunk:
    """The numbers of the writes of one multi, and whether one of them was refused before."""

    numbers: list[int]
    had_an_offender: bool = False


def _chunks(
    writes: Sequence[Write], sizes: Sequence[int], numbers: Iterable[int], max_bytes: int
) -> list[_Chunk]:
    chunks: list[_Chunk] = []
    operations, size = MAX_OPERATIONS, 0
    for number in numbers:
        count, write_size = len(writes[number]), sizes[number]
        if operations + count > MAX_OPERATIONS or size + write_size > max_bytes:
            chunks.append(_Chunk([]))
            operations = size = 0
        chunks[-1].numbers.append(number)
        operations += count
        size += write_size
    return chunks


def _size(write: Write) -> int:
    size = 0
    for operation in write:
        size += len(operation.path) + BYTES_BESIDE_DATA
        if isinstance(operation, _WITH_DATA):
            size += len(operation.data)
    return size


def _settle(
    writes: Sequence[Write],
    chunk: _Chunk,
    result: MultiResult,
    outcomes: dict[int, Outcome],
    fences: int,
) -> list[_Chunk]:
    """Store the outcomes of a multi; return the chunks that must be sent again."""
    if isinstance(result, Committed):
        at = fences
        for number in chunk.numbers:
            outcomes[number] = result.results[at : at + len(writes[number])]
            at += len(writes[number])
        return []
    if result.index < fences:
        raise ControllerMovedError("a write was refused: another controller has been elected")
    at = result.index - fences
    offender = chunk.numbers[0]
    for offender in chunk.numbers:
        if at < len(writes[offender]):
            break
        at -= len(writes[offender])
    error = _WRITE_ERRORS.get(result.error)
    if error is None:
        refused = writes[offender][at]
        raise RequestRefusedError(
            f"ZooKeeper refused {type(refused).__name__} {refused.path}: {result.error.name}"
        )
    outcomes[offender] = WriteRefused(error, at)
    rest = [number for number in chunk.numbers if number != offender]
    if chunk.had_an_offender:
        return [_Chunk([number]) for number in rest]
    return [_Chunk(rest, had_an_offender=True)] if rest else []
