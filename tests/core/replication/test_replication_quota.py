from __future__ import annotations

import pytest

from regent.broker.machine_settings import dynamic_values
from regent.config.settings import Settings
from regent.core.model import TopicPartition
from regent.core.replication.replication_quota import ReplicationQuota, ReplicationQuotas

ME = 1
STARTED = dynamic_values(Settings())
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def quota() -> ReplicationQuota:
    """Return a quota of a hundred bytes a second."""
    quota = ReplicationQuota(ME)
    quota.limit(100)
    return quota


def test_only_the_listed_replicas_are_throttled(quota: ReplicationQuota):
    quota.throttle("t", "0:1, 1:2,0:3")
    assert [quota.is_throttled(topic_partition) for topic_partition in (T0, T1, U0)] == [
        True,
        False,
        False,
    ]


def test_a_star_lists_all_replicas_of_a_topic(quota: ReplicationQuota):
    quota.throttle("t", "*")
    assert [quota.is_throttled(topic_partition) for topic_partition in (T0, T1, U0)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("replicas", ["", "none", "0", "x:1", "0:2"])
def test_a_list_without_replicas_of_this_broker_ends_the_throttle(
    quota: ReplicationQuota, replicas: str
):
    quota.throttle("t", "0:1")
    quota.throttle("t", replicas)
    assert not quota.is_throttled(T0)


@pytest.mark.parametrize("rate", [None, 0])
def test_without_a_rate_nothing_is_throttled(rate: int | None):
    quota = ReplicationQuota(ME)
    quota.throttle("t", "*")
    quota.limit(rate)
    quota.record(1_000_000, now_ms=0)
    assert not quota.is_throttled(T0)
    assert quota.pause_ms(0) == 0


def test_after_a_burst_the_replica_waits_until_the_rate_is_met(quota: ReplicationQuota):
    quota.record(100, now_ms=0)
    assert quota.pause_ms(0) == 0
    quota.record(200, now_ms=10)
    assert quota.pause_ms(10) == 2_990
    assert quota.pause_ms(2_000) == 1_000
    assert quota.pause_ms(3_000) == 0


def test_the_rate_is_measured_over_the_last_seconds(quota: ReplicationQuota):
    quota.record(1_000_000, now_ms=0)
    assert quota.pause_ms(1_000) == 10_000  # and not over hours
    assert quota.pause_ms(11_000) == 0
    quota.record(200, now_ms=11_000)
    assert quota.pause_ms(11_000) == 2_000


def test_a_steady_stream_keeps_the_rate(quota: ReplicationQuota):
    sent = now_ms = 0
    while now_ms < 60_000:
        quota.record(250, now_ms)
        sent += 250
        now_ms += max(quota.pause_ms(now_ms), 1)
    assert 95 <= sent * 1_000 / now_ms <= 120


def test_settings_of_the_broker_and_of_topics_are_used():
    quotas = ReplicationQuotas(ME)
    quotas.on_topic_config("t", {"leader.replication.throttled.replicas": "0:1"})
    quotas.on_topic_config("u", {"follower.replication.throttled.replicas": "*"})
    assert not quotas.leader.is_throttled(T0)
    quotas.reconfigure(STARTED, {**STARTED, "leader.replication.throttled.rate": 7})
    assert quotas.leader.is_throttled(T0)
    assert not quotas.follower.is_throttled(U0)
    quotas.reconfigure(STARTED, {**STARTED, "follower.replication.throttled.rate": 8})
    assert not quotas.leader.is_throttled(T0)
    assert quotas.follower.is_throttled(U0)
    alter_log_dirs = "replica.alter.log.dirs.io.max.bytes.per.second"
    quotas.reconfigure(STARTED, {**STARTED, alter_log_dirs: 10})
    quotas.alter_log_dirs.record(30, 0)
    assert quotas.alter_log_dirs.pause_ms(0) == 3_000
