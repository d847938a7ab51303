"""A broker's disk with the files of ``storage``.

A killed process leaves all that it wrote; a machine that loses power leaves what was flushed, and
some of the rest. Segments are small, so that logs often roll and delete segments. The wall clock
runs fast: storage does after seconds what it does after minutes in production.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import UNLIMITED, LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage import log_moves
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.simulation.application_topics import APPLICATION_TOPICS
from tests.simulation.disk import CLOCK_APART_MS, TOPIC_CONFIGS
from tests.simulation.file_damage import draw_change
from tests.simulation.file_log import ObservedFileLog
from tests.simulation.machine import Machine
from tests.simulation.records import BrokenInvariantError, RecordObserver, past_all_guards
from tests.simulation.simulated_logs import IsElsewhere, LostBatches
from tests.support.durable_files import DurableFiles

SEGMENT_BYTES = (100, 200, 400)  # one batch, or a few
SEGMENTS_OF_APPLICATIONS = 20
FLUSH_MS = 400_000  # by a clock that runs fast
CARE_PROBABILITY = 0.5
CHANGE_PROBABILITY = 0.4
MOVE_PROBABILITY = 0.2  # of a log, to another directory
_EVERYTHING = 2**31
_SIMULATED = "simulated"
_MEMORY = Path("/dev/shm")


class _KilledError(Exception):
    """The process was killed."""


def _kill(*args: object) -> None:
    raise _KilledError


class FileDisk(LogManager):
    """The logs of one process."""

    def __init__(self, machine: Machine, *, was_clean: bool = False) -> None:
        self.machine = machine
        self._was_clean = was_clean  # the former process shut down cleanly
        self.observer = RecordObserver()
        self.on_out_of_service: Callable[[], None] = lambda: None
        self.on_unlocked: Callable[[], None] = lambda: None
        self.has_threads: Callable[[], bool] = lambda: False
        self.clock_ms = machine.broker_id * CLOCK_APART_MS
        self.wall_clock_ahead_ms = 0  # the clock of these files does not jump
        self._found: dict[TopicPartition, DamagedRecordsError] = {}
        super().__init__(
            machine.directories,
            machine.broker_id,
            defaults=machine.defaults,
            on_directory_failed=self._on_failed,
            on_records_damaged=self._found.__setitem__,
            wall_clock_ms=machine.wall_clock_ms,
            make_log=partial(ObservedFileLog, self),
        )
        for topic, config in TOPIC_CONFIGS.items():
            most = machine.defaults.segment_bytes
            if topic in APPLICATION_TOPICS:  # the record of a group must fit into a segment
                most *= SEGMENTS_OF_APPLICATIONS
            least = config.min_insync_replicas
            own = replace(machine.defaults, min_insync_replicas=least, segment_bytes=most)
            self.configure({topic: own})
        self.open()
        machine.let_go = self._let_go

    @property
    def broker_id(self) -> BrokerId:
        """The broker of the disk."""
        return self.machine.broker_id

    @property
    def has_failed(self) -> bool:
        """Whether one of its directories has failed."""
        return bool(self.failed_directories)

    def find(self, topic_partition: TopicPartition) -> ObservedFileLog | None:
        """Return an existing log, usable or not."""
        return self._all_logs().get(topic_partition)

    def batch_count(self, topics_left_out: Collection[str]) -> int:
        """Return the number of batches in all logs but those of some topics."""
        logs = self._all_logs().items()
        counted = (log for name, log in logs if name.topic not in topics_left_out)
        return sum(len(log.batches) for log in counted if log.is_usable)

    def log(self, topic_partition: TopicPartition) -> ObservedFileLog:
        """Return a log that must exist, usable or not."""
        return self._all_logs()[topic_partition]

    def get(self, topic_partition: TopicPartition) -> ObservedFileLog | None:
        """Return a log that exists and is in service."""
        log = super().get(topic_partition)
        assert log is None or isinstance(log, ObservedFileLog)
        return log

    def kept_topic_id(self, name: TopicPartition) -> TopicId | str | None:
        """Return the topic id of a log, readable or not; see ``Disk``."""
        if name in self._homes:
            is_stray = name in self.machine.superseded and not self.machine.hidden
            return "none" if is_stray else self.topic_id(name)
        return self.machine.hidden_ids.get(name, "none")

    # --- operations of the broker ---

    @past_all_guards
    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Notify the observer and take a damaged log out of service."""
        log = self.get(topic_partition)
        if log is not None:
            self.observer.on_out_of_service(self.broker_id, log)
            super().mark_damaged(topic_partition, reason)

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> UnifiedLog:
        """Return a log; a new one replaces an unreadable one."""
        machine = self.machine
        is_hidden = topic_partition in machine.hidden_ids and topic_partition not in self._homes
        if is_new and is_hidden:
            del machine.hidden_ids[topic_partition]
            machine.superseded.add(topic_partition)
        elif not machine.hidden:
            machine.superseded.discard(topic_partition)
        return super().get_or_create(topic_partition, topic_id, is_new=is_new)

    @past_all_guards
    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Notify the observer and delete a log."""
        if topic_partition in self._homes:
            self.observer.on_deleted(self.broker_id, self._named(topic_partition))
        super().delete(topic_partition, deleted_topic=deleted_topic)

    @past_all_guards
    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Notify the observer and set a log aside."""
        if self.is_damaged(topic_partition):
            self.observer.on_replaced(self.broker_id, self._named(topic_partition))
        elif topic_partition in self._homes:
            self.observer.on_set_aside(self.broker_id, self._named(topic_partition))
        super().set_aside(topic_partition)

    # --- the process and the machine ---

    def ended(self, *, is_clean: bool, lost_batches: LostBatches | None) -> FileDisk:
        """End the process, and perhaps its machine; return the disk of the next process."""
        if lost_batches is None:
            return self._next({}, is_clean=is_clean, is_killed=not is_clean)
        flushed = {name: log.recovery_point for name, log in self._all_logs().items()}
        return self._next(flushed, self.machine.lose_power, is_killed=True)

    def changed(self, is_elsewhere: IsElsewhere, note: Callable[[str], None]) -> FileDisk:
        """Sometimes change the files between two processes."""
        dice = self.machine.dice
        logs = [log for log in self._all_logs().values() if log.is_usable]
        if dice.random() >= CHANGE_PROBABILITY:
            return self
        change = draw_change(logs, dice, is_elsewhere)
        if change is None:
            return self
        note(change.description)
        kept = {} if change.endangered is None else {change.endangered: 0}
        return self._next(kept, change.act, is_clean=self._was_clean)

    def fragile(self, directory: int = 0) -> list[TopicPartition]:
        """Return the logs in one of the directories."""
        home = self._directories[directory]
        return sorted(name for name, logs in self._homes.items() if logs is home)

    def fail_directory(self, directory: int = 0) -> None:
        """Let one of the directories fail with its logs."""
        for name in self.fragile(directory):
            self.observer.on_lost(self.broker_id, self._named(name))
        self._directories[directory].directory.fail(_SIMULATED)

    def start_broken(self) -> FileDisk:
        """Start with an unreadable directory: the logs in it are unknown."""
        names = self.fragile()

        def change() -> None:
            self._repair(has_its_data=True)
            self.machine.hide(0, {name: self.topic_id(name) for name in names})

        return self._next(dict.fromkeys(names, 0), change)

    def repair(self, *, has_its_data: bool = False) -> FileDisk:
        """Replace the failed directory by an empty one, or by itself."""
        if not self.machine.hidden:
            return self
        change = partial(self._repair, has_its_data=has_its_data)
        return self._next({}, change)

    def _repair(self, *, has_its_data: bool) -> None:
        machine = self.machine
        for directory, hidden in machine.hidden.items():
            path = machine.directories[directory]
            path.unlink()
            if has_its_data:
                for name in self._homes:  # two logs of one partition would be unusable
                    if (hidden / str(name)).exists():
                        shutil.rmtree(hidden / str(name))
                        machine.superseded.discard(name)
                hidden.rename(path)
            else:
                shutil.rmtree(hidden)
                machine.superseded.clear()
        machine.hidden, machine.hidden_ids = {}, {}

    def _next(
        self,
        kept: Mapping[TopicPartition, int],
        change: Callable[[], object] = lambda: None,
        *,
        is_clean: bool = False,
        is_killed: bool = False,
    ) -> FileDisk:
        """End the process, apply a change, and return the disk of the next process.

        ``kept`` is the offset up to which a log keeps its records, for logs that may lose some.
        """
        before = {name: (log, log.batches) for name, log in self._all_logs().items()}
        starts = {name: log.log_start_offset for name, (log, _) in before.items()}
        excused = {n for n, (log, _) in before.items() if log.damaged or not log.is_usable}
        self._end(is_clean=is_clean, is_killed=is_killed)
        change()
        after = FileDisk(self.machine, was_clean=is_clean)
        after.observer = self.observer
        for name, (log, batches) in before.items():
            found = after.get(name)
            if found is not None:
                found.check_epochs()
                found.check_whole()
                is_nameless = found.topic_id is None and found.log_end_offset > 0
                if is_nameless and log.topic_id is not None:
                    raise BrokenInvariantError(f"IdsOutliveRecords: {log.topic_id}: {found}")
            is_as_long = found is not None and found.log_end_offset >= log.log_end_offset
            if found is not None and is_as_long and found.has(batches):
                continue
            limit = kept.get(name, log.log_end_offset)
            promised = [b for b in batches if starts[name] <= b.last_offset < limit]
            if name not in excused and promised and not (found and found.has(promised)):
                raise BrokenInvariantError(f"WrittenStays: {log} to {limit}: {promised}: {found}")
            self.observer.on_lost(self.broker_id, log)
        return after

    def _end(self, *, is_clean: bool, is_killed: bool) -> None:
        """Close everything, or abandon it at once. The logs cannot be used afterwards."""
        for directory, logs in enumerate(self._directories):
            if logs.is_offline and directory not in self.machine.hidden:
                names = self.fragile(directory)
                self.machine.hide(directory, {name: self.topic_id(name) for name in names})
        if is_clean:
            futures = [f for logs in self._live() for f in logs.futures.logs.values()]
            for log in [*self._usable_logs(), *futures]:
                log.close()  # in this thread: a shutdown would use others
            self.close(is_clean=True)
        if is_killed:
            self._end_in_exchanges()
        self._let_go()

    def _end_in_exchanges(self) -> None:
        """Sometimes end between the two names of an exchange of logs."""
        for name in self.moves.moving():
            if self.moves.get(name) is not None and self.machine.moving_dice.random() < 0.5:
                self.moves.prepare(name)
                with suppress(_KilledError), patch.object(log_moves, "_promote", _kill):
                    self.moves.replace_current_with_future(name)

    def _let_go(self) -> None:
        self._is_open = False
        for logs in self._directories:
            logs.directory.fail("its process has ended")
            logs.ends.close()
        self._unlock()

    # --- damage ---

    def check_damaged_logs(self, is_refused: Callable[[], bool]) -> None:
        """Do nothing: files are checked when they are opened."""

    def find_damage(self) -> Mapping[TopicPartition, DamagedRecordsError]:
        """Read all logs and return the damage."""
        self._found.clear()
        self.verify(_EVERYTHING)
        return dict(sorted(self._found.items()))

    def damaged_logs(self) -> list[TopicPartition]:
        """Return the damaged logs, in service or not."""
        return [
            name
            for name, home in self._homes.items()
            if not home.is_offline and (self.get(name) is None or self.log(name).damaged)
        ]

    def restore(self, name: TopicPartition) -> bool:
        """Undo the damage of a log; return whether it was out of service."""
        was_out_of_use = self.get(name) is None
        log = self._all_logs().get(name)
        if log is not None:
            for base_offset in sorted(log.damaged):
                log.damage(base_offset)
        return was_out_of_use

    # --- in the background ---

    def start_maintenance(self, replica_manager: ReplicaManager) -> None:
        """Do some of the periodic tasks, in any sequence."""
        tasks: list[Callable[[], object]] = [
            self.flush,
            self.checkpoint_recovery_points,
            self.checkpoint_log_start_offsets,
            self.clean_up,
            partial(self.purge, replica_manager.is_complete_topic),
        ]
        dice = self.machine.dice
        dice.shuffle(tasks)
        for task in tasks:
            if dice.random() < CARE_PROBABILITY:
                task()
        self._move_logs(replica_manager)

    def _move_logs(self, replica_manager: ReplicaManager) -> None:
        """Sometimes begin to move a log to one of the directories; continue the moves."""
        machine, dice = self.machine, self.machine.moving_dice
        manager = ReplicaAlterLogDirsManager(replica_manager, self.moves)
        if dice.random() < MOVE_PROBABILITY and (hosted := sorted(self.hosted())):
            path = str(dice.choice(machine.directories).absolute())
            manager.alter({dice.choice(hosted): path})
        for name in manager.moving():
            for _ in range(dice.randrange(4)):
                manager.advance(name, 0)

    # --- inside ---

    def _all_logs(self) -> dict[TopicPartition, ObservedFileLog]:
        return {
            name: log
            for name, home in sorted(self._homes.items())
            if isinstance(log := home.logs.get(name), ObservedFileLog)
        }

    def _named(self, name: TopicPartition) -> ObservedFileLog | RefusedLog:
        return self._all_logs().get(name) or RefusedLog(name, self.topic_id(name))

    def _on_failed(self, path: Path) -> None:
        """Report the logs of a failed directory, or a damaged log, as offline soon."""
        failed = [logs for logs in self._directories if logs.directory.path == path]
        for logs in failed:
            if logs.is_offline and not logs.directory.failure.endswith(_SIMULATED):
                raise BrokenInvariantError(logs.directory.failure)
        self.on_out_of_service()


class FileDisks:
    """The disks of all brokers of a cluster, in memory if the operating system supports it."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._durable = DurableFiles()
        self._machines: list[Machine] = []
        self._defaults = LogConfig(
            segment_bytes=random.Random(f"{seed}, segments").choice(SEGMENT_BYTES),
            index_interval_bytes=100,
            retention_ms=UNLIMITED,
            flush_ms=FLUSH_MS,
        )
        self._root = Path(tempfile.mkdtemp(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))
        self._remove = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)

    def make(self, broker_id: BrokerId, now_ms: Callable[[], int]) -> FileDisk:
        """Return the disk of a broker that starts for the first time."""
        dice = random.Random(f"{self._seed}, files of {broker_id}")
        moving_dice = random.Random(f"{self._seed}, moves of {broker_id}")
        machine = Machine(
            broker_id, self._root, self._durable, self._defaults, dice, moving_dice, now_ms
        )
        self._machines.append(machine)
        return FileDisk(machine)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Record which data are flushed, and remove everything at the end."""
        self._durable.note_all(self._root)
        try:
            with self._durable.watched():
                yield
        finally:
            for machine in self._machines:
                machine.let_go()
            self._remove()


class RefusedLog(NamedTuple):
    """A log that cannot be opened."""

    topic_partition: TopicPartition
    topic_id: TopicId | None
