"""The table of settings: every setting with its name, type, default, limits and meaning.

Names are Kafka's with underscores for dots. Times are in milliseconds and sizes in bytes unless the
name says otherwise. ``config/broker.toml`` and ``docs/configuration.md`` are generated from here
(``python -m regent.config.reference``); ``config.settings_file`` reads files of settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from regent.core.admin.admin_manager import AdminSettings
from regent.core.admin.config_descriptions import DYNAMIC_ONLY
from regent.core.controller.services import ControllerSettings
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.log_config import LOG_SETTINGS, CleanerSettings
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import (
    DAY_MS,
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    Scope,
    Setting,
    setting,
    settings_of,
)

ISR_CHANGES_THROUGH_ZOOKEEPER = "zookeeper"
_PORT = (0, 65_535)
_INT = (0, INT_MAX)
_TIMEOUT = (100, 86_400_000)
_INTERVAL = (1, 86_400_000)
# An answer to a follower must fit into a message of 64 MiB: what it asked for, and one more batch.
_FETCH_BYTES = (1, 32 * 1024 * 1024)


@dataclass(frozen=True)
class BrokerConfig:
    """The table ``[broker]``."""

    host: str = setting(
        "127.0.0.1",
        'The address to listen on: a name, IPv4, or IPv6 without brackets. "0.0.0.0" and "::"'
        " (which takes IPv4 too) listen on all addresses of the machine.",
        ours=True,
    )
    port: int = setting(
        0,
        "The port for Kafka clients. 0 takes any free port; clients need one that they know,"
        " usually 9092.",
        limits=_PORT,
        ours=True,
    )
    control_port: int = setting(
        0,
        "The port for control requests of the controller and for requests of the command line. 0:"
        " any free port, which others learn from ZooKeeper.",
        limits=_PORT,
        ours=True,
    )
    replication_port: int = setting(
        0, "The port that followers fetch from. 0: any free port.", limits=_PORT, ours=True
    )
    metrics_port: int = setting(
        0,
        "The port for Prometheus. 0: any free port. If the port is taken, a free one is used, with"
        " a warning.",
        limits=_PORT,
        ours=True,
    )
    advertised_host: str = setting(
        "",
        "The address at which clients and other brokers find this broker, if that is not host:"
        " behind a published port or an address translation (Kafka's advertised.listeners)."
        " Required when"
        ' host is "0.0.0.0" or "::".',
        ours=True,
    )
    advertised_port: int = setting(
        0, "The Kafka port that clients are told. 0: the real one.", limits=_PORT, ours=True
    )
    advertised_control_port: int = setting(
        0, "The control port that brokers are told. 0: the real one.", limits=_PORT, ours=True
    )
    advertised_replication_port: int = setting(
        0, "The replication port that followers are told. 0: the real one.", limits=_PORT, ours=True
    )
    rack: str = setting(
        "",
        "The rack of this broker; empty: none. The placement strategy rack-aware spreads the"
        " replicas of a partition over racks.",
        prefix="broker.",
    )
    controlled_shutdown_max_retries: int = setting(
        3, "How often a broker that stops asks the controller to move its leaderships."
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        5_000,
        "The pause between these requests. `regent cluster` uses 200 unless its configuration file"
        " has this setting.",
    )
    controlled_shutdown_timeout_ms: int = setting(
        30_000,
        "How long a broker that stops waits for the answer of one request.",
        limits=_TIMEOUT,
        ours=True,
    )
    replica_lag_time_max_ms: int = setting(
        ReplicationSettings.replica_lag_time_max_ms,
        "A follower that has not caught up with its leader for this time leaves the ISR. Checked"
        " twice in this time.",
        limits=_TIMEOUT,
    )
    replica_fetch_wait_max_ms: int = setting(
        ReplicationSettings.replica_fetch_wait_max_ms,
        "How long a leader holds the fetch of a follower that has all records. At most"
        " replica_lag_time_max_ms, and never longer than 3000.",
    )
    replica_fetch_backoff_ms: int = setting(
        ReplicationSettings.replica_fetch_backoff_ms,
        "The pause of a follower after a fetch without an answer, and the longest one after an"
        " error of a partition: there the first is 20 ms, and each further one is twice as long.",
    )
    replica_fetch_min_bytes: int = setting(
        ReplicationSettings.replica_fetch_min_bytes,
        "How many bytes a follower's fetch waits for.",
        limits=_INT,
    )
    replica_fetch_max_bytes: int = setting(
        ReplicationSettings.replica_fetch_max_bytes,
        "How many bytes of one partition a follower's fetch gets. A larger batch is fetched alone.",
        limits=_FETCH_BYTES,
    )
    replica_fetch_response_max_bytes: int = setting(
        ReplicationSettings.replica_fetch_response_max_bytes,
        "How many bytes of all partitions a follower's fetch gets.",
        limits=_FETCH_BYTES,
    )
    isr_change_protocol: str = setting(
        "controller",
        'How leaders change an ISR: with "controller" they send AlterPartition to the controller;'
        ' with "zookeeper" they write the ISR and notify the controller, as before Kafka 2.7. Use'
        " the same for all brokers.",
        choices=("controller", ISR_CHANGES_THROUGH_ZOOKEEPER),
        ours=True,
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a topic is created when a client asks for its metadata."
    )
    num_partitions: int = setting(
        AdminSettings.num_partitions,
        "The number of partitions of a topic that is created without a number.",
        limits=(1, 1_000_000),
    )
    default_replication_factor: int = setting(
        AdminSettings.default_replication_factor,
        "The replication factor of a topic that is created without one.",
        limits=(1, 32_767),
    )
    placement_service: str = setting(
        "",
        'The service that places the topics of clients: "tcp://HOST:PORT", or the path of a'
        ' cluster.json. While it does not answer, or with "", the broker places them itself, by the'
        " same algorithm. `regent cluster` sets this for its brokers.",
        ours=True,
    )
    socket_request_max_bytes: int = setting(
        104_857_600, "The largest request of a client.", limits=_INT
    )
    queued_requests_per_connection: int = setting(
        64,
        "How many requests of one connection are handled at a time; more wait.",
        limits=(1, 100_000),
        ours=True,
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "How many bytes the requests of all clients may take, counted as they arrive. A client that"
        " needs more waits. While one waits, a request of which less than 256 KiB arrive in a"
        " second is given up and its connection closed.",
        limits=_INT,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "How long a client's connection may be silent before it is closed.",
        limits=_INTERVAL,
    )
    max_connections: int = setting(
        INT_MAX,
        "How many connections clients may have. Further ones wait until one ends. 128 file"
        " descriptors are always kept for logs and other brokers.",
        limits=(1, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = setting(
        INT_MAX,
        "How many connections clients at one address may have. Further ones are closed.",
        limits=_INT,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        'The limit of some hosts: "HOST:COUNT,HOST:COUNT".',
        pattern=r"|\s*[^,]+:[0-9]{1,10}\s*(,\s*[^,]+:[0-9]{1,10}\s*)*",
        form="HOST:COUNT,HOST:COUNT,…",
        scope=Scope.CLUSTER_WIDE,
    )


@dataclass(frozen=True)
class ControllerConfig:
    """The table ``[controller]``: the same for all brokers, because each may be elected."""

    unclean_leader_election_enable: bool = setting(
        ControllerSettings.unclean_leader_election_enable,
        "Whether a replica that is not in sync may lead when no other can. Then the partition is"
        " available again, but acknowledged records may be lost. A topic may have its own value.",
        scope=Scope.CLUSTER_WIDE,
    )
    delete_topic_enable: bool = setting(
        ControllerSettings.delete_topic_enable,
        "Whether topics can be deleted. If not, requests to delete one are dropped.",
    )
    auto_leader_rebalance_enable: bool = setting(
        ControllerSettings.auto_leader_rebalance_enable,
        "Whether leaderships return to the preferred replicas by themselves.",
    )
    leader_imbalance_per_broker_percentage: int = setting(
        ControllerSettings.leader_imbalance_per_broker_percentage,
        "Leaderships return when a broker lacks more than this percentage of those it should have.",
        limits=(0, 100),
    )
    leader_imbalance_check_interval_seconds: int = setting(
        ControllerSettings.leader_imbalance_check_interval_seconds,
        "How often the controller checks whether leaderships must return, in seconds.",
        limits=(1, 86_400),
    )
    request_timeout_ms: int = setting(
        30_000,
        "How long a broker may take to answer a control request (Kafka's"
        " controller.socket.timeout.ms).",
        limits=_TIMEOUT,
        ours=True,
        prefix="controller.",
    )
    retry_backoff_ms: int = setting(
        100, "The pause before a control request is sent again.", ours=True, prefix="controller."
    )
    broker_answer_timeout_ms: int = setting(
        ControllerSettings.broker_answer_timeout_ms,
        "A registered broker that answers no control request for this time loses its leaderships"
        " until it answers. 0: never, as in Kafka. Use more than the longest request takes: the"
        " first one after a start lists all replicas.",
        ours=True,
        prefix="controller.",
    )


def _default_of_topics(field_of_topics: str, **changes: Any) -> Any:
    """Return the broker's setting that applies to topics without a value of their own."""
    row = LOG_SETTINGS[field_of_topics]
    changes = {"scope": Scope.CLUSTER_WIDE, "broker_name": None, **changes}
    declared = replace(row.declared, **changes)
    return field(default=row.default, metadata=declared.metadata)


@dataclass(frozen=True)
class LogsConfig:
    """The table ``[log]``: where logs are, their maintenance, and the defaults of topics."""

    log_dirs: str = setting(
        "log",
        "The log directories, separated by commas; relative ones are below --data-dir. When one of"
        " several fails, the broker continues with the others.",
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "How many threads recover the logs of one directory after a crash.",
        limits=(1, 1_000),
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often recovery points are written.", limits=_INTERVAL
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often log start offsets are written.", limits=_INTERVAL
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000, "How often high watermarks are written.", limits=_INTERVAL
    )
    log_flush_scheduler_interval_ms: int = setting(
        3_000, "How often the broker checks which logs must be flushed.", limits=_INTERVAL
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "How often the broker checks which segments are too old.", limits=_INTERVAL
    )
    log_verification_bytes_per_s: int = setting(
        8_388_608,
        "How fast complete segments are read in the background, once a week, to find what a disk"
        " has changed. 0: never. Damaged replicas are fetched again from others. Reads for clients"
        " and followers are always checked.",
        limits=_INT,
        ours=True,
    )
    min_insync_replicas: int = _default_of_topics("min_insync_replicas")
    message_max_bytes: int = _default_of_topics("max_message_bytes")
    log_cleanup_policy: str = _default_of_topics("cleanup_policy")
    log_cleaner_enable: bool = setting(
        CleanerSettings.log_cleaner_enable,
        "Whether logs with cleanup.policy compact are compacted. If not, they grow without a limit,"
        " those of Kafka's own topics too.",
    )
    log_cleaner_backoff_ms: int = setting(
        CleanerSettings.log_cleaner_backoff_ms,
        "How often the broker looks for logs to compact, when there was none.",
        limits=_INTERVAL,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        CleanerSettings.log_cleaner_dedupe_buffer_size,
        "How much memory the keys of one cleaning take. A key takes about 160 bytes (in Kafka 24)."
        " A log with more keys since its last cleaning is compacted in several cleanings.",
        limits=(1_048_576, LONG_MAX),
    )
    log_cleaner_io_buffer_size: int = setting(
        CleanerSettings.log_cleaner_io_buffer_size,
        "How much the log cleaner reads or writes at once: half for each.",
        limits=(1_024, INT_MAX),
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        CleanerSettings.log_cleaner_io_buffer_load_factor,
        "Which part of log.cleaner.dedupe.buffer.size is used.",
        limits=(0.01, 1),
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        CleanerSettings.log_cleaner_io_max_bytes_per_second,
        "How many bytes a second the log cleaner reads and writes on average.",
        limits=(1, DOUBLE_MAX),
    )
    log_cleaner_min_cleanable_ratio: float = _default_of_topics("min_cleanable_dirty_ratio")
    log_cleaner_min_compaction_lag_ms: int = _default_of_topics("min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of_topics("max_compaction_lag_ms")
    log_cleaner_delete_retention_ms: int = _default_of_topics("delete_retention_ms")
    log_retention_ms: int = _default_of_topics("retention_ms")
    log_retention_bytes: int = _default_of_topics("retention_bytes")
    log_segment_delete_delay_ms: int = _default_of_topics(
        "file_delete_delay_ms",
        meaning="How long the files of a dropped segment or a removed log are kept. They are looked"
        " for every 30 s.",
    )
    log_segment_bytes: int = _default_of_topics("segment_bytes")
    log_roll_ms: int = _default_of_topics("segment_ms")
    log_roll_jitter_ms: int = _default_of_topics("segment_jitter_ms")
    log_index_size_max_bytes: int = _default_of_topics("segment_index_bytes")
    log_index_interval_bytes: int = _default_of_topics("index_interval_bytes")
    log_flush_interval_messages: int = _default_of_topics("flush_messages")
    log_flush_interval_ms: int = _default_of_topics("flush_ms")
    log_message_downconversion_enable: bool = _default_of_topics("message_downconversion_enable")
    log_message_timestamp_type: str = _default_of_topics("message_timestamp_type")
    log_message_timestamp_after_max_ms: int = _default_of_topics("message_timestamp_after_max_ms")
    log_message_timestamp_before_max_ms: int = _default_of_topics("message_timestamp_before_max_ms")
    log_message_timestamp_difference_max_ms: int = _default_of_topics(
        "message_timestamp_difference_max_ms"
    )


@dataclass(frozen=True)
class GroupsConfig:
    """The table ``[groups]``: groups of consumers, and the topic ``__consumer_offsets``."""

    group_min_session_timeout_ms: int = setting(
        GroupConfig.group_min_session_timeout_ms,
        "The shortest session timeout that a member of a group may have.",
    )
    group_max_session_timeout_ms: int = setting(
        GroupConfig.group_max_session_timeout_ms,
        "The longest session timeout that a member of a group may have.",
        limits=_INT,
    )
    group_initial_rebalance_delay_ms: int = setting(
        GroupConfig.group_initial_rebalance_delay_ms,
        "How long an empty group waits for more members after the first has come, and again after"
        " each further one. The clusters of regent.testing do not wait.",
    )
    group_max_size: int = setting(
        GroupConfig.group_max_size, "How many members a group may have.", limits=(1, INT_MAX)
    )
    offset_metadata_max_bytes: int = setting(
        GroupConfig.offset_metadata_max_bytes,
        "How many characters of metadata a position may have.",
        limits=_INT,
    )
    offsets_topic_num_partitions: int = setting(
        50,
        "The number of partitions of __consumer_offsets, which is created when the first group"
        " comes. It must not change later.",
        limits=(1, 1_000_000),
    )
    offsets_topic_replication_factor: int = setting(
        3,
        "The replication factor of __consumer_offsets. While fewer brokers live, it is not created,"
        " and groups have no coordinator. `regent cluster` uses the number of its brokers if there"
        " are fewer than 3.",
        limits=(1, 32_767),
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "The segment size of __consumer_offsets.", limits=(14, INT_MAX)
    )
    offsets_topic_compression_codec: int = setting(
        0,
        "How the records of __consumer_offsets are compressed: 0 not, 1 gzip, 2 snappy, 3 lz4,"
        " 4 zstd.",
        limits=(0, 4),
    )
    offsets_load_buffer_size: int = setting(
        GroupLogSettings.offsets_load_buffer_size,
        "How many bytes of __consumer_offsets a broker that becomes coordinator reads at a time.",
        limits=(1, INT_MAX),
    )
    offsets_commit_timeout_ms: int = setting(
        GroupLogSettings.offsets_commit_timeout_ms,
        "How long a commit waits until the replicas of __consumer_offsets have it.",
        limits=(1, DAY_MS),
    )
    offsets_retention_minutes: int = setting(
        GroupConfig.offsets_retention_minutes,
        "How long the positions of a group are kept after its last member has left, and those of a"
        " group without members after their last commit.",
        limits=(1, INT_MAX),
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often expired positions are looked for.", limits=_INTERVAL
    )


@dataclass(frozen=True)
class TransactionsConfig:
    """The table ``[transactions]``: transactional producers, and ``__transaction_state``."""

    transaction_max_timeout_ms: int = setting(
        TransactionConfig.transaction_max_timeout_ms,
        "The longest time that a producer may ask for its transactions. After its time an open"
        " transaction is aborted.",
        limits=(1, INT_MAX),
    )
    transactional_id_expiration_ms: int = setting(
        TransactionConfig.transactional_id_expiration_ms,
        "How long a transactional id is remembered after its last use.",
        limits=(1, INT_MAX),
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "How often transactions are looked for that took too long.", limits=_INTERVAL
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "How often transactional ids are looked for that expired.", limits=_INTERVAL
    )
    transaction_state_log_num_partitions: int = setting(
        50,
        "The number of partitions of __transaction_state, which is created when the first"
        " transactional producer comes. It must not change later.",
        limits=(1, 1_000_000),
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "The replication factor of __transaction_state. While fewer brokers live, it is not"
        " created, and transactions have no coordinator. `regent cluster` uses the number of its"
        " brokers if there are fewer than 3.",
        limits=(1, 32_767),
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "The min.insync.replicas of __transaction_state. `regent cluster` uses 1 if it has one"
        " broker.",
        limits=(1, 32_767),
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "The segment size of __transaction_state.", limits=(14, INT_MAX)
    )
    transaction_state_log_load_buffer_size: int = setting(
        TransactionLogSettings.transaction_state_log_load_buffer_size,
        "How many bytes of __transaction_state a broker that becomes coordinator reads at a time.",
        limits=(1, INT_MAX),
    )
    transaction_partition_verification_enable: bool = setting(
        True,
        "Whether a broker asks the coordinator if a partition is part of a transaction before it"
        " accepts the first records or positions of the transaction (KIP-890).",
    )


@dataclass(frozen=True)
class ZooKeeperConfig:
    """The table ``[zookeeper]``."""

    session_timeout_ms: int = setting(
        6_000,
        "A broker that sends nothing to ZooKeeper for this time counts as dead. A crash is noticed"
        " at once by the guardian process; this timeout is for failures of machines and networks.",
        limits=_TIMEOUT,
        prefix="zookeeper.",
    )
    connection_timeout_ms: int = setting(
        18_000,
        "How long a broker that starts tries to reach ZooKeeper.",
        limits=_TIMEOUT,
        prefix="zookeeper.",
    )


_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True)
class LoggingConfig:
    """The table ``[logging]``."""

    level: str = setting(
        "INFO",
        "The lowest level of the lines in broker.log.",
        choices=_LEVELS,
        ours=True,
        prefix="logging.",
    )
    levels: Mapping[str, str] = setting(
        {"kazoo": "WARNING", "pykka": "WARNING"},
        'The level of single loggers. "state.change" at DEBUG has a line for each partition and'
        ' replica; the others are modules, such as "regent.core.controller".',
        choices=_LEVELS,
        ours=True,
        prefix="logging.",
    )


@dataclass(frozen=True)
class Settings:
    """All settings of one process: a field for each table.

    ``given`` names those that a file or the command line has, as ``table.name``; the others have
    their defaults.
    """

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    log: LogsConfig = field(default_factory=LogsConfig)
    groups: GroupsConfig = field(default_factory=GroupsConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    given: frozenset[str] = field(default=frozenset(), compare=False)


TABLES = tuple(table.name for table in fields(Settings) if table.name != "given")
"""The names of the tables."""


def rows() -> Iterator[tuple[str, Setting]]:
    """Yield every setting after the name of its table."""
    for table in TABLES:
        yield from ((table, row) for row in settings_of(getattr(Settings(), table)))


KAFKA_SETTINGS: Final[Mapping[str, Setting]] = {
    **{row.kafka_name: row for _, row in rows() if row.kafka_name is not None},
    **DYNAMIC_ONLY,
}
"""The settings of brokers by Kafka's names, with those that are only in ZooKeeper."""


def _option_name(table: str, row: Setting) -> str:
    return "log_level" if (table, row.name) == ("logging", "level") else row.name


SETTING_OPTIONS: Final[dict[str, tuple[str, Setting]]] = {
    _option_name(table, row): (table, row)
    for table, row in rows()
    if not isinstance(row.default, Mapping)
}
"""Tables and settings by the names of the options of ``regent broker``."""
