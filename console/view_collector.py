"""Collects what the pages show, while somebody looks at one of them.

Five threads ask. The quick one reads the journals, ``cluster.json``, ``/controller`` and
``/brokers/ids`` ten times a second; when brokers have gone, it reads the states of the partitions
that they led until these have leaders. The slow one reads all partitions every few seconds, and
again and again after a change of brokers or of the controller, of which the quick one tells it. The
third asks the controller, the fourth finds what ``status`` would tell, and the fifth asks the
brokers for their journals if those are on other machines: these may not get answers. Without a page
all wait, and no session with
ZooKeeper is open. ``view`` is replaced as a whole, so that any thread may read it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from regent.client.cluster_connection import Cluster, ClusterNotFoundError
from regent.client.controller_ref import ControllerRef, batches
from regent.client.health import Troubles, read_troubles
from regent.client.journals import EventsError, Journals
from regent.client.missing_brokers import EndsOfBrokers, MissingBroker
from regent.client.partitions import DescribedPartition, Topics
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.console.bootstrap_source import BootstrapSource, partitions_of, source_of
from regent.console.cluster_view import (
    BrokerRow,
    ClusterView,
    PartitionTable,
    recent_failovers,
)
from regent.console.failovers import Deaths, Failover, Fields, new_lines
from regent.core.errors import BadDataError, RegentError
from regent.core.model import (
    NO_CONTROLLER,
    BrokerId,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.zk.stores.admin_store import ZkAdminStore

logger = logging.getLogger(__name__)

CLIENT_ID: Final = "regent-console"
POLL_S: Final = 0.1

POLL_BROKERS_S: Final = 0.5  # without ZooKeeper: each question is a new connection
_POLL_FAR_S: Final = 0.25  # between questions to brokers for their journals
_YOUNG_S: Final = 1.5
_KEPT_EVENTS: Final = 20_000
_READ_BYTES: Final = 8 * 1024 * 1024  # of the end of each journal
_READ_FAR_BYTES: Final = 1024 * 1024  # the same, of the journal that a broker reads for us
_KEPT_DEATHS: Final = 20
_IDLE_S: Final = 5.0  # after the last page, sessions stay for a reload
_FIRST_S: Final = 10.0
_SLOW_S: Final = 3.0
_RETRY_S: Final = 1.0
_END_S: Final = 2.0
_CLOCK_S: Final = 1.0
_REDRAW_S: Final = 30.0
_ASK_CONTROLLER_S: Final = 1.0
_NO_JOURNALS_S: Final = 30.0  # until brokers that tell none are asked again
_TROUBLES_S: Final = 2.0  # as often as status --watch
_NO_TABLE: Final = PartitionTable()
_UNSETTLED_S: Final = 3.0  # how long leaders may change after a change of brokers
_REST: Final = 1.5  # after a read of the partitions, in units of its own time
_ORPHANS_S: Final = 0.02  # between reads of partitions without a leader
_ORPHANS_AT_ONCE: Final = 500
_TOPICS_AT_ONCE: Final = 50
_SHORT_REST: Final = 0.25  # the same, while leaders may change


class ViewCollector:
    """Keeps ``view`` as it is in the cluster; ``on_change`` is called on a thread of its own."""

    def __init__(self, cluster: Cluster, on_change: Callable[[], None] = lambda: None) -> None:
        self._cluster = cluster
        self._on_change = on_change
        self._changed = threading.Condition()
        self._watchers = 0
        self._wanted_until = 0.0
        self._end = threading.Event()
        self._is_dirty = threading.Event()
        self._unsettled_until = 0.0
        self._gone: set[BrokerId] = set()  # whose partitions may get other leaders at any moment
        self._moves_paused_ms: float | None = None
        self._patches = 0  # how often the quick thread has changed the table
        self._wake_up = threading.Event()
        self._look_now = threading.Event()
        self._journals: Journals | None = None
        self._far_journals: Journals | None = None
        self._has_far_journals = True  # until they were looked for
        self._arrived: deque[list[Fields]] = deque()  # of far journals, for the quick thread
        self._events: deque[Fields] = deque(maxlen=_KEPT_EVENTS)
        self._deaths: dict[BrokerId, list[int]] = {}
        self._table = PartitionTable()
        self._described: DescribeControllerResponse | None = None
        self._silence = ""  # why the controller sent no answer; empty: it did, or nobody knows
        self._troubles = Troubles() if cluster.bootstrap else None
        self._is_complete = False  # whether the partitions were read since somebody looks
        self._is_changed = True  # whether the failovers must be found again
        self._told_at = 0.0
        self._sessions = 0
        self.view = ClusterView(0.0, "")
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. Raises ``ClusterNotFoundError``."""
        rounds: dict[str, Callable[[Any], None]] = {
            "console-quick": self._quick,
            "console-slow": self._slow,
        }
        if not self._cluster.bootstrap:
            rounds["console-asking"] = self._ask_controller
            rounds["console-troubles"] = self._find_troubles
        if self._cluster.bootstrap or self._cluster.data_dir is None:
            rounds["console-journals"] = self._follow_far_journals
        self._threads = [
            threading.Thread(target=self._run, args=(once,), name=name, daemon=True)
            for name, once in rounds.items()
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads; one that waits for an answer of the cluster ends with the process."""
        self._end.set()
        self._wake_up.set()
        self._is_dirty.set()
        for thread in self._threads:
            thread.join(_END_S)
        far = self._far_journals
        if far is not None and not any(thread.is_alive() for thread in self._threads):
            far.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Collect for the block: a page is open."""
        with self._changed:
            self._watchers += 1
        self._wake_up.set()
        try:
            yield
        finally:
            with self._changed:
                self._watchers -= 1
                self._wanted_until = time.monotonic() + _IDLE_S

    def current(self, partitions_s: float = _FIRST_S) -> ClusterView:
        """Return a view that is at most a moment old.

        It waits so long for the partitions; without them the table is an earlier one, or empty.
        """
        self._wanted_until = time.monotonic() + _IDLE_S
        self._wake_up.set()
        began = time.monotonic()
        with self._changed:
            while True:
                is_late = time.monotonic() - began >= partitions_s
                if self._is_young() and (self._has_all() or is_late):
                    return self.view
                if (left_s := began + _FIRST_S - time.monotonic()) <= 0:
                    return self.view
                self._changed.wait(min(left_s, POLL_S))

    def _is_young(self) -> bool:
        return time.time() * 1000 - self.view.at_ms < _YOUNG_S * 1000

    def _has_all(self) -> bool:
        return bool(self.view.problem) or (self._is_complete and self.view.table is self._table)

    @property
    def _is_wanted(self) -> bool:
        return self._watchers > 0 or time.monotonic() < self._wanted_until

    @property
    def has_sessions(self) -> bool:
        """Whether a session with ZooKeeper is open; without a page there is none."""
        return self._sessions > 0

    def refresh(self) -> None:
        """Read the partitions again soon: somebody has changed something."""
        self._is_dirty.set()

    # --- the threads ---

    def _run(self, rounds: Callable[[Any], None]) -> None:
        while not self._end.is_set():
            if not self._is_wanted:
                self._is_complete = False
                self._wake_up.clear()
                if not self._is_wanted:
                    self._wake_up.wait()
                continue
            try:
                with source_of(self._cluster) as source:
                    self._sessions += 1
                    try:
                        rounds(source)
                    finally:
                        self._sessions -= 1
            except (RegentError, OSError) as error:
                self._publish_problem(str(error))
                self._end.wait(_RETRY_S)
            except Exception as error:  # the others go on, and this one may recover
                logger.exception("%s failed", threading.current_thread().name)
                self._publish_problem(f"the console failed: {type(error).__name__}: {error}")
                self._end.wait(_RETRY_S)

    def _publish_problem(self, problem: str) -> None:
        address = self.view.zookeeper
        with suppress(RegentError):
            address = self._cluster.zookeeper_address
        self._publish(
            replace(self.view, at_ms=time.time() * 1000, zookeeper=address, problem=problem)
        )

    def _publish(self, view: ClusterView) -> None:
        with self._changed:
            before, self.view = self.view, view
            self._changed.notify_all()
        now = time.monotonic()
        period_s = _CLOCK_S if view.missing else _REDRAW_S  # "missing since 5 s" grows
        if now - self._told_at >= period_s or _differ(before, view):
            self._told_at = now
            self._on_change()

    def _quick(self, source: ZkAdminStore | BootstrapSource) -> None:
        """Collect what changes in a failover, until nobody looks."""
        poll_s = POLL_BROKERS_S if self._cluster.bootstrap else POLL_S
        while self._is_wanted and not self._end.is_set():
            began = time.monotonic()
            self._publish(self._look(source))
            while isinstance(source, ZkAdminStore) and self._adopts():
                self._adopt(source)
                if time.monotonic() - began >= poll_s:
                    break
            self._look_now.wait(max(poll_s - (time.monotonic() - began), poll_s / 4))
            self._look_now.clear()

    def _adopts(self) -> bool:
        """Whether the quick thread reads the partitions without leaders now."""
        return bool(self._gone) and time.monotonic() < self._unsettled_until

    def _adopt(self, admin: ZkAdminStore) -> None:
        """Read the states of partitions whose leaders are away, and show the new leaders."""
        table = self._table
        orphans = [p for p in table.partitions if p.leader in self._gone]
        if not orphans:
            self._gone.clear()
            return
        adopted = _new_states(admin, orphans)
        if not adopted:
            self._end.wait(_ORPHANS_S)
            return
        at_ms, live = time.time() * 1000, _live_ids(self.view.brokers)
        with self._changed:
            table = self._table  # the slow thread may have read all of them meanwhile
            rows = [
                adopted.get(p.topic_partition, p) if p.leader in self._gone else p
                for p in table.partitions
            ]
            self._patches += 1
            self._table = PartitionTable.of(rows, table.unreadable, dict.fromkeys(live), at_ms)
        self._publish(replace(self.view, at_ms=at_ms, table=self._table))

    def _slow(self, source: ZkAdminStore | BootstrapSource) -> None:
        """Collect the partitions, until nobody looks."""
        while self._is_wanted and not self._end.is_set():
            while self._adopts() and not self._end.wait(_ORPHANS_S):
                pass
            began, patches = time.monotonic(), self._patches
            self._is_dirty.clear()
            live = _live(source.read_brokers())
            found = self._read_all(source)
            if found is None:
                continue  # the quick thread reads now
            pause = source.read_moves_pause()
            self._moves_paused_ms = None if pause is None else pause.at_ms
            at_ms = time.time() * 1000
            table = PartitionTable.of(*found, live, at_ms)
            is_changed = not table.has_same(self._table)
            with self._changed:
                if self._patches != patches:
                    continue  # what was read may be older than what is shown
                if not self._is_complete or is_changed:
                    self._table = table
            self._is_complete = True
            self._look_now.set()
            is_unsettled = time.monotonic() < self._unsettled_until
            rest = _SHORT_REST if is_unsettled else _REST
            self._end.wait(min((time.monotonic() - began) * rest, _SLOW_S))
            if not is_unsettled and not is_changed:
                self._is_dirty.wait(_SLOW_S)

    def _read_all(
        self, source: ZkAdminStore | BootstrapSource
    ) -> tuple[Sequence[DescribedPartition], Sequence[str]] | None:
        """Read all partitions, and why some cannot be read; None if brokers have gone meanwhile."""
        if isinstance(source, BootstrapSource):
            found = partitions_of(source)
            return found.partitions, found.unreadable
        rows: list[DescribedPartition] = []
        unreadable: list[str] = []
        for few in batches(source.topics.read_topic_names(), _TOPICS_AT_ONCE):
            if self._adopts():
                return None
            found = partitions_of(source, few)
            rows += found.partitions
            unreadable += found.unreadable
        return rows, unreadable

    def _ask_controller(self, admin: ZkAdminStore) -> None:
        """Ask the controller which brokers do not answer it, until nobody looks."""
        with ControllerRef(admin.read_controller_endpoint, client_id=CLIENT_ID) as controller:
            while self._is_wanted and not self._end.is_set():
                deadline = time.monotonic() + _ASK_CONTROLLER_S
                request = DescribeControllerRequest()
                self._described = controller.ask(
                    request, DescribeControllerResponse, deadline=deadline
                )
                self._silence = controller.failure if controller.is_silent else ""
                self._end.wait(_SLOW_S)

    def _find_troubles(self, admin: ZkAdminStore) -> None:
        """Find what ``status`` would tell, until nobody looks; not while leaders are being read."""
        self._troubles = None
        while self._is_wanted and not self._end.is_set():
            if not self._is_complete or self._adopts():
                self._end.wait(POLL_S)
                continue
            began, table = time.monotonic(), self._table
            found = Topics({}, table.partitions, table.unreadable)
            file = self._cluster.file
            self._troubles = read_troubles(
                admin, self._cluster.data_dir, file, found, self._described
            )
            self._look_now.set()
            spent_s = time.monotonic() - began
            self._end.wait(max(_TROUBLES_S - spent_s, spent_s * _REST))

    # --- one look ---

    def _look(self, source: ZkAdminStore | BootstrapSource) -> ClusterView:
        file = self._cluster.file
        self._note_deaths(file)
        has_journals = self._follow_journals()
        registered = source.read_brokers()
        controller = source.read_controller()
        controller_id = NO_CONTROLLER if controller is None else controller.broker_id
        epoch = self.view.controller_epoch if controller is None else controller.controller_epoch
        rows = _rows(registered, {} if file is None else file.brokers)
        self._note_change(rows, epoch)
        if not has_journals:
            self._note_without_journals(rows, controller_id, epoch)
        missing = self._missing(source, registered, file)
        events = tuple(self._events) if self._is_changed else self.view.events
        deaths = {broker_id: tuple(times) for broker_id, times in self._deaths.items()}
        return ClusterView(
            time.time() * 1000,
            self._cluster.zookeeper_address,
            self._cluster.data_dir,
            "",
            controller_id,
            epoch,
            _with_missing(rows, missing),
            missing,
            () if self._described is None else self._described.unanswered,
            self._table,
            events,
            deaths,
            self._failovers(events, deaths),
            has_journals,
            self._moves_paused_ms,
            self._silence,
            self._troubles,
        )

    def _note_change(self, rows: tuple[BrokerRow, ...], epoch: int) -> None:
        """Let the partitions be read soon if brokers or the controller have changed."""
        if epoch != self.view.controller_epoch or _live_ids(rows) != _live_ids(self.view.brokers):
            self._unsettled_until = time.monotonic() + _UNSETTLED_S
            live = _live_ids(rows)
            self._gone = (self._gone | _live_ids(self.view.brokers)) - live
            self._is_dirty.set()

    def _failovers(self, events: Sequence[Fields], deaths: Deaths) -> Sequence[Failover]:
        if not self._is_changed:
            return self.view.failovers
        self._is_changed = False
        return recent_failovers(events, deaths)

    def _note_deaths(self, file: ClusterFile | None) -> None:
        for entry in () if file is None else file.brokers.values():
            known = self._deaths.setdefault(entry.id, [])
            if entry.ended and entry.ended_ms not in known:
                known.append(entry.ended_ms)
                self._is_changed = True
                del known[:-_KEPT_DEATHS]

    def _follow_journals(self) -> bool:
        """Take the new lines of all journals; False if there are none that can be read."""
        data_dir = self._cluster.data_dir
        if data_dir is None:
            while self._arrived:
                self._add(self._arrived.popleft())
            return self._has_far_journals
        if self._journals is None:
            self._journals = Journals(None, data_dir, None, 0, logger.warning, _READ_BYTES)
        found = self._journals.look()
        with suppress(EventsError):
            self._add(new_lines(self._journals))
        return found > 0

    def _follow_far_journals(self, source: ZkAdminStore | BootstrapSource) -> None:
        """Let the brokers read their journals, until nobody looks; one of them may be slow."""
        if self._far_journals is None:
            say = logger.warning
            self._far_journals = Journals(self._cluster, None, None, 0, say, _READ_FAR_BYTES)
        while self._is_wanted and not self._end.is_set():
            try:
                self._far_journals.look()
            except ClusterNotFoundError as error:
                if isinstance(source, ZkAdminStore):
                    raise
                logger.warning("no journals: %s", error)  # of Kafka, or our key is not allowed
                self._has_far_journals = False
                self._end.wait(_NO_JOURNALS_S)
                continue
            if new := new_lines(self._far_journals):
                self._arrived.append(new)
                self._look_now.set()
            self._has_far_journals = not self._far_journals.none_was_read()
            self._end.wait(_POLL_FAR_S)

    def _add(self, new: list[Fields]) -> None:
        if not new:
            return
        if self._events and new[0]["ts_ms"] < self._events[-1]["ts_ms"]:
            merged = sorted([*self._events, *new], key=lambda fields: fields["ts_ms"])
            self._events = deque(merged, maxlen=_KEPT_EVENTS)
        else:
            self._events.extend(new)
        self._is_changed = True
        if any(fields.get("changes") for fields in new):
            self._is_dirty.set()

    def _note_without_journals(
        self, rows: tuple[BrokerRow, ...], controller_id: BrokerId, epoch: int
    ) -> None:
        """Write down what this process sees, in the form of a journal."""
        now, before = _live_ids(rows), _live_ids(self.view.brokers)
        now_ms = round(time.time() * 1000)
        common: dict[str, object] = {
            "ts_ms": now_ms,
            "broker_id": controller_id,
            "controller_epoch": epoch,
            "event_id": now_ms,
            "cause": "seen by the console",
        }
        seen: list[Fields] = []
        if controller_id != NO_CONTROLLER and epoch != self.view.controller_epoch:
            is_first = not self.view.brokers
            event = "Startup" if is_first else "Reelect"
            changes = [f"broker {controller_id}: controller epoch {epoch}"]
            seen.append({**common, "event": event, "elected": epoch, "changes": changes})
        elif self.view.brokers and now != before:
            for name, brokers in (("started", now - before), ("failed", before - now)):
                if brokers:
                    changes = [f"brokers {sorted(brokers)}: {name}"]
                    seen.append(
                        {
                            **common,
                            "event": "BrokerChange",
                            name: sorted(brokers),
                            "changes": changes,
                        }
                    )
        self._add(seen)

    def _missing(
        self,
        source: ZkAdminStore | BootstrapSource,
        registered: Mapping[BrokerId, object],
        file: ClusterFile | None,
    ) -> tuple[MissingBroker, ...]:
        supervised = {} if file is None else file.brokers
        absent = sorted({*supervised, *self._table.assigned} - registered.keys())
        if not absent:
            return ()
        controller = source.read_controller()
        elected_ms = 0 if controller is None else controller.elected_ms
        ends = EndsOfBrokers(source.read_ends(), supervised, self._described, elected_ms)
        return tuple(ends.of(broker_id) for broker_id in absent)


def _new_states(
    admin: ZkAdminStore, orphans: Sequence[DescribedPartition]
) -> Mapping[TopicPartition, DescribedPartition]:
    """Return the partitions whose states have changed; stop where no more of them have."""
    found: dict[TopicPartition, DescribedPartition] = {}
    for few in batches(orphans, _ORPHANS_AT_ONCE):
        states = admin.read_partition_states([p.topic_partition for p in few])
        new = {
            p.topic_partition: replace(p, state=state)
            for p in few
            if isinstance(state := states.get(p.topic_partition), LeaderIsrAndControllerEpoch)
            and state != p.state
        }
        if not new:
            break
        found |= new
    return found


def _differ(before: ClusterView, now: ClusterView) -> bool:
    """Whether a page shows something else now; big parts are the same objects if they are equal."""
    if before.table is not now.table or before.events is not now.events:
        return True
    return replace(before, at_ms=0.0, table=_NO_TABLE, events=()) != replace(
        now, at_ms=0.0, table=_NO_TABLE, events=()
    )


def _live(
    registered: Mapping[BrokerId, BrokerRegistration | BadDataError],
) -> dict[BrokerId, BrokerRegistration]:
    return {b: r for b, r in registered.items() if isinstance(r, BrokerRegistration)}


def _live_ids(rows: tuple[BrokerRow, ...]) -> set[BrokerId]:
    return {row.broker_id for row in rows if row.is_registered}


def _rows(
    registered: Mapping[BrokerId, BrokerRegistration | BadDataError],
    supervised: Mapping[BrokerId, BrokerEntry],
) -> tuple[BrokerRow, ...]:
    rows = []
    for broker_id in sorted({*registered, *supervised}):
        registration, entry = registered.get(broker_id), supervised.get(broker_id)
        address = process = ""
        if isinstance(registration, BrokerRegistration):
            endpoint = next(iter(registration.info.endpoints), None)
            address = "" if endpoint is None else f"{endpoint.host}:{endpoint.port}"
        if entry is not None:
            address = address or f"{entry.host}:{entry.port}"
            process = f"process {entry.pid} {entry.ended}".strip()
        rows.append(BrokerRow(broker_id, broker_id in registered, address, process))
    return tuple(rows)


def _with_missing(
    rows: tuple[BrokerRow, ...], missing: tuple[MissingBroker, ...]
) -> tuple[BrokerRow, ...]:
    known = {row.broker_id for row in rows}
    more = [BrokerRow(m.broker_id, False) for m in missing if m.broker_id not in known]
    return tuple(sorted([*rows, *more], key=lambda row: row.broker_id))
