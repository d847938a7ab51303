"""Check the answers of controllers: they are true, and no broker may stop too early."""

from __future__ import annotations

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.core.replication.partition import Role
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster, short_settings
from tests.simulation.leadership_history import Belief, LeadershipHistory
from tests.simulation.network import AnswerBody, Exchange

# The controller unmarks a broker that does not stop for some time after its first request.
MARKED_FOR_MS = short_settings().controlled_shutdown_abandoned_ms


class Answers:
    """Compares the answers of controllers with ZooKeeper's content; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster, history: LeadershipHistory) -> None:
        self._cluster = cluster
        self._history = history

    def check(self, exchange: Exchange, answer: AnswerBody) -> None:
        """Check an answer when it is sent."""
        asked = self._cluster.network.listeners.get(exchange.endpoint)
        self._history.check()
        if not isinstance(asked, SimulatedBroker) or not self._history.is_active_controller(asked):
            return
        match exchange.request, answer:
            case AlterPartitionRequest() as request, AlterPartitionResponse():
                self._check_altered(request, answer)
            case ElectLeadersRequest() as request, ElectLeadersResponse():
                self._check_elected(request, answer)
            case AlterPartitionReassignmentsRequest() as request, response:
                assert isinstance(response, AlterPartitionReassignmentsResponse)
                self._check_reassigned(request, response)
            case ControlledShutdownRequest(), ControlledShutdownResponse(Errors.NONE, remaining):
                self._check_remaining(asked, exchange, set(remaining))
                self._check_successors(asked, exchange)
            case _:
                pass

    def _check_altered(
        self, request: AlterPartitionRequest, response: AlterPartitionResponse
    ) -> None:
        # In the order of the request, which may name a topic by its id only.
        for asked, row in zip(request.partitions, response.partitions, strict=False):
            if row.leader_epoch < 0:
                continue
            belief = Belief(row.leader, row.leader_epoch, row.isr, row.partition_epoch)
            held = self._history.ever_held.get(row.topic_partition, ())
            assert belief in held, f"an answer with a state that ZooKeeper never had: {row}"
            is_done = set(row.isr) == set(asked.new_isr)
            assert is_done or row.error_code is not Errors.NONE, (
                f"the state differs from the proposed one: {row}"
            )

    def _check_elected(self, request: ElectLeadersRequest, response: ElectLeadersResponse) -> None:
        for topic_partition, leader in response.leaders.items():
            assignment = self._history.assignment(topic_partition)
            now = self._history.current.get(topic_partition)
            if now is None or assignment is None:
                continue
            said = f"the answer says that {leader} leads {topic_partition}"
            assert now.leader == leader, f"{said}, ZooKeeper says {now}"
            if request.election_type == ElectionType.PREFERRED:
                assert leader == assignment.replicas[0], f"{said}: it is not the preferred replica"

    def _check_reassigned(
        self,
        request: AlterPartitionReassignmentsRequest,
        response: AlterPartitionReassignmentsResponse,
    ) -> None:
        targets = request.targets
        for topic_partition, result in response.results.items():
            assignment = self._history.assignment(topic_partition)
            if result.error_code is not Errors.NONE or assignment is None:
                continue
            target = targets[topic_partition]
            if target is None:
                assert not assignment.adding_replicas, (
                    f"{topic_partition} is still being reassigned: {assignment}"
                )
            else:
                assert assignment.target_replicas == target, f"{topic_partition}: {assignment}"

    def _check_remaining(
        self, controller: SimulatedBroker, exchange: Exchange, remaining: set[TopicPartition]
    ) -> None:
        request, context = exchange.request, controller.controller.context
        assert isinstance(request, ControlledShutdownRequest)
        leaver = request.broker_id
        led = {
            topic_partition
            for topic_partition, now in self._history.current.items()
            if now.leader == leaver
            and topic_partition not in context.unreadable_partitions
            and len(context.partition_replica_assignment(topic_partition)) > 1
            and not context.is_topic_queued_for_deletion(topic_partition.topic)
        }
        assert led <= remaining, f"broker {leaver} may stop and leads {led - remaining}"
        # A write whose answer was lost, and whose repetition an ACL refused, is not known yet.
        for topic_partition in remaining - led - context.refused_states:
            current = self._history.current.get(topic_partition)
            assert current is None or current.leader == leaver, (
                f"the answer lists partitions that {leaver} does not lead: {topic_partition}"
            )
        is_same_broker_epoch = context.live_broker_epochs.get(leaver) == request.broker_epoch
        has_asked_once = self._history.leave_requests[request] == 1
        if (
            has_asked_once
            and is_same_broker_epoch
            and self._cluster.now_ms - exchange.sent_ms < MARKED_FOR_MS
        ):
            assert leaver in context.shutting_down_broker_ids, (
                f"{leaver} may stop, and is not marked"
            )

    def _check_successors(self, controller: SimulatedBroker, exchange: Exchange) -> None:
        """The new leaders know that they lead, unless the wait for them timed out."""
        request = exchange.request
        assert isinstance(request, ControlledShutdownRequest)
        patience_ms = controller.settings.controlled_shutdown_ack_timeout_ms
        if self._cluster.now_ms - exchange.sent_ms >= patience_ms:
            return
        for topic_partition, (leader, epoch, by) in self._history.successors(request.broker_id):
            current = self._history.current.get(topic_partition)
            is_current = current is not None and (current.leader, current.leader_epoch) == (
                leader,
                epoch,
            )
            if (
                by == controller.shutdowns_begun.get(exchange)
                and is_current
                and self._could_hear(controller, leader, topic_partition)
            ):
                hosted = self._cluster.brokers[leader].replica_manager.partitions[topic_partition]
                assert hosted.leader_epoch >= epoch, (
                    f"broker {request.broker_id} may stop, and {leader} does not lead yet: {hosted}"
                )

    def _could_hear(
        self, controller: SimulatedBroker, leader: BrokerId, topic_partition: TopicPartition
    ) -> bool:
        broker, context = self._cluster.brokers.get(leader), controller.controller.context
        if broker is None or context.live_broker_epochs.get(leader) != broker.broker_epoch:
            return False
        hosted = broker.replica_manager.partitions.get(topic_partition)
        return (
            hosted is not None
            and hosted.role is not Role.OFFLINE
            and hosted.topic_id == context.topic_id(topic_partition.topic)
        )
