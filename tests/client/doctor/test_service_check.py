"""Each finding about what a cluster serves, and the command that mends it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from regent.client.doctor import served_cluster
from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.served_cluster import ClockReading, ServedCluster, StaleCache, read_served
from regent.client.doctor.service_check import check_service
from regent.client.health import Troubles
from regent.client.missing_brokers import MissingBroker
from regent.client.partitions import DescribedPartition
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.core.errors import Errors
from regent.core.model import (
    BrokerInfo,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LogEnd,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.broker import DescribeMetadataResponse, MetadataPartition
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.world import World


def partition(
    number: int, leader: int, isr: Sequence[int], replicas: Sequence[int] = (1, 2), topic: str = "t"
) -> DescribedPartition:
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(leader, tuple(isr), 4, 1), 1)
    assignment = ReplicaAssignment(tuple(replicas))
    return DescribedPartition(TopicPartition(topic, number), None, assignment, state)


def live(*brokers: int) -> dict[int, BrokerRegistration]:
    return {b: BrokerRegistration(BrokerInfo(b, ()), 7) for b in brokers}


def found(
    served: ServedCluster, settings: Mapping[int, Mapping[str, str]] | None = None
) -> list[Finding]:
    return list(check_service(ExaminedCluster(settings=settings or {}, served=served)))


def only(served: ServedCluster, settings: Mapping[int, Mapping[str, str]] | None = None) -> Finding:
    (finding,) = found(served, settings)
    return finding


def test_a_sound_cluster_has_no_finding():
    served = ServedCluster(live(1, 2), partitions=[partition(0, 1, (1, 2))])
    assert found(served) == []
    assert list(check_service(ExaminedCluster())) == [], "without ZooKeeper"


def test_what_status_says_is_a_finding():
    served = ServedCluster(troubles=Troubles(["there is no controller"], ["it has begun"]))
    assert [(row.severity, row.sentence) for row in found(served)] == [
        (Severity.PROBLEM, "there is no controller"),
        (Severity.WARNING, "it has begun"),
    ]


def test_a_missing_broker_and_its_partitions_are_named_with_the_command_that_starts_it():
    served = ServedCluster(
        live(1),
        partitions=[partition(0, 1, (1,)), partition(1, -1, (2,))],
        missing={2: MissingBroker(2, None, "log directory /d is offline: No space left on device")},
    )
    missing, leaderless, behind = found(served)
    assert missing.message == (
        "broker 2 not registered: log directory /d is offline: No space left on device;"
        " it has replicas of 2 partitions"
    )
    assert "brokers start 2`" in missing.remedy
    assert leaderless.severity is Severity.PROBLEM
    assert leaderless.sentence == "1 partition without a leader: t-1: start broker 2"
    assert behind.severity is Severity.WARNING
    assert behind.sentence == "1 partition under-replicated: t-0: start broker 2"


def test_of_a_missing_broker_whose_process_lives_here_the_process_is_ended_first(tmp_path: Path):
    entry = BrokerEntry(2, os.getpid(), "127.0.0.1", 1, 2, 3, 4)
    examined = ExaminedCluster(
        file=ClusterFile(tmp_path / "cluster.json", "127.0.0.1:1", brokers={2: entry}),
        processes={os.getpid(): "broker 2"},
        served=ServedCluster(live(1), missing={2: MissingBroker(2, None, "it stands still")}),
    )
    (missing,) = check_service(examined)
    assert missing.remedy == (
        "if it does not come back, end its process with `kill -9 $(regent brokers pid 2)`, then"
        " `regent brokers start 2`"
    )


def test_fewer_replicas_in_sync_than_required_is_a_problem():
    served = ServedCluster(
        live(1, 2, 3),
        partitions=[partition(0, 1, (1,), (1, 2, 3))],
        topic_configs={"t": {"min.insync.replicas": "2"}},
    )
    finding = only(served)
    assert finding.severity is Severity.PROBLEM
    assert "so that acks=all is refused: t-0" in finding.message
    assert "broker 2, 3 catches up" in finding.remedy


def test_two_replicas_on_one_host_are_named():
    hosts = {1: "m", 2: "m", 3: None, 4: None}
    of_hosts = {
        b: BrokerRegistration(BrokerInfo(b, (), node_host=host), 7) for b, host in hosts.items()
    }
    apart = [partition(0, 1, (1, 3), (1, 3)), partition(1, 3, (3, 4), (3, 4))]
    assert found(ServedCluster(of_hosts, partitions=apart)) == []
    finding = only(ServedCluster(of_hosts, partitions=[*apart, partition(2, 1, (1, 2))]))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "1 partition with two replicas on one host, which are lost with it: t-2"
    )


def test_a_broker_that_could_not_be_asked_is_a_warning():
    """Else a cluster looks sound from a machine whose key one broker does not allow."""
    finding = only(ServedCluster(live(1, 2), silent={2: "tcp://m:10092: no connection"}))
    assert finding.severity is Severity.WARNING
    assert finding.message.startswith("broker 2 does not answer control requests, so its clock")
    assert finding.message.endswith(": tcp://m:10092: no connection")


def test_a_broker_that_comes_and_goes_is_a_warning():
    finding = only(ServedCluster(live(1, 2), restless_brokers={2: "broker 2 has left"}))
    assert finding.severity is Severity.WARNING
    assert finding.sentence.startswith(
        "broker 2 has left: unless somebody restarts it, its session"
    )


def test_a_suspect_replica_is_named():
    suspects = SuspectReplicas({TopicPartition("t", 0): LogEnd(1, 5)})
    registered = {**live(1), 2: BrokerRegistration(BrokerInfo(2, ()), 7, suspects)}
    finding = only(ServedCluster(registered, partitions=[partition(0, 1, (1, 2))]))
    assert finding.message.startswith("broker 2 may have lost records of 1 partition (t-0)")


def test_leaderships_that_did_not_return_are_a_skew():
    away = [partition(n, 2, (1, 2)) for n in range(10)]
    assert (
        "elect-leaders --election-type preferred"
        in only(ServedCluster(live(1, 2), partitions=away)).remedy
    )
    at_home = [
        partition(n, 1 + n % 2, (1, 2), (1, 2) if n % 2 == 0 else (2, 1)) for n in range(10, 200)
    ]
    assert found(ServedCluster(live(1, 2), partitions=[*away, *at_home])) == []


@pytest.mark.parametrize("known", [(1, 4), (2, 4), (1, 3), None])
def test_a_broker_that_tells_other_leaders_is_named(known: tuple[int, int] | None):
    rows: tuple[MetadataPartition, ...] = ()
    if known is not None:
        rows = (MetadataPartition("t", None, 0, *known, 1, (1, 2), (1, 2), (), 1),)
    cache = DescribeMetadataResponse(Errors.NONE, 2, "running", 1, 1, partitions=rows)
    served = ServedCluster(live(1, 2), partitions=[partition(0, 1, (1, 2))], caches={2: cache})
    if known == (1, 4):
        assert found(served) == []
    else:
        assert "of 1 partition: t-0" in only(served).message


def test_topics_that_one_broker_can_stop_are_named():
    rows = [partition(0, 1, (1,), (1,), "single"), partition(0, 1, (1, 2), (1, 2), "strict")]
    rows.append(partition(0, 1, (1, 2), (1, 2), "few"))
    configs = {"strict": {"min.insync.replicas": "2"}, "few": {"min.insync.replicas": "3"}}
    served = ServedCluster(live(1, 2), partitions=rows, topic_configs=configs)
    messages = [finding.message for finding in found(served)]
    assert any("with one replica" in m and m.endswith("single") for m in messages)
    assert any("no more replicas" in m and m.endswith("few, strict") for m in messages)


def test_what_does_not_get_on_is_said_with_its_reason():
    served = ServedCluster(
        live(1, 2),
        software={1: "regent", 2: "kafka 3.9"},
        deletions={"old": "broker 3 is down"},
        move_obstacles=["broker 3 is down, and t-0 moves there"],
        old_transactions=["tx-1"],
    )
    said = " ".join(finding.sentence for finding in found(served))
    for part in ("kafka 3.9: 2", "topic old waits", "t-0 moves there", "tx-1"):
        assert part in said


def test_brokers_of_different_releases_are_named_with_what_ends_the_upgrade():
    software = {1: "regent", 2: "regent 0.4.0", 3: "regent 0.4.0"}
    finding = only(ServedCluster(software=software))
    assert finding.message == (
        "brokers run different software (regent 0.4.0: 2, 3; regent, an earlier release: 1)"
    )
    assert "restart --rolling" in finding.remedy
    assert found(ServedCluster(software={1: "regent 0.4.0", 2: "regent 0.4.0"})) == []


def test_topics_whose_settings_lose_records_are_counted_and_named_once():
    rows = [partition(n, 1 + n % 3, (1, 2, 3), (1, 2, 3), f"t{n}") for n in range(7)]
    rows.append(partition(0, 1, (1, 2, 3), (1, 2, 3), "__consumer_offsets"))
    configs = {f"t{n}": {"min.insync.replicas": "2"} for n in range(1, 7)}
    for name in configs:
        configs[name]["unclean.leader.election.enable"] = "true"
    configs["t0"] = {}
    rows.append(partition(0, 1, (1, 2, 3), (1, 2, 3), "whose-settings-cannot-be-read"))
    unclean, alone = found(ServedCluster(live(1, 2, 3), partitions=rows, topic_configs=configs))
    assert unclean.message.startswith("6 topics with unclean.leader.election.enable=true:")
    assert unclean.message.endswith(": t1, t2, t3, t4, t5 and 1 more")
    assert "topics config TOPIC --unset unclean.leader.election.enable" in unclean.remedy
    assert alone.message.startswith("1 topic with min.insync.replicas=1 and three replicas")
    assert alone.message.endswith(": t0")
    assert "topics config TOPIC --set min.insync.replicas=2" in alone.remedy


def test_a_throttle_that_no_move_needs_is_named_with_what_removes_it():
    throttled = {"leader.replication.throttled.replicas": "0:1"}
    row = partition(0, 1, (1, 2))
    served = ServedCluster(live(1, 2), [row], topic_configs={"t": throttled, "u": {}})
    no_rate = {1: {"leader.replication.throttled.rate": str(2**63 - 1)}}
    rate = {**no_rate, 2: {"follower.replication.throttled.rate": "1"}}
    finding = only(served, rate)
    assert finding.message == (
        "1 topic whose replicas are throttled although nothing is moved, on broker 2 to 1 B a"
        " second: after a failure they catch up no faster: t"
    )
    assert "topics config TOPIC --unset leader.replication.throttled.replicas" in finding.remedy
    assert found(served, no_rate) == []
    moving = replace(row, assignment=ReplicaAssignment((2, 1), (2,), (1,)))
    assert found(replace(served, partitions=[moving]), rate) == []


def test_a_broker_that_leads_more_than_its_share_is_named_with_what_spreads_them():
    """Each of them is on its preferred leader: an election changes nothing."""
    mine = [partition(n, 1, (1, 2)) for n in range(40)]
    fair = [partition(n, 2, (1, 2), (2, 1)) for n in range(40, 70)]
    assert found(ServedCluster(live(1, 2), partitions=[*mine, *fair])) == []
    finding = only(ServedCluster(live(1, 2), partitions=[*mine, *fair[:5]]))
    assert finding.message.startswith("broker 1 leads 40 of 45 partitions, where 22 are its share")
    assert "jobs plan rebalance --out plan --execute" in finding.remedy


def test_settings_of_brokers_that_are_known_to_hurt_are_named_with_what_mends_them():
    hurts = {
        "auto.create.topics.enable": "true",
        "log.flush.interval.messages": "1",
        "replica.lag.time.max.ms": "1500",
        "replica.fetch.wait.max.ms": "500",
    }
    sound = {**hurts, "replica.lag.time.max.ms": "2000", "auto.create.topics.enable": "false"}
    sound["log.flush.interval.messages"] = "10"
    assert found(ServedCluster(live(1)), {1: sound}) == []
    flush, lag, creates = found(ServedCluster(live(1, 2)), {1: hurts, 2: sound})
    assert creates.severity is Severity.OK, "it is the default"
    assert "config --default --unset log.flush.interval.messages" in flush.remedy
    assert "restart --rolling" in creates.remedy
    assert lag.message.startswith(
        "broker 1 has replica.lag.time.max.ms=1500 with replica.fetch.wait.max.ms=500: "
    )


@pytest.mark.parametrize("is_news", [True, False])
def test_a_cache_is_only_stale_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch, is_news: bool
) -> None:
    world = World((1, 2))
    world.put_topic("t", {0: ReplicaAssignment((1, 2))}, leaders={0: LeaderAndIsr(1, (1, 2), 4)})

    def cache(isr: tuple[int, ...], *more: str) -> DescribeMetadataResponse:
        rows = [
            MetadataPartition(topic, None, 0, 1, 4, 1, isr, (1, 2), (), 1) for topic in ("t", *more)
        ]
        return DescribeMetadataResponse(Errors.NONE, 2, "running", 1, 1, partitions=tuple(rows))

    told = iter([cache((1,), "gone"), cache((1,), "gone"), cache((1, 2))])
    last = cache((1,), "gone")
    monkeypatch.setattr(
        served_cluster, "_told_at", lambda _: (next(told) if is_news else last, None)
    )
    monkeypatch.setattr(served_cluster, "_NEWS_S", 10.0 if is_news else 0.1)
    registered = {2: replace(live(2)[2], info=BrokerInfo(2, (), control_endpoint="tcp://h:1"))}
    admin = ZkAdminStore(FakeZooKeeper(world.zookeeper))
    monkeypatch.setattr(served_cluster, "read_live_brokers", lambda _: registered)
    stale = read_served(admin, {}, Troubles()).stale
    assert stale == ({} if is_news else {2: StaleCache(["gone"], [TopicPartition("t", 0)])})


def test_what_a_broker_still_tells_of_deleted_topics_and_former_isrs_is_named():
    served = ServedCluster(live(1, 2), stale={2: StaleCache(["gone"], [TopicPartition("t", 0)])})
    finding = only(served)
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "broker 2 has told clients for some seconds of 1 topic after the deletion (gone) and of"
        " other ISRs of 1 partition (t-0)"
    )
    assert "controller move" in finding.remedy


def test_settings_that_lose_records_or_differ_between_brokers_are_named():
    settings = {
        1: {"unclean.leader.election.enable": "true", "default.replication.factor": "3"},
        2: {"default.replication.factor": "1"},
    }
    unclean, differing = found(ServedCluster(live(1, 2)), settings)
    assert unclean.message.startswith("broker 1 has unclean.leader.election.enable=true")
    assert "default.replication.factor (1, 3)" in differing.message


def test_what_a_broker_warns_of_is_a_finding():
    told = DescribeMetadataResponse(Errors.NONE, 2, "running", 1, 1, warnings=("the disk fills",))
    assert only(ServedCluster(live(1, 2), caches={2: told})).sentence == "broker 2: the disk fills"


@pytest.mark.parametrize(
    ("ahead_s", "named"),
    [
        ([5.0, 5.1, 4.9], []),
        ([0.0, 0.1, 3.0], [3]),
        ([0.0, -3.0, 0.1], [2]),
        ([0.0, 3.0], [1, 2]),
        ([0.0, 0.9], []),
        ([3.0], []),
    ],
)
def test_a_clock_that_differs_from_the_others_is_named(ahead_s: list[float], named: list[int]):
    clocks = {b: ClockReading(ahead, 0.01) for b, ahead in enumerate(ahead_s, 1)}
    findings = found(ServedCluster(clocks=clocks))
    assert [finding.subject for finding in findings] == [f"broker {b}" for b in named]
    assert all(" s ahead of that" in f.message or " s behind that" in f.message for f in findings)


def test_a_clock_is_not_named_for_what_a_slow_answer_may_explain():
    clocks = {1: ClockReading(0.0, 0.1), 2: ClockReading(3.0, 2.5), 3: ClockReading(0.0, 0.1)}
    assert found(ServedCluster(clocks=clocks)) == []
