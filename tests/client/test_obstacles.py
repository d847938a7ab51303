"""Each known cause of a wait is told in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from regent.client.obstacles import (
    move_obstacles,
    move_throttles,
    record_obstacles,
    shutdown_obstacles,
)
from regent.core.errors import Errors
from regent.core.model import LeaderAndIsr, ReplicaAssignment, TopicPartition
from regent.core.protocol.controller import (
    DescribeControllerRequest,
    DescribeControllerResponse,
    UnansweredRequest,
)
from regent.core.protocol.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from regent.core.protocol.messages.groups import (
    Coordinator,
    DescribedGroup,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
)
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.message_codec import answer
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import ConfigEntityZNode, MovesPauseZNode
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_zookeeper import FakeZooKeeper

P0 = TopicPartition("payments", 0)


class Known:
    """A cluster with three brokers and the topic payments; broker 0 speaks Kafka's protocol."""

    def __init__(self, undo: ExitStack) -> None:
        self.fake = FakeCluster()
        undo.callback(self.fake.close)
        self.coordinator_error, self.reason = Errors.NONE, ""
        self.group_state, self.group_error = "Stable", Errors.NONE
        apis = [
            KafkaApi(KafkaApiKey.FIND_COORDINATOR, 0, 6, self._find_coordinator),
            KafkaApi(KafkaApiKey.DESCRIBE_GROUPS, 0, 5, self._describe_groups),
            KafkaApi(KafkaApiKey.DESCRIBE_CONFIGS, 0, 4, self._describe_configs),
        ]
        listener = KafkaListener("127.0.0.1", 0, apis)
        undo.callback(listener.close, 0.1)
        listener.start()
        self.port = listener.port
        endpoint = self.fake.serve(self.fake.lead)
        for broker_id in (0, 1, 2):
            self.fake.add_broker(broker_id, control_endpoint=endpoint, port=self.port)
        self.fake.elect(0)
        self.led(0, (0, 1, 2))
        self.admin = ZkAdminStore(FakeZooKeeper(self.fake.zookeeper))

    def led(
        self, leader: int, isr: tuple[int, ...], assignment: ReplicaAssignment | None = None
    ) -> None:
        """Set the leader and the ISR of the partition."""
        replicas = assignment or ReplicaAssignment((0, 1, 2))
        self.fake.put_topic("payments", {0: replicas}, leaders={0: LeaderAndIsr(leader, isr, 4, 7)})

    async def _find_coordinator(self, request: KafkaRequest) -> KafkaAnswer:
        found = Coordinator(
            key="g",
            node_id=0,
            host="127.0.0.1",
            port=self.port,
            error_code=self.coordinator_error,
            error_message=self.reason or None,
        )
        return answer(FindCoordinatorResponse(coordinators=(found,)), request)

    async def _describe_groups(self, request: KafkaRequest) -> KafkaAnswer:
        group = DescribedGroup(
            error_code=self.group_error,
            group_id="g",
            group_state=self.group_state,
            protocol_type="consumer",
            protocol_data="range",
            members=(),
        )
        return answer(DescribeGroupsResponse(groups=(group,)), request)

    async def _describe_configs(self, request: KafkaRequest) -> KafkaAnswer:
        setting = DescribeConfigsResourceResult(
            name="min.insync.replicas", value="2", read_only=False, is_sensitive=False
        )
        result = DescribeConfigsResult(
            resource_type=2, resource_name="payments", configs=(setting,)
        )
        return answer(DescribeConfigsResponse(results=(result,)), request)


@pytest.fixture
def known() -> Iterator[Known]:
    with ExitStack() as undo:
        yield Known(undo)


def no_controller(known: Known) -> None:
    known.fake.zookeeper.remove("/controller")


def silent_broker(known: Known) -> None:
    rows = (UnansweredRequest(2, "UpdateMetadata", 12_345),)
    described = DescribeControllerResponse(Errors.NONE, 1, unanswered=rows)
    known.fake.answers[DescribeControllerRequest] = lambda _: described


def refusing_controller(known: Known) -> None:
    known.fake.answers[DescribeControllerRequest] = lambda _: Errors.UNKNOWN_SERVER_ERROR


def dead_members(known: Known) -> None:
    known.led(-1, (1, 2))
    known.fake.unregister(1)
    known.fake.unregister(2)


def no_election(known: Known) -> None:
    known.led(-1, (0, 1))


def one_in_sync(known: Known) -> None:
    known.led(0, (0,))


def no_coordinator(known: Known) -> None:
    known.coordinator_error = Errors.COORDINATOR_NOT_AVAILABLE
    known.reason = "no coordinator for groups: topic __consumer_offsets needs 3 brokers"


def no_coordinator_yet(known: Known) -> None:
    known.coordinator_error = Errors.COORDINATOR_NOT_AVAILABLE


def loading(known: Known) -> None:
    known.group_error = Errors.COORDINATOR_LOAD_IN_PROGRESS


def rebalancing(known: Known) -> None:
    known.group_state = "PreparingRebalance"


def assigning(known: Known) -> None:
    known.group_state = "CompletingRebalance"


@pytest.mark.parametrize(
    ("cause", "how", "reason"),
    [
        (no_controller, {}, "there is no controller"),
        (
            silent_broker,
            {},
            "broker 2 has left UpdateMetadata of the controller unanswered for 12 s",
        ),
        (refusing_controller, {}, "the controller answered UNKNOWN_SERVER_ERROR"),
        (
            dead_members,
            {},
            "payments-0 has no leader: it waits for broker 1 or 2, which is down",
        ),
        (
            no_election,
            {},
            "payments-0 has no leader: the controller has not elected one yet",
        ),
        (
            one_in_sync,
            {"in_sync": True},
            "payments-0: fewer replicas are in sync than min.insync.replicas, 2; out of sync are"
            " the replicas on brokers 1 and 2",
        ),
        (
            no_coordinator,
            {"group": "g"},
            "no coordinator for groups: topic __consumer_offsets needs 3 brokers",
        ),
        (no_coordinator_yet, {"group": "g"}, "group g has no coordinator yet"),
        (loading, {"group": "g"}, "broker 0, the coordinator of group g, still reads its state"),
        (
            rebalancing,
            {"group": "g"},
            "group g is rebalancing: it waits until all members have joined",
        ),
        (
            assigning,
            {"group": "g"},
            "group g is rebalancing: it waits until one of its members has assigned the partitions",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_readers_and_writers_get_the_reason_for_their_wait(
    known: Known, cause: Callable[[Known], None], how: dict[str, Any], reason: str
) -> None:
    assert record_obstacles(known.admin, "payments", **how) == []
    cause(known)
    assert record_obstacles(known.admin, "payments", **how) == [reason]


def test_without_brokers_the_state_of_a_group_is_unknown(known: Known) -> None:
    for broker in (0, 1, 2):
        known.fake.unregister(broker)
    reasons = record_obstacles(known.admin, "payments", group="g")
    assert reasons[0] == "there is no controller"
    assert reasons[-1] == "no broker answers"


def test_a_reassignment_is_explained(known: Known) -> None:
    moving = ReplicaAssignment((3, 0, 1), adding_replicas=(3,), removing_replicas=(1,))
    known.led(0, (0, 1), moving)
    known.fake.zookeeper.put(
        ConfigEntityZNode.path("brokers", "1"),
        ConfigEntityZNode.encode({"follower.replication.throttled.rate": "1000"}),
    )
    down = "broker 3 is down, and payments-0 moves there"
    assert move_obstacles(known.admin, [P0]) == [down]
    assert move_throttles(known.admin, [P0]) == [], "a rate limits no replica by itself"
    known.fake.zookeeper.put(
        ConfigEntityZNode.path("topics", "payments"),
        ConfigEntityZNode.encode({"follower.replication.throttled.replicas": "0:3"}),
    )
    assert move_throttles(known.admin, [P0]) == ["replication is throttled to 1000 B/s on broker 1"]
    assert move_obstacles(known.admin, [P0]) == [down], "a throttled move gets on"
    known.fake.zookeeper.put(MovesPauseZNode.PATH, MovesPauseZNode.encode(MovesPause(1)))
    assert move_obstacles(known.admin, [P0])[1].startswith("moves are paused for ")


def test_a_shutdown_is_explained(known: Known) -> None:
    assert shutdown_obstacles(known.admin, 0) == []
    known.led(0, (0,))
    assert shutdown_obstacles(known.admin, 0) == [
        "broker 0 leads partitions without another replica in sync: payments-0"
    ]
