"""The directory of a reassignment plan: its documents, and what its commands leave for each other.

``plan.json`` is the plan, in the sequence of execution; an entry has the ``bytes`` of the partition
if they are known, which Kafka's tools ignore. ``rollback.json`` has the assignment when the plan
was made. Both are as ``kafka-reassign-partitions --execute`` takes them. ``summary.json`` is the
output of the job.

The file ``paused`` stops the beginning of moves. ``rolling-back`` lets a running ``execute`` end;
``turned`` says that an ``execute`` which followed a rollback has not ended.
``progress.json`` has the speed of the last execution, ``throttle.json`` what its throttle has
changed. Nothing else is stored about the progress. An execution that runs has ``plan.json`` locked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

from regent.client.moves import Move
from regent.config.command_line import program
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.core.topic_validation import topic_name_problem
from regent.zk.codecs.json_fields import JsonObject, decode_object

PLAN: Final = "plan.json"
ROLLBACK: Final = "rollback.json"
PAUSED: Final = "paused"
ROLLING_BACK: Final = "rolling-back"
TURNED: Final = "turned"
THROTTLE: Final = "throttle.json"
_VERSION: Final = 1
_BOM: Final = b"\xef\xbb\xbf"  # editors of Windows write it
_MAX_BYTES: Final = 2**63 - 1


class PlanFileError(RegentError):
    """The directory of a plan, or a file in it, is unusable; the message names it."""


@dataclass(frozen=True, slots=True)
class ExecutablePlan:
    """A plan to execute, or to roll back: it moves each partition once."""

    directory: Path
    moves: tuple[Move, ...]
    is_rollback: bool = False

    @property
    def rollback(self) -> ExecutablePlan:
        """The plan that moves everything back, the last move first."""
        moves = tuple(m._replace(before=m.target, target=m.before) for m in reversed(self.moves))
        return replace(self, moves=moves, is_rollback=True)

    @property
    def is_turned(self) -> bool:
        """Whether a command of the other direction has begun since."""
        return self.has(ROLLING_BACK) is not self.is_rollback

    @property
    def cancels(self) -> bool:
        """Whether moves in flight in the other direction are of this plan: its other commands'."""
        return self.is_rollback or self.has(ROLLING_BACK) or self.has(TURNED)

    def turn(self) -> None:
        """Let executions in the other direction end, and this one go on if it was paused.

        Raises ``PlanFileError``.
        """
        if self.is_rollback:
            self.leave(ROLLING_BACK)
        elif self.has(ROLLING_BACK):
            self.leave(TURNED)  # first, so that a command that is killed here leaves one of them
            self.remove(ROLLING_BACK)
        self.remove(PAUSED)

    def has(self, note: str) -> bool:
        """Return whether ``PAUSED`` or ``ROLLING_BACK`` was left in the directory."""
        return (self.directory / note).exists()

    def leave(self, note: str, content: bytes = b"") -> None:
        """Write a file at once and completely. Raises ``PlanFileError``."""
        path = self.directory / note
        unfinished = path.with_name(f".{note}.{os.getpid()}.part")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(path)
        except OSError as error:
            raise PlanFileError(f"cannot write {path}: {error.strerror}") from None

    def read(self, note: str) -> bytes | None:
        """Return the content of a file that was left, None if there is none."""
        with suppress(FileNotFoundError):
            return (self.directory / note).read_bytes()
        return None

    def remove(self, note: str) -> None:
        """Remove a file that was left, if it exists. Raises ``PlanFileError``."""
        try:
            (self.directory / note).unlink(missing_ok=True)
        except OSError as error:
            raise PlanFileError(
                f"cannot remove {self.directory / note}: {error.strerror}"
            ) from None


class PlanLock:
    """Tells a running execution of a plan from a killed one, whose lock the system has removed.

    Where files cannot be locked (some network file systems), no other execution seems to run.
    """

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / PLAN, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def is_alone(self) -> bool:
        """Whether no other execution runs; then others that begin wait until ``share``."""
        try:
            # Without a lock first: of two that end at once, one finds no other.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def share(self) -> None:
        """Run beside other executions; wait while one of them changes the throttle."""
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_SH)


def write_plan(directory: Path, changes: Sequence[Move], summary: Mapping[str, Any]) -> None:
    """Write a plan into an empty directory."""
    plan = (_row(c, c.target) | ({"bytes": c.bytes} if c.bytes else {}) for c in changes)
    _write_document(directory / PLAN, plan)
    _write_document(directory / ROLLBACK, (_row(c, c.before) for c in changes))
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    (directory / "summary.json").write_bytes(orjson.dumps(summary, option=options))


def _write_document(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write one row a line; one is in memory at a time, because each takes a kilobyte."""
    with path.open("wb") as file:
        file.write(b'{"version":1,"partitions":[')
        for number, row in enumerate(rows):
            file.write((b",\n" if number else b"\n") + orjson.dumps(row))
        file.write(b"\n]}\n")


def _row(change: Move, replicas: Sequence[BrokerId]) -> dict[str, Any]:
    topic, number = change.partition
    return {"topic": topic, "partition": number, "replicas": replicas}


def check_is_plan(directory: Path) -> None:
    """Raise ``PlanFileError`` for a directory without a plan."""
    if not (directory / PLAN).is_file():
        raise PlanFileError(
            f"{directory} is not a plan (it has no {PLAN}): name the directory that"
            f" `{program()} jobs plan … --out` wrote"
        )


def read_plan(directory: Path) -> ExecutablePlan:
    """Read the plan in ``directory``. Raises ``PlanFileError`` for anything else."""
    path, origin = directory / PLAN, directory / ROLLBACK
    check_is_plan(directory)
    targets, before = _read_assignments(path), _read_assignments(origin)
    for name, found in ((origin, before), (path, targets)):
        for topic in {topic_partition.topic: None for topic_partition in found}:
            problem = topic_name_problem(topic)
            if problem is not None:
                raise PlanFileError(f"{name}: topic {topic!r:.80} {problem}")
    for one, other, name in ((targets, before, origin), (before, targets, path)):
        missing = next((p for p in one if p not in other), None)
        if missing is not None:
            raise PlanFileError(f"{name} does not have {missing}, which the other document has")
    return ExecutablePlan(
        directory,
        tuple(Move(p, before[p][0], *target) for p, target in targets.items()),
    )


def _read_assignments(path: Path) -> dict[TopicPartition, tuple[tuple[BrokerId, ...], int]]:
    """Read a reassignment document: replicas and bytes, in the sequence of the file."""
    assignments: dict[TopicPartition, tuple[tuple[BrokerId, ...], int]] = {}
    try:
        document = decode_object(path.read_bytes().removeprefix(_BOM), str(path))
        if document.values.get("version") != _VERSION:
            raise BadDataError(f'{path}: it must have "version": {_VERSION}, as Kafka\'s documents')
        for number, row in enumerate(document.array("partitions"), 1):
            where = f"{path}: entry {number} of partitions"
            if type(row) is not dict:
                raise BadDataError(f"{where} must be an object")
            entry = JsonObject(row, where)
            topic_partition = TopicPartition(entry.string("topic"), entry.integer("partition"))
            if topic_partition in assignments:
                raise BadDataError(f"{entry.node}: {topic_partition} is named twice")
            replicas = entry.broker_ids("replicas")
            if not replicas:
                raise BadDataError(f"{entry.node}: {topic_partition} has no replicas")
            size = entry.integer("bytes", maximum=_MAX_BYTES) if "bytes" in row else 0
            assignments[topic_partition] = (replicas, size)
    except OSError as error:
        raise PlanFileError(f"{path}: {error.strerror}") from None
    except BadDataError as error:
        raise PlanFileError(str(error)) from None
    return assignments
