"""Every setting has an effect: its check gives another result when the setting is changed.

Each setting has a check at the lowest level that can show it. Values come from the loader and go
through the mappings that the broker uses. A setting without a check fails.
"""

from __future__ import annotations

import ast
import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias
from unittest.mock import patch

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from regent.actors.controller_event_manager import ControllerListener
from regent.actors.scheduler import Scheduler
from regent.broker.broker_controller import BrokerController
from regent.broker.broker_process import BrokerOptions, BrokerProcess
from regent.broker.broker_registration import AdvertisedListeners
from regent.broker.broker_storage import BrokerStorage
from regent.broker.controlled_shutdown import hand_over
from regent.broker.kafka_endpoint import KafkaEndpoint
from regent.broker.listener_security import ListenerKeys, controllers_of_kafka
from regent.broker.machine_settings import (
    broker_passwords,
    controller_settings,
    dynamic_values,
    filled,
    log_defaults,
)
from regent.broker.placement_client import placement_finder
from regent.broker.topic_service import BrokerTopicService
from regent.cli.broker import _log_to
from regent.config.addresses import port_of
from regent.config.settings import Settings, rows
from regent.config.settings_file import load_settings
from regent.core.admin.config_problems import base_name
from regent.core.admin.topic_settings import TOPIC_SETTINGS
from regent.core.controller.controller import Controller
from regent.core.controller.effects import ScheduleEvent
from regent.core.controller.events import CheckBrokers, RegisterBrokerAndReelect
from regent.core.controller.states import PartitionState
from regent.core.errors import Errors, RecordsRefusedError, RegentError
from regent.core.log_config import DEFAULT_LOG_CONFIG, TOPIC_LOG_SETTINGS, CleanerSettings
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import ControlledShutdownRequest, ControlledShutdownResponse
from regent.core.protocol.messages.topics import CreatableTopicResult
from regent.core.protocol.topics import TopicResult, TopicsRequest, error_of, results_of
from regent.core.quota.client_quota_manager import ControllerMutationQuotaManager, QuotaClient
from regent.core.quota.quota_config import QuotaConfig
from regent.core.quota.quota_managers import QuotaManagers
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import DOUBLE_MAX, LONG_MAX, Scope, text_of
from regent.records.record_batch import batches_of_producer
from regent.storage.log.log_contents import SegmentSpan, segments_to_delete, with_jitter
from regent.storage.log.unified_log import UnifiedLog
from regent.testing.waits import scaled
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.kafka.metrics import Closed
from regent.zk.codecs.encoded_passwords import encode_password
from regent.zk.stores.controller_store import ZkControllerStore
from tests.core.replication.record_stage import RecordBroker
from tests.support.controller_parts import Candidate, ControllerParts, of_type
from tests.support.disk_logs import Machine, create, files, fill, log_of, send
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.followed_configs import reconfigurables
from tests.support.free_ports import free_ports, on_free_ports
from tests.support.keys import KEYS, context_for_test, everybody_is_broker
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import TIMESTAMP_MS, batch, keyed_batch, records_of
from tests.support.served_endpoint import ServedEndpoint
from tests.support.stage import TIMEOUT_S
from tests.support.topic_requests import creatable, create_topics, delete_topics
from tests.support.world import T0, TopicIds, World, broker_info, live_broker
from tests.transport.kafka.raw_client import RawClient, request_bytes

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000


class Place(NamedTuple):
    """The context of a check; ``undo`` stops what it starts."""

    path: Path
    undo: ExitStack


Look: TypeAlias = Callable[[Settings, Place], object]
"""Returns what is seen with the settings."""

KEY_PASSWORD = "listener.name.one.ssl.key.password"
_NOT_LOOKED_AT = object()


class Effect(NamedTuple):
    """Another value of a setting, and the results with the default and with that value."""

    value: Any
    look: Look
    by_default: object
    changed: object
    others: Mapping[str, Any] = {}  # settings of the same table in both runs


# --- logs -----------------------------------------------------------------------------------------


def machine(settings: Settings, place: Place) -> Machine:
    """Return a broker's logs with the configured defaults."""
    found = Machine(
        place.path, defaults=log_defaults(settings), cleaner=filled(CleanerSettings, settings)
    )
    place.undo.callback(found.end)
    found.start()
    return found


def segments(settings: Settings, place: Place) -> int:
    """Return how many segments six batches of 5,000 bytes have, one a second."""
    logs = machine(settings, place)
    log = create(logs.logs)
    for second in range(6):
        logs.clock.now_ms = TIMESTAMP_MS + second * 1_000
        send(log, bytes(5_000), timestamp_ms=logs.clock.now_ms)
    return len(files(log.path))


def index_entries(settings: Settings, place: Place) -> int:
    """Return how many entries the index of six batches has."""
    logs = machine(settings, place)
    log = create(logs.logs)
    fill(log, 6)
    logs.logs.close(is_clean=True)
    return sum(path.stat().st_size for path in log.path.glob("*.index")) // 8


def flushed(settings: Settings, place: Place) -> int:
    """Return the flushed offset one second after six batches."""
    logs = machine(settings, place)
    log = create(logs.logs)
    fill(log, 6)
    logs.clock.now_ms += 1_000
    logs.logs.flush()
    return log.recovery_point


def deleted(settings: Settings, _: Place) -> int:
    """Return how many of two segments of 100 bytes are deleted after an hour."""
    spans = [SegmentSpan(10, 100, 0), SegmentSpan(20, 100, 0)]
    config = log_defaults(settings)
    return segments_to_delete(spans, config, log_start_offset=0, limit=20, now_ms=HOUR_MS)


def cleaned_to(settings: Settings, place: Place) -> int:
    """Return up to where a compacted log of 7 segments is cleaned an hour after its records."""
    logs = machine(settings, place)
    log = create(logs.logs)
    fill_keyed(log, 7)
    clean(logs, HOUR_MS)
    return log.first_dirty


def tombstones_left(settings: Settings, place: Place) -> bool:
    """Return whether the second of two cleanings, an hour apart, leaves a tombstone."""
    logs = machine(settings, place)
    log = create(logs.logs)
    log.append_as_leader(bytearray(keyed_batch((b"key", None))), 0)
    fill_keyed(log, 3)
    clean(logs, 0)
    fill_keyed(log, 3)
    clean(logs, HOUR_MS)
    data = log.read(0, 1 << 20, log.log_end_offset, at_least_one=True).read()
    return records_of(data)[0].value is None


def is_producer_known(settings: Settings, place: Place) -> bool:
    """Return whether a producer is known an hour after its record."""
    logs = machine(settings, place)
    log = create(logs.logs)
    send(log, b"record", producer_id=7, producer_epoch=0, base_sequence=0)
    logs.clock.now_ms = TIMESTAMP_MS + HOUR_MS
    logs.logs.clean_up()
    return log.last_of_producer(7) is not None


def fill_keyed(log: UnifiedLog, count: int) -> None:
    """Append segments of one record, all with the same key."""
    for _ in range(count):
        with log.exclusively() as contents:
            contents.roll(contents.log_end_offset, 0)
        send(log, b"value", key=b"other")


def clean(logs: Machine, later_ms: int) -> None:
    logs.clock.now_ms += later_ms
    logs.logs.checkpoint_high_watermarks({T0: log_of(logs.logs).log_end_offset})
    logs.logs.cleaner.clean_all()


def largest_read(settings: Settings, place: Place) -> int:
    """Return the most bytes that a cleaning of ten records of 5,000 bytes reads at once."""
    logs = machine(settings, place)
    log = create(logs.logs)
    for number in range(10):
        send(log, bytes(5_000), key=b"%d" % number)
    fill_keyed(log, 1)
    pread, sizes = os.pread, [0]

    def watched(fd: int, size: int, at: int) -> bytes:
        sizes.append(size)
        return pread(fd, size, at)

    with patch.object(os, "pread", watched):
        clean(logs, 0)
    return max(sizes)


def keys_of_a_cleaning(settings: Settings, place: Place) -> int:
    return machine(settings, place).logs.cleaner.new_map().max_keys


def long_tasks(settings: Settings, place: Place) -> Mapping[str, tuple[Callable[[], object], int]]:
    storage = storage_of(settings, place)
    return storage.long_tasks(ReplicaManager(1, storage.logs, MetadataCache()))


def is_cleaned(settings: Settings, place: Place) -> bool:
    return "log-cleaner" in long_tasks(settings, place)


def cleaner_backoff_ms(settings: Settings, place: Place) -> int:
    return long_tasks(settings, place)["log-cleaner"][1]


def removed_logs_left(settings: Settings, place: Place) -> int:
    """Return how many directories a log has two minutes after its deletion."""
    logs = machine(settings, place)
    create(logs.logs)
    logs.logs.delete(T0)
    logs.clock.now_ms += 120_000
    logs.logs.purge(lambda _: True)
    return len(list(place.path.glob("*-delete")))


def refused(settings: Settings, off_by_ms: int = 0) -> Errors | None:
    """Return the error of a batch whose timestamp differs by ``off_by_ms``."""
    records = batch(b"record", timestamp_ms=TIMESTAMP_MS + off_by_ms)
    try:
        batches_of_producer(records, log_defaults(settings), TIMESTAMP_MS)
    except RecordsRefusedError as error:
        return error.error_code
    return None


def append_time(settings: Settings, place: Place) -> int:
    """Return the timestamp of an appended record; -1: its own."""
    return send(create(machine(settings, place).logs), b"record").log_append_time_ms


def acknowledged_by_one(settings: Settings, _: Place) -> bool:
    """Return whether a leader alone in the ISR accepts acks=all."""
    leader = RecordBroker(logs=MemoryLogs(defaults=log_defaults(settings)))
    leader.apply(1, 0, isr=(1,))
    return leader.produce(b"record").answer[T0].error_code is Errors.NONE


def converts_records(settings: Settings, _: Place) -> bool:
    """Return whether old clients get the records of a partition."""
    leader = RecordBroker(logs=MemoryLogs(defaults=log_defaults(settings)))
    leader.apply(1, 0, isr=(1,))
    return leader.manager.converts_records(T0)


def intervals(task: str) -> Look:
    """Return a check of how often a task runs."""

    def look(settings: Settings, place: Place) -> int:
        storage = BrokerStorage(1, settings, place.path)
        manager = ReplicaManager(1, storage.logs, MetadataCache())
        named = {getattr(done, "__name__", ""): ms for done, ms in storage.upkeep(manager).items()}
        return named[task]

    return look


def storage_of(settings: Settings, place: Place) -> BrokerStorage:
    storage = BrokerStorage(1, settings, place.path)
    place.undo.callback(storage.close)
    storage.open()
    return storage


def directories(settings: Settings, place: Place) -> list[str]:
    storage_of(settings, place)
    return sorted(path.name for path in place.path.iterdir())


def is_verified(settings: Settings, place: Place) -> bool:
    """Return whether logs are verified in the background."""
    storage = storage_of(settings, place)
    storage.start_maintenance(ReplicaManager(1, storage.logs, MetadataCache()), lambda: None)
    return any("log-verification" in thread.name for thread in threading.enumerate())


def open_files(settings: Settings, place: Place) -> int:
    """Return how many files of ten logs stay open."""
    logs = storage_of(settings, place).logs
    for number in range(10):
        log = logs.get_or_create(T0._replace(partition=number), None, is_new=True)
        log.append_as_leader(bytearray(batch(b"record")), 0)
    return len(logs.files)


def loading_threads(settings: Settings, place: Place) -> bool:
    """Return whether logs are loaded by several threads."""
    former = storage_of(settings, place)
    former.logs.get_or_create(T0, None, is_new=True)
    former.close()
    names: list[str] = []
    threading.setprofile(lambda *_: names.append(threading.current_thread().name))
    try:
        storage_of(settings, place)
    finally:
        threading.setprofile(None)
    return any(name.startswith("logs") for name in names)


def refused_for_room(settings: Settings, place: Place) -> bool:
    """Return whether producers are refused on this machine's disk, of which nobody has so much."""
    return any(space.why_refused() for space in storage_of(settings, place).logs.spaces)


def said_of_space(settings: Settings, place: Place) -> str:
    """Return what the broker says of a file system of which half is used."""
    half_used: Any = SimpleNamespace(f_blocks=100, f_frsize=2**30, f_bavail=50)
    storage = storage_of(settings, place)
    for space in storage.logs.spaces:
        space.statvfs = lambda _: half_used
    return " ".join(storage.warnings())


ALL_WARN = {"log_dir_warning_percent": 1}
COMPACT = {"log_cleanup_policy": "compact"}

LOGS: dict[str, Effect] = {
    "log_dirs": Effect("one,two", directories, ["log"], ["one", "two"]),
    "num_recovery_threads_per_data_dir": Effect(2, loading_threads, False, True),
    "log_flush_offset_checkpoint_interval_ms": Effect(
        7, intervals("checkpoint_recovery_points"), 60_000, 7
    ),
    "log_flush_start_offset_checkpoint_interval_ms": Effect(
        7, intervals("checkpoint_log_start_offsets"), 60_000, 7
    ),
    "replica_high_watermark_checkpoint_interval_ms": Effect(
        7, intervals("checkpoint_high_watermarks"), 5_000, 7
    ),
    "log_flush_scheduler_interval_ms": Effect(7, intervals("flush"), 3_000, 7),
    "log_retention_check_interval_ms": Effect(7, intervals("clean_up"), 300_000, 7),
    "log_verification_bytes_per_s": Effect(0, is_verified, True, False),
    "log_open_files_max": Effect(3, open_files, 10, 3),
    "log_dir_min_free_bytes": Effect(LONG_MAX, refused_for_room, False, True),
    "log_dir_warning_percent": Effect(
        1, lambda s, p: "nearly full" in said_of_space(s, p), False, True, {"log_dirs": "log"}
    ),
    "log_dir_critical_percent": Effect(
        1, lambda s, p: "almost full" in said_of_space(s, p), False, True, ALL_WARN
    ),
    "log_cleanup_policy": Effect("compact", deleted, 2, 0, {"log_retention_ms": 1}),
    "log_cleaner_enable": Effect(False, is_cleaned, True, False),
    "log_cleaner_backoff_ms": Effect(7, cleaner_backoff_ms, 15_000, 7),
    "log_cleaner_dedupe_buffer_size": Effect(1_600_000, keys_of_a_cleaning, 754_974, 9_000),
    "log_cleaner_io_buffer_load_factor": Effect(0.5, keys_of_a_cleaning, 754_974, 419_430),
    "log_cleaner_io_buffer_size": Effect(20_000, largest_read, 50_710, 10_000, COMPACT),
    "log_cleaner_io_max_bytes_per_second": Effect(
        5.0, lambda s, p: machine(s, p).logs.cleaner.throttle.bytes_per_s, DOUBLE_MAX, 5.0
    ),
    "log_cleaner_min_cleanable_ratio": Effect(1.0, cleaned_to, 6, -1, COMPACT),
    "log_cleaner_min_compaction_lag_ms": Effect(2 * HOUR_MS, cleaned_to, 6, -1, COMPACT),
    "log_cleaner_max_compaction_lag_ms": Effect(
        HOUR_MS - 1, cleaned_to, -1, 6, {**COMPACT, "log_cleaner_min_cleanable_ratio": 1.0}
    ),
    "log_cleaner_delete_retention_ms": Effect(1, tombstones_left, True, False, COMPACT),
    "min_insync_replicas": Effect(2, acknowledged_by_one, True, False),
    "message_max_bytes": Effect(50, lambda s, _: refused(s), None, Errors.MESSAGE_TOO_LARGE),
    "producer_id_expiration_ms": Effect(HOUR_MS, is_producer_known, True, False),
    "log_retention_ms": Effect(HOUR_MS - 1, deleted, 0, 2),
    "log_retention_bytes": Effect(100, deleted, 0, 1),
    "log_segment_delete_delay_ms": Effect(180_000, removed_logs_left, 0, 1),
    "log_segment_bytes": Effect(6_000, segments, 1, 6),
    "log_roll_ms": Effect(1_500, segments, 1, 3),
    "log_roll_jitter_ms": Effect(
        7 * 24 * HOUR_MS,
        lambda s, _: with_jitter(log_defaults(s)) == log_defaults(s),
        True,
        False,
    ),
    "log_index_size_max_bytes": Effect(16, segments, 1, 3),
    "log_index_interval_bytes": Effect(1, index_entries, 0, 5),
    "log_flush_interval_messages": Effect(2, flushed, 0, 6),
    "log_flush_interval_ms": Effect(500, flushed, 0, 6),
    "log_message_downconversion_enable": Effect(False, converts_records, True, False),
    "log_message_timestamp_type": Effect("LogAppendTime", append_time, -1, TIMESTAMP_MS),
    "log_message_timestamp_after_max_ms": Effect(
        1_000, lambda s, _: refused(s, 2_000), None, Errors.INVALID_TIMESTAMP
    ),
    "log_message_timestamp_before_max_ms": Effect(
        1_000, lambda s, _: refused(s, -2_000), None, Errors.INVALID_TIMESTAMP
    ),
    "log_message_timestamp_difference_max_ms": Effect(
        1_000, lambda s, _: refused(s, 2_000), None, Errors.INVALID_TIMESTAMP
    ),
}


# --- the controller -------------------------------------------------------------------------------


def is_elected_uncleanly(settings: Settings, _: Place) -> bool:
    parts = ControllerParts((5, 6), controller_settings(settings))
    parts.lead(T0, (8, 5), leader=8, isr=(8,), state=PartitionState.OFFLINE)
    return parts.partitions.trigger_online_partition_state_change() == {}


def is_rebalanced(settings: Settings, _: Place) -> bool:
    """Return whether the rebalance timer is started."""
    parts = ControllerParts((1, 2), controller_settings(settings))
    parts.elections.begin_checks()
    return bool(parts.effects())


def rebalanced_again_after_ms(settings: Settings, _: Place) -> list[int]:
    parts = ControllerParts((1, 2), controller_settings(settings))
    parts.elections.rebalance()
    return [event.after_ms for event in of_type(parts.effects(), ScheduleEvent)]


def leader_after_rebalancing(settings: Settings, _: Place) -> int:
    """Return the leader of one of ten partitions, which its preferred replica, 1, does not lead."""
    parts = ControllerParts((1, 2), controller_settings(settings))
    for number in range(10):
        leader = 2 if number == 0 else 1
        parts.lead(T0._replace(partition=number), (1, 2), leader, isr=(1, 2))
    parts.elections.rebalance()
    return parts.leads(T0)[0]


def brokers_checked_after_ms(settings: Settings, _: Place) -> list[int]:
    world = World()
    effects = Candidate(world, 0, controller_settings(settings)).start()
    timers = of_type(effects, ScheduleEvent)
    return [timer.after_ms for timer in timers if isinstance(timer.event, CheckBrokers)]


def answer_about_topics(settings: Settings, place: Place, request: TopicsRequest) -> TopicResult:
    answers: Queue[Any] = Queue()
    served = ServedEndpoint(place.undo, MemoryLogs(), settings)
    served.topics.ask(request, lambda response: answers.put(results_of(response)))
    result: TopicResult
    (result,) = answers.get(timeout=TIMEOUT_S)
    return result


def answer_to_deletion(settings: Settings, place: Place) -> Errors:
    return error_of(answer_about_topics(settings, place, delete_topics(("t",)))).error_code


def requests_repeated(settings: Settings, place: Place) -> bool:
    """Return whether an unanswered control request is repeated within 1.5 seconds."""
    context = place.undo.enter_context(context_for_test())
    sent: Queue[IncomingRequest] = Queue()
    server = ControlServer(
        KEYS, everybody_is_broker(0), "tcp://127.0.0.1:0", sent.put, name="silent"
    )
    place.undo.callback(server.stop)
    server.start()
    scheduler = Scheduler("scheduler")
    place.undo.callback(scheduler.shutdown)
    world = World()
    info = replace(broker_info(1), control_endpoint=server.endpoint)
    ZkControllerStore(FakeZooKeeper(world.zookeeper)).register_broker(info)
    store = ZkControllerStore(FakeZooKeeper(world.zookeeper))
    session: Any = SimpleNamespace(client=SimpleNamespace(lease_valid=lambda: True))
    controller = BrokerController(
        0,
        Controller(broker_info(0), store, TopicIds(), controller_settings(settings)),
        settings,
        context=context,
        keeper=session,
        scheduler=scheduler,
        journal_file=place.path / "events.jsonl",
        listener=ControllerListener(),
    )
    place.undo.callback(controller.stop)
    controller.tell(RegisterBrokerAndReelect())
    first = sent.get(timeout=TIMEOUT_S)
    try:
        return sent.get(timeout=scaled(1.5)).api_key == first.api_key
    except Empty:
        return False


CONTROLLER: dict[str, Effect] = {
    "unclean_leader_election_enable": Effect(True, is_elected_uncleanly, False, True),
    "delete_topic_enable": Effect(
        False, answer_to_deletion, Errors.REQUEST_TIMED_OUT, Errors.TOPIC_DELETION_DISABLED
    ),
    "auto_leader_rebalance_enable": Effect(False, is_rebalanced, True, False),
    "leader_imbalance_per_broker_percentage": Effect(5, leader_after_rebalancing, 2, 1),
    "leader_imbalance_check_interval_seconds": Effect(
        7, rebalanced_again_after_ms, [300_000], [7_000]
    ),
    "request_timeout_ms": Effect(200, requests_repeated, False, True),
    "retry_backoff_ms": Effect(60_000, requests_repeated, True, False, {"request_timeout_ms": 200}),
    "broker_answer_timeout_ms": Effect(8_000, brokers_checked_after_ms, [], [2_000]),
}


# --- the broker -----------------------------------------------------------------------------------


def a_free_port() -> int:
    return free_ports(1)[0]


def listening_at(settings: Settings, place: Place) -> tuple[str, bool]:
    endpoint = KafkaEndpoint(1, settings, QuotaManagers(settings.quotas))
    place.undo.callback(endpoint.close)
    host = settings.broker.host
    with socket.create_connection((host, endpoint.port), TIMEOUT_S) as client:
        return str(client.getpeername()[0]), endpoint.port == settings.broker.port


def advertised(settings: Settings, _: Place) -> tuple[object, ...]:
    of_all = AdvertisedListeners.of(settings, {"PLAINTEXT": 1, "REPLICATION": 3}, 2)
    (of_clients,) = of_all.endpoints
    control, replication = of_all.control_endpoint, of_all.replication_endpoint
    assert replication is not None
    return of_clients.host, of_clients.port, port_of(control), port_of(replication)


class SilentZooKeeper:
    """A server that accepts a connection, keeps what the client says first, and answers nothing.

    When the broker connects to it, its own ports are open: ``open_ports`` has those of ``ports``,
    and ``names_of_threads`` those of its threads. ``looked_in_time`` tells whether all of this was
    noted before the server was closed.
    """

    def __init__(self, ports: tuple[int, ...]) -> None:
        self.looked_in_time = False
        self._has_looked = False
        self.session_timeout_ms = 0
        self.open_ports: list[int] = []
        self.names_of_threads: set[str] = set()
        self._ports = ports
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._others = {*threading.enumerate()}

    def _serve(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:  # closed
            return
        self.names_of_threads = {t.name for t in {*threading.enumerate()} - self._others}
        with connection:
            request = connection.recv(20, socket.MSG_WAITALL)
            self.session_timeout_ms = struct.unpack(">iiqi", request)[3]
            for port in filter(None, self._ports):
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        self.open_ports.append(port)
        self._has_looked = True

    def close(self) -> None:
        self.looked_in_time = self._has_looked
        self._server.shutdown(socket.SHUT_RDWR)  # ends a waiting accept; close alone does not
        self._thread.join(TIMEOUT_S)
        self._server.close()


def without_zookeeper(settings: Settings, place: Place) -> tuple[SilentZooKeeper, str]:
    """Start a broker without ZooKeeper; return what the server received, and the error."""
    broker = settings.broker
    ports = (broker.control_port, broker.replication_port, broker.metrics_port)
    zookeeper = SilentZooKeeper(ports)
    with closing(zookeeper):
        process = BrokerProcess(BrokerOptions(1, zookeeper.address, place.path), settings)
        with pytest.raises(RegentError) as ended:
            process.start()
    return zookeeper, str(ended.value)


def asked_zookeeper(settings: Settings, place: Place) -> SilentZooKeeper:
    """Start a broker without ZooKeeper; return what the server received.

    A broker that had no time to connect, because the machine is busy, gets ten times as long.
    """
    for timeout_ms in (300, 3_000, 30_000):
        timeout = replace(settings.zookeeper, connection_timeout_ms=timeout_ms)
        zookeeper, _ = without_zookeeper(replace(settings, zookeeper=timeout), place)
        if zookeeper.looked_in_time:
            return zookeeper
    raise AssertionError("the broker never connected")


def is_open(settings: Settings, place: Place) -> int:
    """Return how many of the configured ports are open."""
    return len(asked_zookeeper(settings, place).open_ports)


def threads_with_prefix(settings: Settings, place: Place) -> tuple[bool, bool]:
    """Return whether all threads of a broker have the prefix b7, and whether any has."""
    names = asked_zookeeper(settings, place).names_of_threads
    assert len(names) > 10
    have_prefix = [name.startswith("b7:") for name in names]
    return all(have_prefix), any(have_prefix)


def asked_session_timeout_ms(settings: Settings, place: Place) -> int:
    return asked_zookeeper(settings, place).session_timeout_ms


def waits_for_zookeeper(settings: Settings, place: Place) -> str:
    return without_zookeeper(settings, place)[1].partition("within ")[2].partition(" s")[0]


class Hurry(threading.Event):
    """Records the pauses and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return False


class BusyController:
    """Refuses requests and records their timeouts."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def ask(self, message: Any, *, timeout: float) -> Any:
        del message
        self.timeouts.append(timeout)
        return ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)


def shutdown_requests(settings: Settings, place: Place) -> tuple[list[float], list[float | None]]:
    """Return the timeouts of controlled shutdown requests, and the pauses between them."""
    hurry, controller = Hurry(), BusyController()
    known = {b: live_broker(b, 1) for b in (1, 2)}
    cluster = MetadataSnapshot(controller_id=1, controller_epoch=1, brokers=known)
    context = place.undo.enter_context(context_for_test())
    hand_over(
        lambda: ControlledShutdownRequest(1, 7),
        lambda: cluster,
        controller,
        context,
        controllers_of_kafka(settings, "broker-1"),
        settings.broker,
        hurry,
        lambda: True,
    )
    return controller.timeouts, hurry.pauses


def shrinks_after_20_s(settings: Settings, _: Place) -> bool:
    leader = RecordBroker(settings=filled(ReplicationSettings, settings))
    leader.apply(1, 0)
    leader.produce(b"record", acks=1)
    leader.manager.shrink_isrs(20_000)
    return leader.manager.has_proposals


def fetch_request(settings: Settings, _: Place) -> tuple[int, int, int, int]:
    follower = RecordBroker(2, settings=filled(ReplicationSettings, settings))
    follower.apply(1, 0)
    request, _asked = follower.fetch_from(led_by_1())
    ((_name, row),) = request.partitions()
    return (
        request.max_wait_ms,
        request.min_bytes,
        row.max_bytes,
        request.max_bytes,
    )


def longest_pause_after_failed_fetches(settings: Settings, _: Place) -> int:
    follower, leader = (
        RecordBroker(2, settings=filled(ReplicationSettings, settings)),
        RecordBroker(),
    )
    follower.apply(1, 0)
    pauses = []
    for _attempt in range(10):
        follower.follow(leader)  # it has no leadership yet
        pause_ms = follower.manager.fetch_delay_ms(1, follower.now_ms) or 0
        pauses.append(pause_ms)
        follower.now_ms += pause_ms
    return max(pauses)


def led_by_1() -> RecordBroker:
    leader = RecordBroker()
    leader.apply(1, 0)
    return leader


def answer_to_metadata_of_a_missing_topic(settings: Settings, place: Place) -> Errors:
    served = ServedEndpoint(place.undo, MemoryLogs(), settings)
    client = place.undo.enter_context(RawClient(served))
    client.send(request_bytes(struct.pack(">ih", 1, 7) + b"missing"))
    answer: Any = entity_reader(load_response_schema(3, 1))(client.answer()[1], 0)[0]
    (topic,) = answer.topics
    return Errors(topic.error_code)


def creates_internal_topics_early(settings: Settings, place: Place) -> bool:
    """Return whether a controller plans to create them when it knows three brokers."""
    planned: list[float] = []

    def schedule(after_ms: float, _: Callable[[], None]) -> None:
        planned.append(after_ms)

    context = place.undo.enter_context(context_for_test())
    scheduler: Any = SimpleNamespace(schedule=schedule)
    service, cache = BrokerTopicService(context, 0, settings, scheduler), MetadataCache()
    place.undo.callback(service.stop)
    quota = ControllerMutationQuotaManager(QuotaConfig().controller_window)
    service.start(cache, FakeZooKeeper(World().zookeeper), lambda: True, quota)
    brokers = tuple(live_broker(b, 1) for b in (0, 1, 2))
    cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest((), brokers, is_full=True))
    service.wake()
    return bool(planned)


def partitions_of_a_new_topic(settings: Settings, place: Place) -> int:
    request = create_topics((creatable("new"),), 0, validate_only=True)
    result = answer_about_topics(settings, place, request)
    assert isinstance(result, CreatableTopicResult)
    return result.num_partitions


def answer_to_a_new_topic(settings: Settings, place: Place) -> Errors:
    request = create_topics((creatable("new"),), 0, validate_only=True)
    return error_of(answer_about_topics(settings, place, request)).error_code


def ask_versions(client: RawClient) -> None:
    client.send(request_bytes(b"\0\0\0\0", api_key=18, version=0))
    client.answer()


def waiting_requests(settings: Settings, place: Place) -> int:
    """Return how many connections had too many requests after two waiting fetches."""
    served = ServedEndpoint(place.undo, MemoryLogs(), settings)
    client, other = (place.undo.enter_context(RawClient(served)) for _ in range(2))
    fetch = struct.pack(">iiiibi", -1, 300, 1, 1_000, 0, 1) + b"\0\1t"
    fetch += struct.pack(">iiqi", 1, 0, 0, 1_000)
    client.send(request_bytes(fetch, 1, api_key=1, version=4) * 2)
    for _ in range(20):
        ask_versions(other)
    (metrics,) = served.endpoint.metrics.values()
    return metrics.throttled


def second_connection(host: str = "127.0.0.1") -> Look:
    """Return a check of whether the second connection of an address is closed."""

    def look(settings: Settings, place: Place) -> bool:
        served = ServedEndpoint(place.undo, MemoryLogs(), settings)
        clients = [place.undo.enter_context(RawClient(served, host)) for _ in range(2)]
        for client in clients:
            client.socket.settimeout(TIMEOUT_S)
        try:
            ask_versions(clients[1])
        except ConnectionError:
            return True
        return False

    return look


def a_new_connection_waits(settings: Settings, place: Place) -> bool:
    """Return whether a client waited before it was accepted, and was answered."""
    served = ServedEndpoint(place.undo, MemoryLogs(), settings)
    ask_versions(place.undo.enter_context(RawClient(served)))
    (metrics,) = served.endpoint.metrics.values()
    return metrics.accept_pauses > 0


def is_answered_as_second(settings: Settings, place: Place) -> bool:
    """Return whether a second client is answered while the first is connected."""
    served = ServedEndpoint(place.undo, MemoryLogs(), settings)
    ask_versions(place.undo.enter_context(RawClient(served)))
    second = place.undo.enter_context(RawClient(served))
    second.socket.settimeout(scaled(0.5))
    try:
        ask_versions(second)
    except TimeoutError:
        return False
    return True


def closed_after(data: bytes, timeout_s: float) -> Look:
    """Return a check of why a connection is closed after this data."""

    def look(settings: Settings, place: Place) -> set[Closed]:
        served = ServedEndpoint(place.undo, MemoryLogs(), settings)
        client = place.undo.enter_context(RawClient(served))
        client.send(data)
        client.socket.settimeout(scaled(timeout_s))
        try:
            client.is_closed()
        except TimeoutError:
            return set()
        return set(served.closed)

    return look


BROKER: dict[str, Effect] = {
    "host": Effect("127.0.0.2", listening_at, ("127.0.0.1", False), ("127.0.0.2", False)),
    "port": Effect(a_free_port, listening_at, ("127.0.0.1", False), ("127.0.0.1", True)),
    "control_port": Effect(a_free_port, is_open, 0, 1),
    "replication_port": Effect(a_free_port, is_open, 0, 1),
    "metrics_port": Effect(a_free_port, is_open, 0, 1),
    "advertised_host": Effect("b7", advertised, ("127.0.0.1", 1, 2, 3), ("b7", 1, 2, 3)),
    "advertised_port": Effect(9, advertised, ("127.0.0.1", 1, 2, 3), ("127.0.0.1", 9, 2, 3)),
    "advertised_control_port": Effect(
        9, advertised, ("127.0.0.1", 1, 2, 3), ("127.0.0.1", 1, 9, 3)
    ),
    "advertised_replication_port": Effect(
        9, advertised, ("127.0.0.1", 1, 2, 3), ("127.0.0.1", 1, 2, 9)
    ),
    "thread_name_prefix": Effect("b7", threads_with_prefix, (False, False), (True, True)),
    "controlled_shutdown_max_retries": Effect(
        2, shutdown_requests, ([30.0] * 3, [5.0] * 2), ([30.0] * 2, [5.0])
    ),
    "controlled_shutdown_retry_backoff_ms": Effect(
        7, shutdown_requests, ([30.0] * 3, [5.0] * 2), ([30.0] * 3, [0.007] * 2)
    ),
    "controlled_shutdown_timeout_ms": Effect(
        700, shutdown_requests, ([30.0] * 3, [5.0] * 2), ([0.7] * 3, [5.0] * 2)
    ),
    "replica_lag_time_max_ms": Effect(10_000, shrinks_after_20_s, False, True),
    "replica_fetch_wait_max_ms": Effect(
        7, fetch_request, (500, 1, 1_048_576, 10_485_760), (7, 1, 1_048_576, 10_485_760)
    ),
    "replica_fetch_min_bytes": Effect(
        7, fetch_request, (500, 1, 1_048_576, 10_485_760), (500, 7, 1_048_576, 10_485_760)
    ),
    "replica_fetch_max_bytes": Effect(
        7, fetch_request, (500, 1, 1_048_576, 10_485_760), (500, 1, 7, 10_485_760)
    ),
    "replica_fetch_response_max_bytes": Effect(
        7, fetch_request, (500, 1, 1_048_576, 10_485_760), (500, 1, 1_048_576, 7)
    ),
    "replica_fetch_backoff_ms": Effect(70, longest_pause_after_failed_fetches, 1_000, 70),
    "auto_create_topics_enable": Effect(
        False,
        answer_to_metadata_of_a_missing_topic,
        Errors.LEADER_NOT_AVAILABLE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "internal_topics_at_start": Effect(True, creates_internal_topics_early, False, True),
    "num_partitions": Effect(7, partitions_of_a_new_topic, 1, 7),
    "default_replication_factor": Effect(
        2, answer_to_a_new_topic, Errors.NONE, Errors.INVALID_REPLICATION_FACTOR
    ),
    "placement_service": Effect(
        "tcp://placer:7",
        lambda s, _: placement_finder(s.broker.placement_service) is not None,
        False,
        True,
    ),
    "queued_requests_per_connection": Effect(1, waiting_requests, 0, 1),
    "max_connections": Effect(1, is_answered_as_second, True, False),
    "password_encoder_secret": Effect("s", lambda s, _: broker_passwords(s).is_on, False, True),
    "password_encoder_old_secret": Effect(
        "old",
        lambda s, _: broker_passwords(s).decoded({KEY_PASSWORD: encode_password("old", "p")}),
        {},
        {KEY_PASSWORD: "p"},
    ),
    "max_connection_creation_rate": Effect(0, a_new_connection_waits, False, True),
    "socket_request_max_bytes": Effect(
        100, closed_after(struct.pack(">i", 101), 0.3), set(), {Closed.MALFORMED}
    ),
    "connections_max_idle_ms": Effect(100, closed_after(b"", 1.0), set(), {Closed.IDLE}),
    "max_connections_per_ip": Effect(1, second_connection(), False, True),
    "max_connections_per_ip_overrides": Effect(
        "127.0.0.2:1", second_connection("127.0.0.2"), False, True
    ),
}


ZOOKEEPER: dict[str, Effect] = {
    "session_timeout_ms": Effect(7_000, asked_session_timeout_ms, 6_000, 7_000),
    "connection_timeout_ms": Effect(300, waits_for_zookeeper, _NOT_LOOKED_AT, "0.3"),
}


def written(settings: Settings, place: Place) -> str:
    """Return what is written to ``broker.log``."""
    root, state_changes = logging.getLogger(), logging.getLogger("state.change")
    for logger in (root, *map(logging.getLogger, {"state.change", *settings.logging.levels})):
        place.undo.callback(logger.setLevel, logger.level)
    before = {*root.handlers}
    _log_to(place.path, settings.logging)
    (handler,) = {*root.handlers} - before
    place.undo.callback(handler.close)
    place.undo.callback(root.removeHandler, handler)
    root.info("of root")
    state_changes.debug("of a partition")
    return (place.path / "broker.log").read_text()


def levels_seen(settings: Settings, place: Place) -> tuple[bool, bool]:
    text = written(settings, place)
    return "of root" in text, "of a partition" in text


LOGGING: dict[str, Effect] = {
    "level": Effect("ERROR", levels_seen, (True, False), (False, False)),
    "levels": Effect({"state.change": "DEBUG"}, levels_seen, (True, False), (True, True)),
}

CLIENT = QuotaClient("u", "c")


def client_quotas(settings: Settings) -> QuotaManagers:
    quotas = QuotaManagers(settings.quotas)
    limits = {"producer_byte_rate": "10", "controller_mutation_rate": "1"}
    quotas.configure({"clients/c": limits})
    return quotas


def wait_after_300_bytes_ms(settings: Settings, _: Place) -> int:
    return client_quotas(settings).produce.record(CLIENT, 300, 0)


def wait_after_20_partitions_ms(settings: Settings, _: Place) -> int:
    quota = client_quotas(settings).controller_mutation
    return quota.record(CLIENT, 20, 0, is_strict=False)[1]


QUOTAS: dict[str, Effect] = {
    "quota_window_num": Effect(21, wait_after_300_bytes_ms, 20_000, 10_000),
    "quota_window_size_seconds": Effect(2, wait_after_300_bytes_ms, 20_000, 10_000),
    "controller_quota_window_num": Effect(15, wait_after_20_partitions_ms, 9_000, 5_000),
    "controller_quota_window_size_seconds": Effect(2, wait_after_20_partitions_ms, 9_000, 0),
}

EFFECTS = {
    **{("broker", name): effect for name, effect in BROKER.items()},
    **{("controller", name): effect for name, effect in CONTROLLER.items()},
    **{("log", name): effect for name, effect in LOGS.items()},
    **{("logging", name): effect for name, effect in LOGGING.items()},
    **{("quotas", name): effect for name, effect in QUOTAS.items()},
    **{("zookeeper", name): effect for name, effect in ZOOKEEPER.items()},
}

_OF_TLS = "tests/transport/kafka/test_tls.py"
_OF_AUTHORIZER = "tests/broker/test_broker_authorizer.py"
_OF_GROUPS = "tests/broker/test_group_service.py"
_OF_TRANSACTIONS = "tests/broker/test_transaction_service.py"
OF_LISTENERS = (
    *("listeners", "advertised_listeners", "listener_security_protocol_map"),
    *("inter_broker_listener_name", "security_inter_broker_protocol", "allow_unauthenticated"),
    "control_plane_listener_name",
)
_OF_TOKENS = "tests/broker/test_delegation_token_service.py"
OF_LOGINS = {
    "tests/transport/kafka/test_sasl_mechanisms.py": (
        "sasl_enabled_mechanisms",
        "sasl_plain_users_file",
        "allow_plain_without_tls",
        "sasl_oauthbearer_unsecured",
    ),
    "tests/transport/kafka/test_sasl_client.py": (
        "sasl_mechanism_inter_broker_protocol",
        "sasl_inter_broker_user",
        "sasl_inter_broker_password_file",
    ),
    "tests/transport/kafka/test_sasl_server.py": (
        "sasl_server_max_receive_size",
        "connections_max_reauth_ms",
    ),
    "tests/transport/kafka/test_jwt_keys.py": (
        "sasl_oauthbearer_jwks_endpoint_url",
        "sasl_oauthbearer_jwks_endpoint_refresh_ms",
        "sasl_oauthbearer_expected_audience",
        "sasl_oauthbearer_expected_issuer",
        "sasl_oauthbearer_clock_skew_seconds",
        "sasl_oauthbearer_sub_claim_name",
    ),
}
ELSEWHERE = {
    **{(table, row.name): _OF_TRANSACTIONS for table, row in rows() if table == "transactions"},
    **{("authorizer", row.name): _OF_AUTHORIZER for t, row in rows() if t == "authorizer"},
    **{("tls", row.name): _OF_TLS for table, row in rows() if table == "tls"},
    ("tls", "ssl_endpoint_identification_algorithm"): (
        "tests/transport/kafka/test_client_security.py"
    ),
    ("broker", "metrics_token_file"): "tests/broker/metrics/test_metrics_server.py",
    ("broker", "metrics_tls"): "tests/broker/metrics/test_metrics_server.py",
    ("groups", "group_min_session_timeout_ms"): _OF_GROUPS,
    ("groups", "group_max_session_timeout_ms"): _OF_GROUPS,
    ("groups", "group_initial_rebalance_delay_ms"): _OF_GROUPS,
    ("groups", "group_max_size"): _OF_GROUPS,
    ("groups", "group_max_bytes"): _OF_GROUPS,
    ("groups", "group_coordinator_max_bytes"): _OF_GROUPS,
    ("groups", "offset_metadata_max_bytes"): _OF_GROUPS,
    ("groups", "offsets_topic_num_partitions"): _OF_GROUPS,
    ("groups", "offsets_topic_replication_factor"): _OF_GROUPS,
    ("groups", "offsets_topic_segment_bytes"): _OF_GROUPS,
    ("groups", "offsets_retention_minutes"): _OF_GROUPS,
    ("groups", "offsets_retention_check_interval_ms"): _OF_GROUPS,
    ("groups", "offsets_topic_compression_codec"): "tests/actors/test_group_coordinator.py",
    ("groups", "offsets_load_buffer_size"): "tests/actors/test_group_coordinator.py",
    ("groups", "offsets_commit_timeout_ms"): "tests/actors/test_group_coordinator.py",
    ("log", "log_cleaner_threads"): "tests/broker/test_broker_storage.py",
    **{(t, row.name): _OF_TOKENS for t, row in rows() if t == "delegation_tokens"},
    ("zookeeper", "secret_file"): "tests/system/test_zookeeper_login.py",
    **{("broker", name): "tests/config/test_listeners.py" for name in OF_LISTENERS},
    ("broker", "local_users"): "tests/transport/test_local_users.py",
    **{("sasl", name): file for file, names in OF_LOGINS.items() for name in names},
    (
        "sasl",
        "connection_failed_authentication_delay_ms",
    ): "tests/transport/kafka/test_sasl_server.py",
    (
        "sasl",
        "sasl_oauthbearer_jwks_endpoint_retry_backoff_ms",
    ): "tests/transport/kafka/test_jwt_keys.py",
    (
        "sasl",
        "sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms",
    ): "tests/transport/kafka/test_jwt_keys.py",
    ("broker", "keys_dir"): "tests/broker/test_broker_keys.py",
    ("broker", "broker_keys"): "tests/broker/test_broker_keys.py",
    ("broker", "rack"): "tests/broker/test_broker_process.py",
    ("broker", "node_host"): "tests/broker/test_broker_process.py",
    ("broker", "no_replicas"): "tests/broker/test_broker_process.py",
    ("broker", "isr_change_protocol"): "tests/broker/test_replication.py",
    ("broker", "queued_max_request_bytes"): "tests/broker/test_kafka_endpoint.py",
}
"""The files of tests that show the effects of other settings, which need more than a look."""


def test_every_setting_has_a_check() -> None:
    settings = {(table, row.name) for table, row in rows()}
    assert EFFECTS.keys() | ELSEWHERE.keys() == settings


@pytest.mark.parametrize(("table", "name"), EFFECTS)
def test_a_changed_setting_has_an_effect(table: str, name: str, tmp_path: Path) -> None:
    value, look, by_default, changed, others = EFFECTS[table, name]
    tables = {table: dict(others)}
    if by_default is not _NOT_LOOKED_AT:
        settings = on_free_ports(load_settings(None, tables))
        assert seen(look, settings, tmp_path / "default") == by_default
        assert by_default != changed
    tables[table][name] = value() if callable(value) else value
    assert seen(look, on_free_ports(load_settings(None, tables)), tmp_path / "changed") == changed


def seen(look: Look, settings: Settings, path: Path) -> object:
    path.mkdir()
    with ExitStack() as undo:
        return look(settings, Place(path, undo))


@pytest.mark.parametrize(("table", "name"), ELSEWHERE)
def test_a_setting_that_is_checked_elsewhere_is_named_there(table: str, name: str) -> None:
    world = ast.parse((ROOT / ELSEWHERE[table, name]).read_text(encoding="utf-8"))
    words = {n.value for n in ast.walk(world) if isinstance(n, ast.Constant)}
    words |= {n.arg for n in ast.walk(world) if isinstance(n, ast.keyword)}
    words |= {n.attr for n in ast.walk(world) if isinstance(n, ast.Attribute)}
    assert name in words


@pytest.mark.parametrize("name", TOPIC_LOG_SETTINGS)
def test_a_topic_overrides_the_setting_of_its_logs(name: str) -> None:
    row = TOPIC_LOG_SETTINGS[name]
    other: object = row.limits[1] if row.limits and row.default < row.limits[1] else 7
    if isinstance(row.default, bool):
        other = not row.default
    if row.declared.choices:
        (other,) = {*row.declared.choices} - {row.default}
    config = DEFAULT_LOG_CONFIG.overridden({row.dotted_name: text_of(other)})
    assert getattr(config, name) == other != row.default


FOLLOWED_BY_NOTHING = {
    "num.recovery.threads.per.data.dir",  # logs are recovered before ZooKeeper is asked
    "listener.security.protocol.map",  # the protocol of a running listener stays
    # Of TLS only where the keys of one listener are can change.
    *(row.dotted_name for table, row in rows() if table == "tls" and row.scope is Scope.PER_BROKER),
} - set(ListenerKeys.reconfigurable_configs)


def test_every_setting_that_can_change_while_a_broker_runs_is_followed() -> None:
    can_change = set(map(base_name, dynamic_values(Settings()))) - FOLLOWED_BY_NOTHING
    parts = reconfigurables()
    named = {name for names in parts.values() for name in names}
    assert can_change - named == set(), (
        "name them in the reconfigurable_configs of the parts that follow them:"
        f" {', '.join(sorted(part.__name__ for part in parts))}, or a new part, which"
        " BrokerProcess._follow_configs passes to DynamicConfigManager"
    )
    assert named == can_change, "read-only, or not a setting"


def test_every_other_topic_setting_with_an_effect_is_known() -> None:
    others = {name for name, row in TOPIC_SETTINGS.items() if row.has_effect}
    others -= {row.dotted_name for row in TOPIC_LOG_SETTINGS.values()}
    assert others == {
        "regent.deletion.protection",  # tests/core/admin/test_admin_manager.py
        "unclean.leader.election.enable",  # tests/core/controller/test_partition_state_machine.py
        "leader.replication.throttled.replicas",  # tests/core/replication/test_replication_quota.py
        "follower.replication.throttled.replicas",
        "compression.type",  # described; the producer's compression is always used
    }
