"""Replication throttles: throttled replicas wait, others do not (KIP-73)."""

from __future__ import annotations

import pytest

from regent.broker.machine_settings import dynamic_values
from regent.config.settings import Settings
from regent.core.replication.replication_settings import ReplicationSettings
from tests.core.replication.record_stage import RecordBroker, fetched_values, rows
from tests.core.replication.stage import LAG_MS, T0, T1
from tests.support.record_batches import batch

STARTED = dynamic_values(Settings())
SIZE = len(batch(b"x" * 100))
ONE_BATCH_A_FETCH = ReplicationSettings(
    replica_lag_time_max_ms=LAG_MS, replica_fetch_max_bytes=SIZE
)


@pytest.fixture
def leader() -> RecordBroker:
    """Leads two partitions with ten records each, alone in the ISR."""
    leader = RecordBroker(1)
    leader.apply(1, 1, T0, T1, isr=(1,))
    for topic_partition in (T0, T1):
        for _ in range(10):
            leader.produce(b"x" * 100, acks=1, topic_partition=topic_partition)
    return leader


@pytest.fixture
def follower() -> RecordBroker:
    """Follows ``leader``, and fetches one batch of a partition at a time."""
    follower = RecordBroker(2, settings=ONE_BATCH_A_FETCH)
    follower.apply(1, 1, T0, T1, isr=(1,))
    return follower


def throttle(broker: RecordBroker, side: str, batches_a_second: int) -> None:
    """Throttle partition 0 on one side."""
    quotas, rate = broker.manager.quotas, batches_a_second * SIZE
    quotas.on_topic_config("t", {f"{side}.replication.throttled.replicas": "0:1,0:2"})
    quotas.reconfigure(STARTED, {**STARTED, f"{side}.replication.throttled.rate": rate})


def ends(broker: RecordBroker) -> tuple[int, int]:
    return broker.log(T0).log_end_offset, broker.log(T1).log_end_offset


def pass_time(leader: RecordBroker, follower: RecordBroker, ms: int) -> None:
    leader.now_ms += ms
    follower.now_ms += ms


def test_a_follower_does_not_fetch_a_partition_over_its_quota(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    throttle(follower, "follower", 2)
    follower.follow(leader, times=10)
    assert ends(follower) == (3, 10), "the third batch exceeded the quota"
    pass_time(leader, follower, 1_400)
    assert follower.manager.fetch_request(1, follower.now_ms) is not None
    follower.follow(leader)
    assert ends(follower) == (3, 10)
    pass_time(leader, follower, 100)
    follower.follow(leader, times=3)
    assert ends(follower) == (4, 10), "two batches a second"


def test_a_leader_returns_nothing_of_a_partition_over_its_quota(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    throttle(leader, "leader", 2)
    follower.follow(leader, times=10)
    assert ends(follower) == (3, 10)
    _, asked = follower.fetch_from(leader)
    assert asked.is_waiting, "the fetch waits without an error"
    leader.produce(b"news", acks=1)
    assert asked.is_waiting
    assert rows(asked.expire()) == {}
    pass_time(leader, follower, 1_500)
    follower.follow(leader)
    assert ends(follower) == (4, 10)


def test_a_replica_in_sync_is_not_throttled(leader: RecordBroker, follower: RecordBroker) -> None:
    follower.follow(leader, times=11)
    leader.commit_isr()
    throttle(leader, "leader", 1)
    throttle(follower, "follower", 1)
    for _ in range(5):
        leader.produce(b"x" * 100, acks=1)
        assert fetched_values(follower.follow(leader)) == {T0: [b"x" * 100]}
        follower.follow(leader)
    assert follower.log().log_end_offset == 15


def test_without_a_throttle_replication_has_full_speed(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    throttle(leader, "leader", 1)
    throttle(follower, "follower", 1)
    for broker in (leader, follower):
        broker.manager.quotas.on_topic_config("t", {})
    follower.follow(leader, times=10)
    assert ends(follower) == (10, 10)
