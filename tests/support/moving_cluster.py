"""A cluster whose partitions are reassigned: controllers, and brokers that carry out requests.

A broker remembers the rows of LeaderAndIsr and StopReplica only. A follower joins the ISR when both
it and its leader have received the request.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from regent.core.controller.brokers.responses import response_event
from regent.core.controller.effects import Effect, SendResponse
from regent.core.controller.events import (
    AlterPartitionReceived,
    ApiPartitionReassignment,
    ControllerEvent,
    ListPartitionReassignments,
)
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.zk.client.operations import Check, SetData
from regent.zk.znodes import (
    ControllerZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicsZNode,
    TopicZNode,
)
from tests.support.controller_parts import ByBroker, Candidate, of_type, requests
from tests.support.fake_zookeeper import Hook
from tests.support.world import Replicas, World, topic_id

ADMIN = ReassignPartitionsZNode.PATH
MAX_ROUNDS = 20

_request_ids = itertools.count(1)


class MovingCluster(World):
    """Registered brokers, and active controllers one after another.

    The brokers' answers to StopReplica wait in ``answers`` until ``settle`` or ``handle_first``.
    """

    def __init__(
        self, brokers: Iterable[BrokerId], settings: ControllerSettings | None = None
    ) -> None:
        super().__init__(brokers)
        self._settings = settings
        self._controllers = itertools.count(100)
        self._controller_epoch = 0
        self.hosted: ByBroker[LeaderAndIsrPartition] = {}
        self.effects: list[Effect] = []
        self.answers: deque[ControllerEvent] = deque()
        self.active = self._candidate()

    # --- controllers ---

    def start_controller(self) -> None:
        """Start the active controller and handle all its events."""
        self.carry_out(self.active.start())
        self.settle()

    def succeed(self, hook: Hook | None = None) -> None:
        """Crash the active controller and start the next one, whose calls go through ``hook``."""
        self.replace_controller()
        self.active.session.hook = hook
        self.start_controller()

    def replace_controller(self) -> None:
        """Crash the active controller; the next one is not started."""
        self.active.session.expire()
        self._next_candidate()

    def depose(self) -> None:
        """Elect another controller without notifying the present one, which goes on running."""
        self.zookeeper.remove(ControllerZNode.PATH)
        self._next_candidate()
        self.start_controller()

    def handle(self, event: ControllerEvent) -> list[Effect]:
        """Let the active controller handle one event, and the brokers carry out its requests."""
        effects = self.active.handle(event)
        self.carry_out(effects)
        return effects

    def settle(self) -> None:
        """Let the active controller handle all events from its watches, then the answers."""
        while self.active.inbox or self.answers:
            self.handle_first(self.active.inbox or self.answers)

    def handle_first(self, queue: deque[ControllerEvent]) -> None:
        """Let the active controller handle the first event of a queue."""
        self.handle(queue.popleft())

    # --- reassignments ---

    def submit(
        self, targets: dict[TopicPartition, Replicas | None]
    ) -> dict[TopicPartition, Errors]:
        """Send AlterPartitionReassignments; return the error of each partition."""
        request = AlterPartitionReassignmentsRequest.of(targets)
        answer = self._ask(ApiPartitionReassignment(next(_request_ids), request))
        assert isinstance(answer, AlterPartitionReassignmentsResponse)
        self.settle()
        if answer.error_code:
            return dict.fromkeys(targets, Errors(answer.error_code))
        return {p: result.error_code for p, result in answer.results.items()}

    def write_znode(self, targets: dict[TopicPartition, Replicas]) -> None:
        """Write a reassignment request to the znode, as tools do."""
        self.zookeeper.put(ADMIN, ReassignPartitionsZNode.encode(targets))
        self.settle()

    def znode(self) -> dict[TopicPartition, Replicas] | None:
        """Return the content of the admin znode."""
        node = self.zookeeper.snapshot().get(ADMIN)
        return None if node is None else ReassignPartitionsZNode.decode(node.data)

    def ongoing(self, *partitions: TopicPartition) -> dict[TopicPartition, ReplicaAssignment]:
        """Return the ongoing reassignments of these partitions, or of all."""
        request = ListPartitionReassignmentsRequest.of(partitions or None)
        answer = self._ask(ListPartitionReassignments(next(_request_ids), request))
        assert isinstance(answer, ListPartitionReassignmentsResponse)
        return answer.assignments

    def _ask(self, event: ControllerEvent) -> object:
        (reply,) = of_type(self.handle(event), SendResponse)
        return reply.response

    # --- brokers ---

    def catch_up(self) -> bool:
        """Let every follower that can join the ISR; return whether any did."""
        proposed = [self._propose_isr(p) for p in self.partitions()]
        self.settle()
        return any(proposed)

    def catch_up_with_everything(self) -> None:
        """Let followers join ISRs until no follower can."""
        for _ in range(MAX_ROUNDS):
            if not self.catch_up():
                return
        raise AssertionError("ISRs never stop growing")

    def _propose_isr(self, partition: TopicPartition) -> bool:
        """Let the leader propose an ISR with all its followers; return whether it was accepted."""
        state = self.state(partition)
        if state is None:
            return False
        now = state.leader_and_isr
        leading = self.hosted.get(now.leader, {}).get(partition)
        if leading is None or leading.leader_epoch != now.leader_epoch:
            return False
        followers = tuple(
            r for r in leading.replicas if r not in now.isr and self._follows(r, partition, leading)
        )
        epochs = self.active.controller.context.live_broker_epochs
        if not followers or now.leader not in epochs:
            return False
        row = AlterPartitionRow(
            *partition,
            topic_id=None,
            leader_epoch=now.leader_epoch,
            new_isr=(*now.isr, *followers),
            isr_broker_epochs=(UNKNOWN_BROKER_EPOCH,) * (len(now.isr) + len(followers)),
            leader_recovery_state=now.leader_recovery_state,
            partition_epoch=now.partition_epoch,
        )
        request = AlterPartitionRequest(now.leader, epochs[now.leader], (row,))
        answer = self._ask(AlterPartitionReceived(next(_request_ids), request))
        assert isinstance(answer, AlterPartitionResponse)
        return answer.error_code is Errors.NONE and answer.partitions[0].error_code is Errors.NONE

    def _follows(
        self, broker_id: BrokerId, partition: TopicPartition, leading: LeaderAndIsrPartition
    ) -> bool:
        following = self.hosted.get(broker_id, {}).get(partition)
        is_alive = broker_id in self.sessions
        return is_alive and following is not None and following.leader == leading.leader

    def _candidate(self) -> Candidate:
        return Candidate(self, next(self._controllers), self._settings)

    def _next_candidate(self) -> None:
        self.answers.clear()
        self.active = self._candidate()

    def carry_out(self, effects: list[Effect]) -> None:
        """Let the brokers carry out the requests among effects."""
        self.effects += effects
        for sent in requests(effects):
            if sent.header.controller_epoch < self._controller_epoch:
                continue
            self._controller_epoch = sent.header.controller_epoch
            hosted = self.hosted.setdefault(sent.broker_id, {})
            match sent.request:
                case LeaderAndIsrRequest() as request:
                    if request.type is LeaderAndIsrType.FULL:
                        rows = dict(request.partitions())
                        self.hosted[sent.broker_id] = hosted = {
                            p: row for p, row in hosted.items() if p in rows
                        }
                    for partition, row in request.partitions():
                        known = hosted.get(partition)
                        if known is None or row.leader_epoch > known.leader_epoch:
                            hosted[partition] = row
                case StopReplicaRequest() as request:
                    for partition, stop in request.partitions():
                        if stop.delete_partition:
                            hosted.pop(partition, None)
                    errors = [PartitionError(*tp, Errors.NONE) for tp, _ in request.partitions()]
                    answer = StopReplicaResponse(Errors.NONE, tuple(errors))
                    event = response_event(sent.broker_id, sent.header, request, answer)
                    self.answers.extend([] if event is None else [event])
                case _:
                    pass

    # --- state ---

    def partitions(self) -> list[TopicPartition]:
        """Return every partition of every topic znode."""
        prefix = TopicsZNode.PATH + "/"
        topics = [p.removeprefix(prefix) for p in self.zookeeper.snapshot() if p.startswith(prefix)]
        return [
            TopicPartition(topic, number)
            for topic in topics
            if "/" not in topic
            for number in self.topic(topic).partitions
        ]

    def replicas(self, partition: TopicPartition) -> tuple[Replicas, Replicas, Replicas]:
        """Return the replicas of a partition in ZooKeeper: all, adding, removing."""
        now = self.topic(partition.topic).partitions[partition.partition]
        return now.replicas, now.adding_replicas, now.removing_replicas

    def hosts(self, partition: TopicPartition) -> list[BrokerId]:
        """Return the live brokers with a replica of the partition, sorted."""
        return sorted(b for b in self.sessions if partition in self.hosted.get(b, {}))

    def assert_at_rest(self) -> None:
        """No reassignment is ongoing or leaves data, and brokers and ZooKeeper agree."""
        assert self.znode() is None
        assert self.ongoing() == {}
        for partition in self.partitions():
            replicas, adding, removing = self.replicas(partition)
            assert (adding, removing) == ((), ())
            leader, isr, leader_epoch = self.leads(partition)
            assert leader in isr
            assert set(isr) == set(replicas)
            assert self.hosts(partition) == sorted(replicas)
            assert self.hosted[leader][partition].leader_epoch == leader_epoch
            assert (
                self.active.controller.context.partition_replica_assignment(partition) == replicas
            )
        self.assert_sound()

    def assert_sound(self) -> None:
        """No written state has an empty ISR, a leader outside the ISR, or an older leader epoch."""
        epochs: dict[str, int] = {}
        for transaction in self.zookeeper.transactions:
            for operation in transaction.operations:
                if isinstance(operation, SetData) and operation.path.endswith("/state"):
                    now = TopicPartitionStateZNode.decode(operation.data, 0).leader_and_isr
                    assert now.isr
                    assert now.leader in (-1, *now.isr)
                    assert now.leader_epoch >= epochs.get(operation.path, 0)
                    epochs[operation.path] = now.leader_epoch

    def writes(self) -> list[str]:
        """Return the written paths in sequence, without the writes of tools and followers."""
        return [
            operation.path
            for transaction in self.zookeeper.transactions
            if transaction.session_id
            for operation in transaction.operations
            if not isinstance(operation, Check)
        ]


def topic_path(topic: str) -> str:
    """Return the path of a topic's znode."""
    return TopicZNode.path(topic)


def cluster(*replicas: tuple[int, ...], brokers: int = 6) -> MovingCluster:
    """Return a cluster with a controller and topic t: one partition for each tuple of replicas."""
    moving = MovingCluster(range(1, brokers + 1))
    moving.put_topic("t", dict(enumerate(replicas)), topic_id(77))
    moving.start_controller()
    moving.effects.clear()
    return moving
