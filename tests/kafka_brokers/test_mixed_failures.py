"""Dead brokers, failing log directories and paused leaders where both kinds have replicas."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from regent.core.model import BrokerId, TopicPartition
from tests.kafka_brokers.mixed_cluster import LOG_DIRS, RULERS, MixedCluster
from tests.kafka_brokers.moved_cluster import BROKERS
from tests.support.histories import check, summary
from tests.support.load import Load
from tests.support.record_batches import records_of

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_unclean_elections_and_deletions_with_brokers_that_were_away(
    ruler: str, mixed: MixedCluster
):
    """The last member of an ISR dies, a broker that is behind returns, of each kind."""
    mixed_kinds = ((mixed.ours, mixed.kafka), (mixed.kafka, mixed.ours))
    for leader, behind in mixed_kinds:
        if leader != mixed.ruler(ruler):  # it dies
            _elect_uncleanly(mixed, ruler, leader, behind)


def _elect_uncleanly(mixed: MixedCluster, kind: str, leader: BrokerId, behind: BrokerId) -> None:
    cluster, of_ours, other = mixed.cluster, mixed.cluster.ours, mixed.other
    ruler = mixed.let_rule(kind)
    topics = by_tool, by_itself, doomed = [
        f"{name}-{behind}-under-{kind}" for name in ("by-tool", "by-itself", "doomed")
    ]
    asked, automatic = (TopicPartition(topic, 0) for topic in topics[:2])
    mixed.create(other, by_tool, (leader, behind))
    mixed.create(other, by_itself, (leader, behind), **{"unclean.leader.election.enable": "true"})
    mixed.create(other, doomed, (leader, behind), (behind, other))
    for partition in (asked, automatic):
        mixed.produce(partition, [b"kept"])

    cluster.kill(behind)
    for partition in (asked, automatic):
        mixed.await_state(partition, leader, {leader})
        mixed.produce(partition, [b"lost"], leader, other)
    mixed.tool(other, "TopicCommand", "--delete", "--topic", doomed)
    cluster.end(leader)
    mixed.await_state(asked, -1, {leader})

    cluster.start(behind, is_ours=behind in of_ours)
    cluster.let_rule(ruler, behind, other)
    mixed.await_state(automatic, behind, {behind})
    mixed.await_state(asked, -1, {leader})
    options = ("--election-type", "unclean", "--topic", by_tool, "--partition", "0")
    mixed.tool(other, "LeaderElectionCommand", *options)
    mixed.await_state(asked, behind, {behind})
    for partition in (asked, automatic):
        mixed.produce(partition, [b"new"], behind, other)

    cluster.restart(leader, is_ours=leader in of_ours)
    for partition in (asked, automatic):
        mixed.await_state(partition, behind, {leader, behind})
        mixed.await_values(partition, [b"kept", b"new"], leader, behind)
    mixed.await_deletion(doomed, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_partitions_of_a_failed_log_directory_go_on_elsewhere(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    for broker, follower in ((mixed.kafka, mixed.ours), (mixed.ours, mixed.kafka)):
        _fail_a_directory(mixed, ruler, broker, follower, tmp_path)


def _fail_a_directory(
    mixed: MixedCluster, kind: str, broker: BrokerId, follower: BrokerId, scratch: Path
) -> None:
    cluster, other, is_ours = mixed.cluster, mixed.other, broker in mixed.cluster.ours
    mixed.let_rule(kind)
    topic = f"directories-{broker}-under-{kind}"
    partitions = [TopicPartition(topic, number) for number in range(6)]
    placed = [(broker, follower)] * 3 + [(follower, broker)] * 3
    mixed.create(other, topic, *placed, **{"segment.bytes": "8192"})
    places = mixed.directories(other, broker, topic)
    failing = LOG_DIRS[1]
    assert all(places.values()), places
    folder = cluster.kafkas[broker].directory / failing
    folder.rename(away := folder.with_name("away"))
    folder.touch()
    values = [b"%d" % number * 1_000 for number in range(10)]  # more than a segment
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.produce(partition, values)
        if str(partition) in places[failing]:
            mixed.await_state(partition, follower, {follower})
        else:
            mixed.await_state(partition, replicas[0], {*replicas})
    assert mixed.directories(other, broker, topic) == {
        **places,
        failing: ["KafkaStorageException"],
    }
    failed = min(number for number, p in enumerate(partitions) if str(p) in places[failing])
    placed[failed] = (follower, other)
    mixed.reassign(follower, mixed.reassignment(scratch, topic, *placed))
    mixed.await_state(partitions[failed], follower, {follower, other}, [follower, other])

    cluster.shut_down(broker)
    folder.unlink()
    away.rename(folder)
    cluster.restart(broker, is_ours=is_ours)
    for partition, replicas in zip(partitions, placed, strict=True):
        mixed.await_state(partition, None, {*replicas}, list(replicas))
        mixed.produce(partition, [b"later"])
        mixed.await_values(partition, [*values, b"later"], *replicas)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ruler", RULERS)
def test_nothing_acknowledged_is_lost_when_leaders_pause_for_longer_than_their_session(
    ruler: str, mixed: MixedCluster, tmp_path: Path
):
    cluster = mixed.cluster
    topic = f"paused-under-{ruler}"
    partitions = [TopicPartition(topic, number) for number in range(len(BROKERS))]
    mixed.let_rule(ruler)
    placed = [(*BROKERS[n:], *BROKERS[:n]) for n in range(len(BROKERS))]
    mixed.create(mixed.ours, topic, *placed, **{"min.insync.replicas": "2"})
    servers = str(cluster.clients["bootstrap.servers"])
    with Load(servers, partitions, records_per_s=200) as load:
        load.await_progress(100)
        for broker in BROKERS:
            mixed.let_rule(ruler)
            others = {*BROKERS} - {broker}
            cluster.signal(broker, signal.SIGSTOP)
            try:
                for partition in partitions:
                    mixed.await_state(partition, None, others)
                load.await_progress(100)
            finally:
                cluster.signal(broker, signal.SIGCONT)
            for partition in partitions:
                mixed.await_state(partition, None, {*BROKERS})
            load.await_progress(100)
            mixed.elect_preferred(broker, tmp_path, partitions)
        load.stop_producers()
        logs = {
            partition: {b: records_of(cluster.log_of(b, str(partition))) for b in BROKERS}
            for partition in partitions
        }
        load.finish_consumers({p: len(next(iter(logs[p].values()))) for p in partitions})
        assert summary(check(load.history, logs)) == ""
