"""``status``: healthy or unhealthy, with reasons."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from regent.cluster.cluster_file import ClusterFile, PlacementEntry
from regent.config.cluster_location import CLUSTER_FILE
from regent.core.controller.quarantine import FAILURES_TO_QUARANTINE
from regent.core.errors import Errors
from regent.core.model import (
    NO_CONTROLLER_EPOCH_LEFT,
    LeaderAndIsr,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import ControllerFailure
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.controller import (
    DepartedBroker,
    DescribeControllerRequest,
    DescribeControllerResponse,
    UnansweredRequest,
)
from regent.core.protocol.placement import PlacementStatusResponse
from regent.core.replica_logs import SeenOfCluster
from regent.storage.log_directory import LogDirectory
from regent.zk.codecs.broker_znodes import BrokerEnd
from regent.zk.stores.broker_ends import note_end
from regent.zk.znodes import (
    ClusterIdZNode,
    ConfigEntityZNode,
    ControllerFailuresZNode,
    TopicPartitionStateZNode,
)
from tests.support.fake_cluster import ADDRESS, FakeCluster, failing, write_cluster_file
from tests.support.fake_zookeeper import FakeZooKeeper

T0 = TopicPartition("t", 0)
ON_BOTH = {0: ReplicaAssignment((0, 1))}
IN_SYNC = {0: LeaderAndIsr(0, (0, 1))}
LEADERLESS = "without a leader"
OWN_WORDS_OF_DOCTOR = {
    "not registered": ("not registered", "does not run"),
    LEADERLESS: (LEADERLESS,),
    "under-replicated": ("under-replicated", "fewer replicas in sync", LEADERLESS),
}
"""What ``doctor`` says of a reason of ``status`` that has these words."""
KRAFT = b'{"version":2,"brokerid":3000,"timestamp":"0","kraftControllerEpoch":5}'


@pytest.fixture
def healthy(cluster: FakeCluster) -> FakeCluster:
    endpoint = cluster.serve(cluster.lead)
    cluster.add_broker(0, control_endpoint=endpoint, port=1)  # nobody listens there
    cluster.add_broker(1, control_endpoint=endpoint, port=1)
    cluster.elect(1)
    cluster.put_topic("t", ON_BOTH, leaders=IN_SYNC)
    return cluster


def reasons(cluster: FakeCluster, *arguments: str) -> list[str]:
    """Return why a cluster is unhealthy; check that ``doctor`` has a problem for it, too."""
    status = cluster.json("status", *arguments, exit_code=1)
    assert status["healthy"] is False
    found = status["reasons"]
    assert isinstance(found, list)
    diagnosed = cluster.json("doctor", "--watch-groups", "0", *arguments, exit_code=2)
    said = [row["message"] for row in diagnosed if row["severity"] != "ok"]
    for reason in found:
        of_status = next((words for words in OWN_WORDS_OF_DOCTOR if words in reason), "")
        words = OWN_WORDS_OF_DOCTOR.get(of_status, ()) or (reason,)
        assert any(each in message for each in words for message in said), (reason, said)
    return found


def test_a_healthy_cluster(healthy: FakeCluster, tmp_path: Path) -> None:
    ready = PlacementStatusResponse(Errors.NONE, "ready", "")
    endpoint = healthy.serve(lambda _: ready)
    brokers = {0: "tcp://127.0.0.1:1", 1: "tcp://127.0.0.1:2"}
    write_cluster_file(tmp_path, brokers=brokers, placement=endpoint)

    status = healthy.json("status", "--data-dir", str(tmp_path))

    assert [broker["id"] for broker in status.pop("brokers")] == [0, 1]
    assert status == {
        "healthy": True,
        "not_told": [],
        "reasons": [],
        "warnings": [],
        "zookeeper": {"address": ADDRESS, "connected": True},
        "controller": {"broker_id": 1, "controller_epoch": 1, "epoch_zk_version": 0},
        "event_queue_size": 0,
        "unanswered": [],
        "missing_brokers": [],
        "missing": [],
        "slow_brokers": [],
        "catching_up": [],
        "placement": {"endpoint": endpoint, "state": "ready", "message": ""},
        "topics": 1,
        "topics_being_deleted": 0,
        "topics_waiting_for_deletion": [],
        "partitions": 1,
        "partitions_being_reassigned": 0,
        "under_replicated_partitions": 0,
        "leaderless_partitions": 0,
        "groups": None,
    }


def test_a_healthy_cluster_on_one_screen(healthy: FakeCluster) -> None:
    result = healthy.run("status")

    assert result.exit_code == 0
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert {name: value.strip() for name, value in lines.items()} == {
        "zookeeper": ADDRESS,
        "controller": "broker 1 (epoch 1)",
        "events queued": "0",
        "brokers": "0, 1",
        "placement service": "none",
        "topics": "1",
        "topics being deleted": "0",
        "partitions": "1",
        "partitions being reassigned": "0",
        "under-replicated partitions": "0",
        "leaderless partitions": "0",
        "health": "ok",
    }


def test_an_unhealthy_cluster_on_one_screen(healthy: FakeCluster) -> None:
    healthy.unregister(1)

    result = healthy.run("status")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "unhealthy: there is no controller"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("epoch", "said"),
    [
        ("2147483647", NO_CONTROLLER_EPOCH_LEFT),
        ("banana", "/controller_epoch"),
    ],
)
def test_an_epoch_that_allows_no_election_is_named(
    healthy: FakeCluster, epoch: str, said: str
) -> None:
    healthy.unregister(1)
    healthy.zookeeper.put("/controller_epoch", epoch.encode())
    output = healthy.run("status").stdout
    assert said in output.splitlines()[-1]
    assert "partitions                   1" in output


@pytest.mark.parametrize(
    ("cluster_id", "zxid", "said"),
    [
        ("ours", 1, None),
        ("other copy", 1, None),
        ("other", 1, "belongs to cluster other, but ZooKeeper says ours"),
        ("ours", 10**9, "the ZooKeeper data is older than what this broker has seen"),
    ],
)
def test_zookeeper_data_that_local_brokers_refuse_are_named(
    healthy: FakeCluster, tmp_path: Path, cluster_id: str, zxid: int, said: str | None
) -> None:
    write_cluster_file(tmp_path, brokers={0: "tcp://127.0.0.1:1", 1: "tcp://127.0.0.1:2"})
    healthy.zookeeper.put("/cluster/id", ClusterIdZNode.encode("ours"))
    folder = "broker-0.bak" if "copy" in cluster_id else "broker-0"
    logs = LogDirectory(tmp_path / folder / "log")
    logs.open(0)
    logs.join_cluster(0, cluster_id)
    logs.note_seen(SeenOfCluster(1, zxid))
    logs.close()
    status = healthy.run("status", "--data-dir", str(tmp_path))
    assert status.exit_code == (0 if said is None else 1)
    assert said is None or said in status.stdout


@pytest.mark.parametrize(
    "path",
    ["/cluster/id", "/brokers/ids", "/brokers/topics", "/controller_epoch", "/config/changes"],
)
def test_unreadable_znodes_are_named_with_the_remedy_beside_other_reasons(
    healthy: FakeCluster, tmp_path: Path, path: str
) -> None:
    write_cluster_file(tmp_path, brokers={0: "tcp://127.0.0.1:1", 1: "tcp://127.0.0.1:2"})
    healthy.zookeeper.put("/cluster/id", ClusterIdZNode.encode("ours"))
    healthy.zookeeper.put("/config/changes")
    healthy.zookeeper.remove("/controller")
    healthy.zookeeper.deny(path)
    expected = [
        f"{path}: ZooKeeper refuses to show it: NO_AUTH;"
        f" to allow it: setAcl {path} world:anyone:cdrwa",
        "there is no controller",
    ]
    assert reasons(healthy, "--data-dir", str(tmp_path)) == expected


def test_lost_zookeeper_data_are_named(cluster: FakeCluster, tmp_path: Path) -> None:
    write_cluster_file(tmp_path, brokers={0: "tcp://127.0.0.1:1"})
    logs = LogDirectory(tmp_path / "broker-0" / "log")
    logs.open(0)
    logs.join_cluster(0, "ours")
    logs.close()
    cluster.zookeeper.remove("/brokers/ids")
    said = reasons(cluster, "--data-dir", str(tmp_path))
    assert "belongs to cluster ours, but ZooKeeper has no /cluster/id" in said[0]
    assert "no /brokers/ids" in said[-1]


def test_partitions_without_leaders_or_in_sync_replicas_are_named(healthy: FakeCluster) -> None:
    healthy.put_topic("new", ON_BOTH)
    healthy.put_topic("lost", ON_BOTH, leaders={0: LeaderAndIsr(-1, (0, 1))})
    healthy.put_topic("behind", ON_BOTH, leaders={0: LeaderAndIsr(0, (0,))})

    assert reasons(healthy) == [
        "2 partitions without a leader: lost-0, new-0",
        "2 partitions under-replicated: behind-0, new-0",
    ]


def test_an_unregistered_leader_does_not_count(healthy: FakeCluster) -> None:
    healthy.unregister(0)
    missing, *others = reasons(healthy)
    assert missing.startswith("broker 0 not registered: ")
    assert others == ["1 partition without a leader: t-0"]


def test_only_the_first_partitions_are_named(healthy: FakeCluster) -> None:
    healthy.put_topic("new", dict.fromkeys(range(8), (0,)))
    assert reasons(healthy)[0] == (
        "8 partitions without a leader: new-0, new-1, new-2, new-3, new-4 and 3 more"
    )


def test_topics_being_deleted_are_not_unhealthy(healthy: FakeCluster) -> None:
    healthy.put_topic("gone", ON_BOTH, leaders={0: LeaderAndIsr(-1, ())})
    healthy.zookeeper.put("/admin/delete_topics/gone")

    status = healthy.json("status")

    assert (status["topics"], status["topics_being_deleted"], status["partitions"]) == (2, 1, 1)
    assert status["topics_waiting_for_deletion"] == [
        {"topic": "gone", "ineligible": False, "reason": "the controller has not begun"}
    ]
    assert status["warnings"] == []


def test_temporary_problems_are_warnings(healthy: FakeCluster) -> None:
    healthy.put_topic("gone", ON_BOTH)
    healthy.zookeeper.put("/admin/delete_topics/gone")
    healthy.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE,
        controller_epoch=1,
        event_queue_size=12,
        topics_to_be_deleted=("gone",),
        topics_ineligible_for_deletion=("gone",),
        reassigning_partitions=3,
    )

    result = healthy.run("status")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "events queued                12" in lines
    assert "partitions being reassigned  3" in lines
    assert lines[-1] == (
        "warning: topic gone waits to be deleted: a replica could not be deleted; the log of its"
        " broker says why"
    )
    status = healthy.json("status")
    assert status["healthy"] is True
    assert status["event_queue_size"] == 12


def test_states_that_the_controller_cannot_write_are_named_with_the_remedy(
    healthy: FakeCluster,
) -> None:
    path = TopicPartitionStateZNode.path(T0)
    healthy.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE, refused_states=(T0,)
    )
    assert reasons(healthy) == [
        f"t-0: ZooKeeper refuses to let the controller change {path};"
        f" to allow it: setAcl {path} world:anyone:cdrwa"
    ]
    healthy.zookeeper.deny(path)
    (said,) = (reason for reason in reasons(healthy) if path in reason)
    assert f"{path}: ZooKeeper refuses to show it" in said


def test_an_address_that_another_broker_answers_is_a_reason(healthy: FakeCluster) -> None:
    reason = "tcp://h:1: broker 0 answers at the address of broker 3"
    healthy.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE, unanswered=(UnansweredRequest(3, "LeaderAndIsr", 215, reason),)
    )
    result = healthy.run("status")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == (
        f"unhealthy: broker 3 has left LeaderAndIsr unanswered for 0.2 s: {reason}"
    )


def test_a_broker_that_leaves_requests_unanswered_is_a_reason(healthy: FakeCluster) -> None:
    healthy.answers[DescribeControllerRequest] = lambda _: DescribeControllerResponse(
        Errors.NONE, unanswered=(UnansweredRequest(0, "LeaderAndIsr", 7215),)
    )

    result = healthy.run("status")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == (
        "unhealthy: broker 0 has left LeaderAndIsr unanswered for 7.2 s"
    )
    status = healthy.json("status", exit_code=1)
    assert status["healthy"] is False
    assert status["unanswered"] == [
        {"broker_id": 0, "request": "LeaderAndIsr", "unanswered_ms": 7215, "reason": ""}
    ]


def test_a_controller_that_does_not_answer_is_a_reason(
    healthy: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.client.health._CONTROLLER_LIMIT_S", 0.05)
    healthy.answers[DescribeControllerRequest] = lambda _: None

    status = healthy.json("status", exit_code=1)

    (reason,) = status["reasons"]
    assert reason.startswith("the controller does not answer: ")


def test_a_former_controller_is_a_warning(healthy: FakeCluster) -> None:
    healthy.answers[DescribeControllerRequest] = lambda _: Errors.NOT_CONTROLLER
    moving = {0: ReplicaAssignment((0, 1), adding_replicas=(1,))}
    healthy.put_topic("moving", moving, leaders=IN_SYNC)

    status = healthy.json("status")

    assert status["warnings"] == ["the controller answered NOT_CONTROLLER"]
    assert status["event_queue_size"] is None
    assert status["partitions_being_reassigned"] == 1


def test_the_number_of_reasons_is_limited(healthy: FakeCluster) -> None:
    rows = tuple(UnansweredRequest(n, "LeaderAndIsr", 5000) for n in range(13))
    answer = DescribeControllerResponse(Errors.NONE, unanswered=rows)
    healthy.answers[DescribeControllerRequest] = lambda _: answer

    lines = healthy.run("status").stdout.splitlines()

    assert sum(line.startswith("unhealthy: broker") for line in lines) == 10
    assert lines[-1] == "unhealthy: … and 3 more (-o json has them all)"


def test_a_broker_of_the_data_directory_that_is_missing_is_named(
    healthy: FakeCluster, tmp_path: Path
) -> None:
    write_cluster_file(tmp_path, brokers={n: f"tcp://127.0.0.1:{n + 1}" for n in range(4)})

    status = healthy.json("status", "--data-dir", str(tmp_path), exit_code=1)

    assert [reason.partition(":")[0] for reason in status["reasons"]] == [
        "broker 2 not registered",
        "broker 3 not registered",
    ]
    assert status["missing_brokers"] == [2, 3]


def test_a_missing_broker_is_named_because_it_has_replicas_and_says_why_it_ended(
    healthy: FakeCluster,
) -> None:
    healthy.put_topic("u", {0: ReplicaAssignment((0, 7))}, leaders={0: LeaderAndIsr(0, (0,))})
    session = FakeZooKeeper(healthy.zookeeper)
    full = "log directory /d is offline: No space left on device"
    assert note_end(session, 7, BrokerEnd(1_000, full))

    (missing, *_) = [r for r in reasons(healthy) if "not registered" in r]

    assert missing.startswith("broker 7 not registered since 1970-01-01T00:00:01Z (")
    assert missing.endswith(f": {full}")


def test_a_broker_that_was_killed_is_missing_since_the_controller_has_seen_it_leave(
    healthy: FakeCluster,
) -> None:
    """What it wrote at an earlier end is not the reason of this one."""
    healthy.put_topic("u", {0: ReplicaAssignment((0, 7))}, leaders={0: LeaderAndIsr(0, (0,))})
    end = BrokerEnd(1_000, "it was shut down", was_asked=True)
    note_end(FakeZooKeeper(healthy.zookeeper), 7, end)
    answer = DescribeControllerResponse(Errors.NONE, departed=(DepartedBroker(7, 3_600_000),))
    healthy.answers[DescribeControllerRequest] = lambda _: answer

    status = healthy.json("status", exit_code=1)

    (missing,) = status["missing"]
    assert (missing["broker_id"], missing["since_ms"]) == (7, 3_600_000)
    assert "its process was killed, has crashed or stands still" in missing["reason"]


def test_the_supervisor_on_this_machine_knows_the_signal_that_ended_a_broker(
    healthy: FakeCluster, tmp_path: Path
) -> None:
    write_cluster_file(tmp_path, brokers={2: "tcp://127.0.0.1:3"})
    file = ClusterFile.read(tmp_path / CLUSTER_FILE)
    assert file is not None
    file.brokers[2] = replace(file.brokers[2], ended="ended by SIGKILL", ended_ms=5_000)
    file.write()

    (missing,) = reasons(healthy, "--data-dir", str(tmp_path))

    assert missing.endswith("its process 4712 ended by SIGKILL")


def test_a_broker_whose_process_lives_on_this_machine_is_not_said_to_have_crashed(
    healthy: FakeCluster, tmp_path: Path
) -> None:
    """It was paused for longer than its session, for example."""
    write_cluster_file(tmp_path, brokers={2: "tcp://127.0.0.1:3"})

    (missing,) = reasons(healthy, "--data-dir", str(tmp_path))

    assert "its process 4712 has not ended, as far as its supervisor knows: it stands" in missing


def test_a_broker_without_replicas_that_failed_today_is_a_warning(healthy: FakeCluster) -> None:
    session, now_ms = FakeZooKeeper(healthy.zookeeper), time.time_ns() // 1_000_000
    note_end(session, 7, BrokerEnd(now_ms, "no log directory works"))
    note_end(session, 8, BrokerEnd(now_ms, "it was shut down", was_asked=True))
    note_end(session, 9, BrokerEnd(1_000, "long ago"))

    status = healthy.json("status")

    (warning,) = status["warnings"]
    assert warning.startswith("broker 7 not registered since")
    assert warning.endswith(": no log directory works")


def test_an_unregistered_controller_is_unhealthy(healthy: FakeCluster) -> None:
    healthy.zookeeper.put("/controller", b'{"version":1,"brokerid":9,"timestamp":"0"}')
    assert reasons(healthy) == ["the controller, broker 9, is not registered"]


def test_a_controller_of_kraft_is_one_reason_with_the_remedy(healthy: FakeCluster) -> None:
    healthy.zookeeper.put("/controller", KRAFT)
    (reason,) = reasons(healthy)
    assert reason.startswith("the KRaft controller 3000 holds /controller")
    assert "stop it and delete /controller" in reason


@pytest.mark.parametrize(("controller", "warnings"), [(3000, 1), (-1, 0)])
def test_a_migration_that_has_begun_is_a_warning(
    healthy: FakeCluster, controller: int, warnings: int
) -> None:
    """With -1 a controller of KRaft waits for brokers, and has changed nothing."""
    migration = (
        f'{{"version":0,"kraft_controller_id":{controller},"kraft_controller_epoch":5,'
        '"kraft_metadata_offset":12,"kraft_metadata_epoch":5}'
    )
    healthy.zookeeper.put("/migration", migration.encode())
    found = healthy.json("status")["warnings"]
    assert isinstance(found, list)
    assert len(found) == warnings
    assert all("KRaft controller 3000 has begun" in line for line in found)


def test_unreadable_nodes_are_unhealthy(healthy: FakeCluster) -> None:
    healthy.zookeeper.put("/brokers/topics/bad", b"garbage")
    healthy.zookeeper.put("/brokers/ids/3", b"garbage")

    found = reasons(healthy)

    assert found[0].startswith("broker 3: ")
    assert found[1].startswith("topic bad: ")


def test_settings_that_cannot_be_used_are_warnings(healthy: FakeCluster) -> None:
    for entity, config in {
        "topics/t": {"segment.ms": "bad", "retention.ms": "5"},
        "brokers/<default>": {"log.roll.ms": "soon", "my.plugin.url": "x"},
        "brokers/1": {"num.partitions": "3", "ssl.protocol": "TLSv1.3"},
        "clients/app": {"producer_byte_rate": "1024", "bogus": "1"},
    }.items():
        healthy.zookeeper.put(f"/config/{entity}", ConfigEntityZNode.encode(config))

    warnings = healthy.json("status")["warnings"]

    assert [warning.partition(" setting ")[2].split()[0] for warning in warnings] == [
        "log.roll.ms",
        "num.partitions",
        "segment.ms",
        "bogus",
    ]
    assert all(warning.endswith("; it is ignored") for warning in warnings)


def test_quarantined_events_and_unusable_settings_are_said_by_both_commands(
    healthy: FakeCluster,
) -> None:
    failures = [
        ControllerFailure("topic t", "TopicDeletion", "boom", FAILURES_TO_QUARANTINE, 1, 5),
        ControllerFailure("topic u", "TopicChange", "boom", 1, 1, 5),
    ]
    healthy.put(ControllerFailuresZNode.PATH, ControllerFailuresZNode.encode(failures))
    healthy.put("/config/topics/t", b"{")
    healthy.put("/config/brokers/0", b"{")
    healthy.put("/migration", b'{"version":0,"kraft_controller_id":3000}')
    (reason,) = reasons(healthy)
    assert reason.startswith("topic t is quarantined because it ended")
    warnings = healthy.json("status", exit_code=1)["warnings"]
    found = {row["message"] for row in healthy.json("doctor", exit_code=2)}
    assert len(set(warnings) & found) == 4, (warnings, found)


def test_unreadable_dynamic_settings_are_warnings(
    healthy: FakeCluster,
) -> None:
    for name in ("1", "<default>"):
        healthy.zookeeper.put(f"/config/brokers/{name}", b"garbage")
    warnings = healthy.json("status")["warnings"]
    assert isinstance(warnings, list)
    assert [warning.split(": not JSON")[0] for warning in warnings] == [
        "dynamic settings are ignored: /config/brokers/<default>",
        "dynamic settings are ignored: /config/brokers/1",
    ]


def test_warnings_of_brokers_are_shown(cluster: FakeCluster) -> None:
    full = DescribeMetadataResponse(
        Errors.NONE, 0, "RunningAsBroker", 0, 1, warnings=("clients are turned away",)
    )
    cluster.answers[DescribeMetadataRequest] = lambda _: full
    cluster.with_brokers(1)

    assert "warning: broker 0: clients are turned away" in cluster.run("status").stdout
    assert cluster.json("status")["warnings"] == ["broker 0: clients are turned away"]


def test_brokers_that_do_not_answer_are_named(healthy: FakeCluster) -> None:
    healthy.answers[DescribeMetadataRequest] = lambda _: Errors.UNKNOWN_SERVER_ERROR

    assert healthy.json("status")["warnings"] == [
        "brokers 0, 1 do not answer within 0.5 s: warnings of their own are missing here"
    ]


def test_of_a_broker_that_lets_nobody_in_it_is_asked_whether_it_allows_our_key(
    healthy: FakeCluster,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:  # it accepts, and says nothing
        peer = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        healthy.add_broker(2, control_endpoint=peer)
        warnings = healthy.json("status")["warnings"]

    assert isinstance(warnings, list)
    (silence,) = [line for line in warnings if "0.5 s" in line]
    assert silence.startswith(
        "broker 2 does not answer within 0.5 s: warnings of its own are missing here; no"
        " connection: does it run, and is our key allowed there?"
    )


def test_a_placement_service_without_an_answer_is_a_warning(
    healthy: FakeCluster, tmp_path: Path
) -> None:
    endpoint = healthy.serve(lambda _: Errors.UNKNOWN_SERVER_ERROR)
    write_cluster_file(tmp_path, placement=endpoint)

    status = healthy.json("status", "--data-dir", str(tmp_path))

    assert status["placement"] == {"endpoint": endpoint, "state": "unreachable", "message": ""}
    assert status["warnings"] == ["the placement service does not answer"]
    assert status["healthy"]


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        (PlacementEntry(), "idle"),
        (PlacementEntry(1), "starting"),
        (PlacementEntry(message="no Java"), "failed: no Java"),
    ],
)
def test_the_state_of_a_placement_service_that_does_not_listen_is_shown(
    healthy: FakeCluster, tmp_path: Path, entry: PlacementEntry, shown: str
) -> None:
    ClusterFile(tmp_path / "cluster.json", ADDRESS, placement=entry).write()

    lines = healthy.run("status", "--data-dir", str(tmp_path)).stdout.splitlines()

    assert f"placement service            {shown}" in lines
    warning = "warning: the placement service failed: no Java"
    assert (warning in lines) == (entry.message != "")


@pytest.mark.parametrize(
    ("state", "message", "shown"),
    [("ready", "", "ready"), ("starting", "Spark is starting", "starting: Spark is starting")],
)
def test_a_placement_service_that_listens_tells_its_state(
    healthy: FakeCluster, tmp_path: Path, state: str, message: str, shown: str
) -> None:
    answer = PlacementStatusResponse(Errors.NONE, state, message)
    write_cluster_file(tmp_path, placement=healthy.serve(lambda _: answer))

    lines = healthy.run("status", "--data-dir", str(tmp_path)).stdout.splitlines()

    assert f"placement service            {shown}" in lines


def test_without_zookeeper_there_is_one_line(cluster: FakeCluster) -> None:
    cluster.is_reachable = False

    result = cluster.run("status")

    assert result.exit_code == 1
    assert result.stdout == (
        f"unhealthy: no ZooKeeper answers at {ADDRESS}: is the cluster running?\n"
    )
    status = cluster.json("status", exit_code=1)
    assert status["zookeeper"] == {"address": ADDRESS, "connected": False}
    assert status["controller"] is None


def test_without_a_cluster_file_there_is_an_error(cluster: FakeCluster, tmp_path: Path) -> None:
    assert "no cluster in" in failing(cluster.run("status", "--data-dir", str(tmp_path)))


def test_the_machines_that_brokers_share_are_a_line(healthy: FakeCluster) -> None:
    assert "hosts" not in healthy.run("status").stdout
    for broker_id in (7, 8, 9):
        healthy.add_broker(broker_id, node_host="m1" if broker_id < 9 else "m2")
    (line,) = [row for row in healthy.run("status").stdout.splitlines() if row.startswith("hosts")]
    assert line.split(maxsplit=1)[1] == "m1 (7, 8), m2 (9)"
