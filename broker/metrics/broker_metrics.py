"""The metrics of a broker, read on request from the counters of their owners.

Nothing is measured twice. The names are those that the usual dashboards for Kafka query;
docs/metrics.md has all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from regent.actors.broker import BrokerState, BrokerStatus, BrokerView
from regent.actors.controller_event_manager import ControllerView
from regent.actors.watchdog import Watchdog
from regent.broker.metrics.controller_metrics import controller_metrics
from regent.broker.metrics.metric_table import Family, MetricTable, counter, gauge, summary
from regent.broker.metrics.recent import Recent
from regent.broker.metrics.replication_metrics import (
    PURGATORY,
    fetcher_metrics,
    replication_metrics,
)
from regent.cluster.guardian import Guardian
from regent.config.threads import UNEXPECTED_ERRORS
from regent.core.security.acl_cache import AclCache
from regent.storage.compaction.log_cleaner import CleanerStats
from regent.storage.compaction.log_cleaner_manager import LogCleanerManager
from regent.storage.disk_space import DiskSpace
from regent.storage.log.open_files import OpenFiles
from regent.storage.log_manager import LogManager
from regent.transport.control.server import ControlServer
from regent.transport.local_users import LocalUsers
from regent.zk.client.session import SessionKeeper
from regent.zk.client.zookeeper import SessionStatistics

_STATES: Final = {
    BrokerState.NOT_RUNNING: 0,
    BrokerState.STARTING: 1,
    BrokerState.RUNNING_AS_BROKER: 3,
    BrokerState.RUNNING_AS_CONTROLLER: 3,  # as in Kafka since 2.8
    BrokerState.PENDING_CONTROLLED_SHUTDOWN: 6,
    BrokerState.BROKER_SHUTTING_DOWN: 7,
}
_IO: Final = "/proc/self/io"


class PlacementCounts(Protocol):
    """How often new topics were placed."""

    placements: int
    failures: int


SESSION_STATE: Final = MetricTable[int](
    "kafka.server:type=SessionExpireListener,name=",
    gauge("SessionState", "1 for the state"),
    labels=("state",),
)
SESSION: Final = MetricTable[SessionStatistics](
    "kafka.server:type=SessionExpireListener,name=",
    counter("ZooKeeperSyncConnectsPerSec", "connections made", "connects"),
    counter("ZooKeeperDisconnectsPerSec", "connections lost", "disconnects"),
    counter("ZooKeeperExpiresPerSec", "sessions that ended", "expires"),
    counter(
        "ZooKeeperAuthFailuresPerSec", "none: a broker does not log in to ZooKeeper", lambda _: 0
    ),
)
ZOOKEEPER_REQUESTS: Final = MetricTable[SessionStatistics](
    "kafka.server:type=ZooKeeperClientMetrics,name=",
    summary(
        "ZooKeeperRequestLatencyMs",
        "calls to ZooKeeper, of any size, in milliseconds",
        "request_latency",
    ),
)
FAILED_DIRECTORIES: Final = MetricTable[LogManager](
    "kafka.log:type=LogManager,name=",
    gauge(
        "OfflineLogDirectoryCount",
        "log directories that have failed",
        lambda logs: len(logs.failed_directories),
    ),
)
DIRECTORIES: Final = MetricTable[DiskSpace](
    "",
    gauge(
        "regent_log_directory_total_bytes",
        "size of the file system of a log directory",
        lambda space: space.room().total_bytes,
    ),
    gauge(
        "regent_log_directory_free_bytes",
        "what the broker may still use of it",
        lambda space: space.room().usable_bytes,
    ),
    gauge(
        "regent_log_directory_filled_bytes_per_s",
        "how fast it fills, in the last hour; below 0: it empties",
        lambda space: space.filled_per_s() or 0.0,
    ),
    gauge(
        "regent_log_directory_refuses_producers",
        "1 while less than `log_dir_min_free_bytes` is free",
        lambda space: bool(space.min_free_bytes and space.why_refused()),
    ),
    labels=("logdirectory",),
)
STRAYS: Final = MetricTable[LogManager](
    "kafka.server:type=ReplicaManager,name=",
    gauge(
        "StrayPartitionsCount",
        "stray logs: they are in a log directory, but belong to no replica",
        lambda logs: len(logs.strays),
        details="[operations.md](operations.md). Of Confluent Server",
    ),
)
OPEN_FILES: Final = MetricTable[OpenFiles](
    "",
    gauge("regent_open_log_files", "files of logs that are open", len),
    gauge(
        "regent_open_log_files_max",
        "with more, files that are not used are closed",
        "limit",
        details="`log_open_files_max`",
    ),
    counter("regent_log_files_opened_total", "files of logs opened", "opened"),
    counter(
        "regent_log_files_closed_early_total",
        "files of logs closed because others had to be opened",
        "closed_early",
        details="if it grows as fast as the files opened, the limit is low",
    ),
)
CLEANER_MANAGER: Final = MetricTable[LogCleanerManager](
    "kafka.log:type=LogCleanerManager,name=",
    gauge(
        "max-dirty-percent",
        "the dirty part of the dirtiest log, when a log to clean was last looked for",
        lambda cleaner: int(100 * cleaner.max_dirty_ratio),
    ),
    gauge(
        "time-since-last-run-ms",
        "milliseconds since a log to clean was looked for",
        "time_since_last_run_ms",
    ),
)
CLEANER: Final = MetricTable[CleanerStats](
    "kafka.log:type=LogCleaner,name=",
    gauge(
        "cleaner-recopy-percent",
        "how much of its log the last cleaning kept",
        lambda last: 100 * last.bytes_written // max(last.bytes_read, 1),
    ),
    gauge(
        "max-buffer-utilization-percent",
        "how much of log.cleaner.dedupe.buffer.size the last cleaning used",
        lambda last: int(100 * last.map_utilization),
    ),
    gauge(
        "max-clean-time-secs", "how long the last cleaning took", lambda last: int(last.elapsed_s)
    ),
)
UNCLEANABLE: Final = MetricTable[int](
    "kafka.log:type=LogCleanerManager,name=",
    gauge(
        "uncleanable-partitions-count", "logs that are not cleaned any more, because that failed"
    ),
    labels=("logdirectory",),
)
STATE: Final = MetricTable[BrokerStatus](
    "kafka.server:type=KafkaServer,name=",
    gauge(
        "BrokerState",
        "the state, by Kafka's numbers: 3 is running",
        lambda status: _STATES[status.state],
        details="1 starting, 6 controlled shutdown, 7 shutting down",
    ),
)
DISKS: Final = MetricTable[Mapping[str, str]](
    "kafka.server:type=KafkaServer,name=",
    counter(
        "linux-disk-read-bytes",
        "bytes that this process has read from disks",
        lambda counts: int(counts["read_bytes"]),
    ),
    counter(
        "linux-disk-write-bytes",
        "bytes that this process has written to disks",
        lambda counts: int(counts["write_bytes"]),
    ),
)
REJECTED: Final = MetricTable[int](
    "",
    counter(
        "regent_rejected_frames_total",
        "malformed or refused messages",
        details="on the control port",
    ),
    labels=("reason",),
)
UNAUTHORIZED: Final = MetricTable[int](
    "",
    counter(
        "regent_control_requests_unauthorized",
        "control requests that were refused because their sender may not send them",
        details="the sender is the name of its key: `broker-N`, or an operator's",
    ),
    labels=("sender",),
)
ACLS: Final = MetricTable[AclCache](
    "",
    gauge(
        "regent_acls_damaged",
        "resources, or prefixes of their names, with ACLs in ZooKeeper that cannot be read",
        "damaged",
        details="they are denied to all but super users; `broker.log` names the znodes",
    ),
)
OVERDONE: Final = MetricTable[int](
    "",
    counter(
        "regent_control_requests_overdone",
        "control requests that were refused because their sender causes too much work",
        details="the sender is a broker; see [security.md](security.md) (The control port)",
    ),
    labels=("sender",),
)
CONTROL_REQUESTS: Final = MetricTable[int](
    "",
    counter(
        "regent_control_requests_total",
        "requests at the control port",
        details="of controllers, of other brokers and of commands, by Kafka's names, such as"
        " `LeaderAndIsr`; `DescribeMetadata` and other requests that Kafka does not have are"
        " those of commands",
    ),
    labels=("request",),
)
ERRORS: Final = MetricTable[int](
    "",
    counter(
        "regent_unexpected_errors_total",
        "messages and callbacks that failed, and threads that ended by an error",
        details="of all actors, timers and threads of the process",
    ),
)
REFUSED: Final = MetricTable[int](
    "",
    counter(
        "regent_connections_refused",
        "connections of other users of this machine that were closed",
        details="`local_users`",
    ),
    labels=("listener", "reason"),
)
STUCK: Final = MetricTable[Watchdog](
    "",
    counter("regent_stuck_actors_total", "actors found stuck", "incidents"),
)
PLACEMENTS: Final = MetricTable[PlacementCounts](
    "",
    counter("regent_topic_placements_total", "placements of topics for clients", "placements"),
    counter(
        "regent_topic_placement_failures_total",
        "placements that the placement service refused, or could not make",
        "failures",
    ),
)
GUARDIAN: Final = MetricTable[Guardian](
    "",
    gauge(
        "regent_guardian_up",
        "1: a crash of this broker is seen at once; 0: when its session times out",
        "is_alive",
    ),
    counter(
        "regent_guardian_replacements_total",
        "guardians that died and were replaced",
        "replacements",
    ),
)


class BrokerMetrics:
    """Collects one broker's metrics from its parts."""

    def __init__(
        self,
        broker: BrokerView,
        logs: LogManager,
        controller: ControllerView,
        keeper: SessionKeeper,
        server: ControlServer,
        status: BrokerStatus,
        watchdog: Watchdog,
        users: LocalUsers,
        acls: AclCache | None = None,
    ) -> None:
        self._broker = broker
        self._logs = logs
        self._keeper = keeper
        self._controller = controller
        self._server = server
        self._status = status
        self._watchdog = watchdog
        self._users = users
        self._acls = acls
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        recent, logs = self._recent, self._logs
        yield from controller_metrics(self._controller, recent)
        yield from SESSION_STATE.of(1, recent, self._keeper.state.name)
        yield from SESSION.of(self._keeper.statistics, recent)
        yield from ZOOKEEPER_REQUESTS.of(self._keeper.statistics, recent)
        yield from replication_metrics(self._broker.replica_manager, recent)
        yield from fetcher_metrics(self._broker.fetchers, recent)
        yield from directory_metrics(logs, recent)
        yield from OPEN_FILES.of(logs.files, recent)
        yield from log_cleaner_metrics(logs.cleaner, logs.directories, recent)
        yield from STRAYS.of(logs, recent)
        yield from STATE.of(self._status, recent)
        rejected = self._server.rejected.counts.items()
        yield from REJECTED.families((((why.value,), count) for why, count in rejected), recent)
        unauthorized = self._server.unauthorized.copy().items()
        yield from UNAUTHORIZED.families((((name,), n) for name, n in unauthorized), recent)
        overdone = self._server.overdone.copy().items()
        yield from OVERDONE.families((((name,), n) for name, n in overdone), recent)
        requests = self._server.requests.copy().items()
        yield from CONTROL_REQUESTS.families(
            ((("".join(map(str.capitalize, key.name.split("_"))),), n) for key, n in requests),
            recent,
        )
        yield from ERRORS.of(UNEXPECTED_ERRORS.count, recent)
        yield from STUCK.of(self._watchdog, recent)
        refused = self._users.refused.copy().items()
        yield from REFUSED.families((((port, "user"), n) for port, n in refused), recent)
        if self._acls is not None:
            yield from ACLS.of(self._acls, recent)
        yield from DISKS.families(_disk_counts(), recent)


def directory_metrics(logs: LogManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of the log directories and their file systems."""
    yield from FAILED_DIRECTORIES.of(logs, recent)
    spaces = [((str(space.path),), space) for space in logs.spaces]
    yield from DIRECTORIES.families(spaces, recent)


def log_cleaner_metrics(
    cleaner: LogCleanerManager, directories: Collection[Path], recent: Recent
) -> Iterable[Family]:
    """Yield the metrics of the log cleaner."""
    yield from CLEANER_MANAGER.of(cleaner, recent)
    yield from CLEANER.of(cleaner.last_stats, recent)
    counts = cleaner.uncleanable_partitions()
    yield from UNCLEANABLE.families(
        (((str(path),), counts.get(path, 0)) for path in sorted(directories)), recent
    )


def _disk_counts() -> Iterable[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield what this process has read from and written to disks, if the kernel tells it."""
    with suppress(OSError, ValueError), open(_IO, encoding="ascii") as file:
        yield (), dict(line.split(": ") for line in file.read().splitlines())


class TopicRequestCounts(Protocol):
    """The counters of ``broker.topic_service.BrokerTopicService``."""

    @property
    def placement(self) -> PlacementCounts:
        """The counters of placements for clients."""
        ...

    @property
    def pending_count(self) -> int:
        """The number of requests that wait."""
        ...


class TopicMetrics:
    """Requests that wait, and placements of new topics with and without the service."""

    def __init__(self, topics: TopicRequestCounts) -> None:
        self._topics = topics
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield from PURGATORY.of(self._topics.pending_count, self._recent, "topic")
        yield from PLACEMENTS.of(self._topics.placement, self._recent)


class GuardianMetrics:
    """Whether this broker's guardian runs, and how often it was replaced."""

    def __init__(self, guardian: Guardian) -> None:
        self._guardian = guardian
        self._recent = Recent()

    def collect(self) -> Iterable[Family]:
        """Yield every metric with its present value."""
        yield from GUARDIAN.of(self._guardian, self._recent)
