"""A broker's logs on a real disk: after a stop, a crash, and a disk failure."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import regent.broker.broker_storage
from regent.actors.broker import BrokerCallbacks, LogDirectoryFailed
from regent.actors.scheduler import monotonic_ms
from regent.broker.broker_storage import BrokerStorage
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.errors import StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import ACKS_LEADER
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.partition import Role
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.checkpoints import read_offsets
from regent.testing.waits import eventually
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.disk_logs import flip_byte
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.record_batches import batch, values_of
from tests.support.replicas import PARTITION, hosted_as, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, actor_of, ask, facts_of

BROKER_ID = 1
SEGMENT = f"{PARTITION}/{0:020d}.log"
CLEAN = ".kafka_cleanshutdown"
HIGH_WATERMARKS = "replication-offset-checkpoint"
OTHER = TopicPartition("another", 0)
SELDOM = {"replica_high_watermark_checkpoint_interval_ms": 3_600_000, "log_retention_ms": -1}


class Disk:
    """A data directory, and the storages that are opened on it in sequence."""

    def __init__(self, path: Path, undo: ExitStack) -> None:
        self.path = path
        self._undo = undo

    def open(self, data_dir: Path | None = None, **settings: Any) -> BrokerStorage:
        loaded = load_settings(None, {"log": {**SELDOM, **settings}})
        storage = BrokerStorage(BROKER_ID, loaded, data_dir or self.path)
        storage.open()
        self._undo.callback(storage.close)
        return storage


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ExitStack() as undo:
        yield Disk(tmp_path / "broker-1", undo)


def lead(stage: Stage, logs: ReplicaLogs) -> ReplicaManager:
    """Start a broker that leads ``PARTITION`` alone."""
    broker = stage.broker(BROKER_ID, logs=logs)
    ask(broker, lead_and_follow(BROKER_ID, (BROKER_ID,), isr=(BROKER_ID,)))
    return actor_of(broker).replica_manager


def produce(manager: ReplicaManager, *values: bytes) -> None:
    manager.produce(ACKS_LEADER, {PARTITION: batch(*values)}, monotonic_ms(), lambda _: None)


def values_in(logs: ReplicaLogs) -> list[bytes | None]:
    log = logs.get(PARTITION)
    assert log is not None
    return values_of(log.read(0, 2**31, log.log_end_offset, at_least_one=True).read())


def test_after_a_clean_stop_all_records_exist_and_nothing_is_recovered(
    stage: Stage, disk: Disk
) -> None:
    storage = disk.open()
    manager = lead(stage, storage.logs)
    storage.start_maintenance(manager, lambda: None)
    produce(manager, b"one", b"two")
    storage.close()
    assert (disk.path / "log" / CLEAN).exists()
    again = disk.open()
    assert not (disk.path / "log" / CLEAN).exists()
    assert values_in(again.logs) == [b"one", b"two"]
    assert again.logs.checkpointed_high_watermark(PARTITION) == 2


def test_after_a_crash_complete_batches_exist(stage: Stage, disk: Disk) -> None:
    storage = disk.open()
    produce(lead(stage, storage.logs), b"one", b"two")
    crashed = disk.path.with_name("crashed")
    shutil.copytree(disk.path, crashed)
    with (crashed / "log" / SEGMENT).open("ab") as segment:
        segment.write(bytes(batch(b"three", base_offset=2))[:-1])
    assert values_in(disk.open(crashed).logs) == [b"one", b"two"]


def test_high_watermarks_are_checkpointed_in_the_background(stage: Stage, disk: Disk) -> None:
    storage = disk.open(replica_high_watermark_checkpoint_interval_ms=5)
    manager = lead(stage, storage.logs)
    storage.start_maintenance(manager, lambda: None)
    produce(manager, b"one", b"two")
    checkpoint = disk.path / "log" / HIGH_WATERMARKS
    line = f"{PARTITION.topic} {PARTITION.partition} 2\n"
    stage.wait_for(lambda: checkpoint.exists() and line in checkpoint.read_text())


def test_old_segments_are_deleted_in_the_background(stage: Stage, disk: Disk) -> None:
    storage = disk.open(
        log_retention_check_interval_ms=5,
        replica_high_watermark_checkpoint_interval_ms=5,
        log_segment_bytes=200,  # one batch each
        log_retention_bytes=300,
    )
    manager = lead(stage, storage.logs)
    storage.start_maintenance(manager, lambda: None)
    for _ in range(5):
        produce(manager, bytes(100))
    log = storage.logs.get(PARTITION)
    assert log is not None
    stage.wait_for(lambda: log.log_start_offset > 0)


def test_removed_logs_are_deleted_in_the_background_after_a_restart(
    stage: Stage, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regent.broker.broker_storage, "_SETTLE_MS", 5)
    former = disk.open()
    former.logs.get_or_create(OTHER, None, is_new=True)
    former.logs.delete(OTHER)
    former.close()
    assert list((disk.path / "log").glob("*-delete"))
    storage = disk.open(log_segment_delete_delay_ms=0)
    storage.start_maintenance(lead(stage, storage.logs), lambda: None)
    stage.wait_for(lambda: not list((disk.path / "log").glob("*-delete")))


def test_damage_found_in_the_background_takes_the_replica_offline(stage: Stage, disk: Disk) -> None:
    storage = disk.open(log_segment_bytes=200)  # one batch each
    broker = stage.broker(BROKER_ID, logs=storage.logs)
    ask(broker, lead_and_follow(BROKER_ID, (BROKER_ID, 2), isr=(BROKER_ID, 2)))
    manager = actor_of(broker).replica_manager
    for _ in range(3):
        produce(manager, bytes(100))
    flip_byte(disk.path / "log" / SEGMENT, 80)
    notified = threading.Event()
    storage.start_maintenance(manager, notified.set)
    stage.wait_for(lambda: hosted_as(Role.OFFLINE, manager) == 1)
    assert notified.is_set(), "the controller is notified"
    assert storage.logs.is_damaged(PARTITION)


def test_a_failed_directory_takes_only_its_replicas_offline_and_is_notified(
    stage: Stage, disk: Disk
) -> None:
    zookeeper = FakeZooKeeperServer()
    zookeeper.put("/log_dir_event_notification")
    storage = disk.open(log_dirs="one,two")
    storage.follow(FakeZooKeeper(zookeeper))
    callbacks = BrokerCallbacks(
        lambda _: None, facts_of, on_replicas_offline=storage.announce_failure
    )
    broker = stage.broker(BROKER_ID, logs=storage.logs, callbacks=callbacks)
    storage.start_maintenance(
        actor_of(broker).replica_manager, lambda: broker.tell(LogDirectoryFailed())
    )
    for topic_partition in (PARTITION, OTHER):
        storage.logs.get_or_create(topic_partition, None, is_new=True)
    failed = disk.path / ("one" if (disk.path / "one" / str(PARTITION)).exists() else "two")
    ask(broker, lead_and_follow(BROKER_ID, (BROKER_ID,), isr=(BROKER_ID,)))

    shutil.rmtree(failed)
    storage.logs.checkpoint_log_start_offsets()

    reader = ZkControllerStore(FakeZooKeeper(zookeeper))
    stage.wait_for(lambda: list(reader.read_log_dir_events().values()) == [BROKER_ID])
    assert hosted_as(Role.OFFLINE, actor_of(broker).replica_manager) == 1
    assert storage.logs.is_offline(PARTITION)
    assert not storage.logs.is_offline(OTHER)
    (warning,) = storage.warnings()
    assert warning.startswith(f"log directory {failed} is offline: ")
    assert warning.endswith(": No such file or directory")


def test_without_a_working_directory_there_is_no_notification(stage: Stage, disk: Disk) -> None:
    storage = disk.open()
    storage.start_maintenance(lead(stage, storage.logs), lambda: None)
    storage.announce_failure()
    shutil.rmtree(disk.path / "log")
    storage.logs.checkpoint_log_start_offsets()
    why = f"log directory {disk.path}/log is offline: {disk.path}/log/.*: No such file or directory"
    with pytest.raises(StorageError, match=f"^every log directory has failed: {why}$"):
        storage.announce_failure()


def test_a_broker_without_a_usable_directory_does_not_start(disk: Disk) -> None:
    disk.path.mkdir()
    (disk.path / "log").write_text("not a directory")
    with pytest.raises(StorageError) as refused:
        disk.open()
    assert "\n" not in str(refused.value)


def test_a_start_closes_the_data_directory_and_not_the_volume_that_it_is_in(disk: Disk) -> None:
    """Kubernetes opens all files in a volume to the group when the mode of its root has changed."""
    volume = disk.path.parent
    disk.path.mkdir()
    for folder in (volume, disk.path):
        folder.chmod(0o2770)
    disk.open()
    assert volume.stat().st_mode & 0o7777 == 0o2770
    assert disk.path.stat().st_mode & 0o777 == 0o700


def test_a_thread_compacts_logs_until_the_broker_stops(stage: Stage, disk: Disk) -> None:
    storage = disk.open(
        log_cleanup_policy="compact",
        log_cleaner_backoff_ms=1,
        log_cleaner_min_cleanable_ratio=0.0,
        log_segment_bytes=100,
    )
    manager = lead(stage, storage.logs)
    for value in (b"1", b"2", b"3"):
        records = {PARTITION: batch(value, key=b"key")}
        manager.produce(ACKS_LEADER, records, monotonic_ms(), lambda _: None)
    storage.start_maintenance(manager, lambda: None)
    log = storage.logs.get(PARTITION)
    assert log is not None
    eventually(lambda: log.first_dirty == 2, "the closed segments are clean", TIMEOUT_S)
    assert values_in(storage.logs) == [b"2"]
    storage.close()
    assert not any("log-cleaner" in thread.name for thread in threading.enumerate())


def test_committed_records_are_compacted_before_the_next_checkpoint_is_due(
    stage: Stage, disk: Disk
) -> None:
    storage = disk.open(
        log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio=0.0, log_segment_bytes=100
    )
    manager = lead(stage, storage.logs)
    log = storage.logs.get(PARTITION)
    assert log is not None
    compact, _ = storage.long_tasks(manager)["log-cleaner"]
    for value, clean_up_to in ((b"1", 0), (b"2", 1), (b"3", 2)):
        records = {PARTITION: batch(value, key=b"key")}
        manager.produce(ACKS_LEADER, records, monotonic_ms(), lambda _: None)
        compact()
        assert max(log.first_dirty, 0) == clean_up_to, "not the active segment"
    assert values_in(storage.logs) == [b"2"], "the first segment has only the newest value"
    noted = read_offsets(disk.path / "log" / HIGH_WATERMARKS)
    assert noted == {PARTITION: 3}, "no record went before that was written"


def test_retention_drops_committed_records_before_the_next_checkpoint_is_due(
    stage: Stage, disk: Disk
) -> None:
    storage = disk.open(log_segment_bytes=100, log_retention_bytes=0)
    manager = lead(stage, storage.logs)
    for value in (b"1", b"2", b"3"):
        manager.produce(ACKS_LEADER, {PARTITION: batch(value)}, monotonic_ms(), lambda _: None)
    tasks = {getattr(task, "__name__", ""): task for task in storage.upkeep(manager)}
    tasks["clean_up"]()
    log = storage.logs.get(PARTITION)
    assert log is not None
    assert log.log_start_offset == 3
    assert read_offsets(disk.path / "log" / HIGH_WATERMARKS) == {PARTITION: 3}


def test_a_running_cleaner_follows_the_settings_in_zookeeper(stage: Stage, disk: Disk) -> None:
    storage = disk.open(
        log_cleanup_policy="compact",
        log_cleaner_threads=2,
        log_cleaner_backoff_ms=86_400_000,
        log_cleaner_min_cleanable_ratio=0.0,
        log_segment_bytes=100,
    )
    manager = lead(stage, storage.logs)
    for value in (b"1", b"2", b"3"):
        records = {PARTITION: batch(value, key=b"key")}
        manager.produce(ACKS_LEADER, records, monotonic_ms(), lambda _: None)
    manager.checkpoint_high_watermarks()
    storage.start_maintenance(manager, lambda: None)
    started = dynamic_values(Settings())
    changes = {"log.cleaner.backoff.ms": 1, "log.cleaner.threads": 4}
    storage.reconfigure(started, {**started, **changes})
    log = storage.logs.get(PARTITION)
    assert log is not None
    eventually(lambda: log.first_dirty == 2, "the closed segments are clean", TIMEOUT_S)
    assert sum("log-cleaner" in thread.name for thread in threading.enumerate()) == 1


def test_the_limits_of_a_cleaner_change_while_it_runs(disk: Disk) -> None:
    storage = disk.open()
    cleaner, by_default = storage.logs.cleaner, storage.logs.cleaner.new_map().max_keys
    started = dynamic_values(Settings())
    changed = {
        **started,
        "log.cleaner.dedupe.buffer.size": 1_600_000,
        "log.cleaner.io.buffer.load.factor": 0.45,
        "log.cleaner.io.max.bytes.per.second": 1_000.5,
    }
    storage.reconfigure(started, changed)
    assert cleaner.new_map().max_keys == 4_500
    assert cleaner.throttle.bytes_per_s == 1_000.5
    storage.reconfigure(changed, started)
    assert cleaner.new_map().max_keys == by_default
