"""``controller show`` and ``controller move``."""

from __future__ import annotations

from regent.core.ports import ControllerFailure
from regent.zk.znodes import ControllerFailuresZNode
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.fake_zookeeper import Call, Moment

RECORDS = ControllerFailuresZNode.PATH


def test_the_active_controller_is_shown(cluster: FakeCluster) -> None:
    cluster.add_broker(4)
    cluster.elect(4)

    assert cluster.json("controller", "show") == {
        "broker_id": 4,
        "controller_epoch": 1,
        "epoch_zk_version": 0,
    }
    assert cluster.run("controller", "show").stdout.splitlines() == [
        "broker id         4",
        "controller epoch  1",
        "epoch zk version  0",
    ]


def test_no_controller_is_a_failure(cluster: FakeCluster) -> None:
    assert failing(cluster.run("controller", "show")) == "there is no controller at the moment"
    assert failing(cluster.run("controller", "move")) == "there is no controller at the moment"


def elect_once_deposed(cluster: FakeCluster, broker_id: int) -> None:
    """Elect a broker when the command has deleted the node."""

    def hook(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.AFTER:
            cluster.elect(broker_id)

    cluster.hook = hook


def test_the_controller_moves_and_both_brokers_are_printed(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.add_broker(1)
    cluster.elect(0)
    elect_once_deposed(cluster, 1)

    result = cluster.run("controller", "move")

    assert result.stdout == "The controller moved from broker 0 (epoch 1) to broker 1 (epoch 2).\n"


def test_the_same_broker_may_be_elected_again_with_another_epoch(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.elect(0)
    elect_once_deposed(cluster, 0)

    assert cluster.json("controller", "move") == {
        "old": {"broker_id": 0, "controller_epoch": 1, "epoch_zk_version": 0},
        "new": {"broker_id": 0, "controller_epoch": 2, "epoch_zk_version": 1},
    }


def test_a_controller_that_moved_by_itself_is_not_deposed_again(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.add_broker(1)
    cluster.elect(0)

    def hook(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            cluster.unregister(0)
            cluster.elect(1)

    cluster.hook = hook

    assert cluster.json("controller", "move")["new"]["broker_id"] == 1
    assert cluster.writes.count("/controller") == 3  # created, gone with its session, created


def test_a_controller_of_kraft_is_not_deposed(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.elect(0)
    cluster.put("/controller", b'{"version":2,"brokerid":3000,"kraftControllerEpoch":5}')
    before = list(cluster.writes)

    line = failing(cluster.run("controller", "move"))

    assert line.startswith("the KRaft controller 3000 holds /controller")
    assert cluster.writes == before


def test_a_command_for_the_controller_does_not_wait_for_one_of_kraft(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.elect(0)
    cluster.put("/controller", b'{"version":2,"brokerid":3000,"kraftControllerEpoch":5}')

    line = failing(cluster.run("reassign", "--list"))

    assert line.startswith("the KRaft controller 3000 holds /controller")


def test_no_election_in_time_is_a_failure(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.elect(0)

    line = failing(cluster.run("controller", "move", "--timeout-ms", "0"))

    assert line == "broker 0 (epoch 1) was deposed, but no broker was elected within 0 ms"


EVIL = ControllerFailure("topic evil", "TopicChange", "KeyError: 'x'", 2, 1, 7)
ONCE = ControllerFailure("BrokerChange", "BrokerChange", "KeyError: 'y'", 1, 0, 5)


def test_events_that_ended_controllers_are_tried_again(cluster: FakeCluster) -> None:
    assert (
        cluster.run("controller", "try-again").stdout
        == "No topic or event has ended a controller.\n"
    )
    cluster.zookeeper.put(RECORDS, ControllerFailuresZNode.encode([ONCE, EVIL]))

    assert cluster.json("controller", "try-again") == {
        "tried_again": ["BrokerChange", "topic evil"]
    }

    left = cluster.zookeeper.snapshot()[RECORDS].data
    assert ControllerFailuresZNode.decode(left) == ()


def test_status_names_quarantined_events_and_first_failures(cluster: FakeCluster) -> None:
    cluster.add_broker(0)
    cluster.elect(0)
    cluster.zookeeper.put(RECORDS, ControllerFailuresZNode.encode([ONCE, EVIL]))

    status = cluster.json("status", exit_code=1)

    assert status["reasons"] == [
        "topic evil is quarantined because it ended 2 controllers: KeyError: 'x'; correct it, then"
        " run: regent controller try-again"
    ]
    assert "BrokerChange ended a controller (broker 0, epoch 5): KeyError: 'y'" in str(
        status["warnings"]
    ).replace('"', "").replace("\\", "")


def test_only_a_registered_broker_of_ours_can_be_made_the_controller(cluster: FakeCluster) -> None:
    cluster.add_broker(0, control_endpoint="tcp://127.0.0.1:1")
    cluster.add_broker(9)
    cluster.elect(0)
    assert failing(cluster.run("controller", "move", "--to", "9")) == (
        "broker 9 is one of Kafka, which cannot be asked to be the controller: without --to, any"
        " broker may be elected"
    )
    assert failing(cluster.run("controller", "move", "--to", "5")) == (
        "broker 5 is not registered; registered are 0, 9"
    )
    again = cluster.run("controller", "move", "--to", "0")
    assert again.stdout == "The controller is broker 0 (epoch 1) already.\n"
