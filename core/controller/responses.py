"""Responses of brokers to control requests.

A response counts only in the controller epoch and for the broker epoch of its request. The header
of the request has both.
"""

from __future__ import annotations

from collections.abc import Collection

from regent.core.controller.broker_changes import BrokerChanges
from regent.core.controller.effects import ScheduleEvent
from regent.core.controller.events import (
    ControllerEvent,
    ControlRequestFailed,
    LeaderAndIsrResponseReceived,
    TopicDeletionStopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import ReplicaState
from regent.core.controller.topic_deletion import TopicDeletions
from regent.core.errors import Errors
from regent.core.model import EPOCH_DURING_DELETE, BrokerId, PartitionAndReplica, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataResponse,
)

_SOME_OBEYED = (Errors.NONE, Errors.UNKNOWN_SERVER_ERROR)
# The second: the broker handled an earlier copy, and that response may be lost.
_IN_SERVICE = (Errors.NONE, Errors.STALE_CONTROLLER_EPOCH)


def response_event(
    broker_id: BrokerId,
    header: ControlHeader,
    request: ControlRequest,
    response: ControlResponse,
    answered_ms: float = 0.0,
) -> ControllerEvent | None:
    """Return the event for a broker's response; None when nothing waits for it."""
    match response:
        case LeaderAndIsrResponse():
            assert isinstance(request, LeaderAndIsrRequest)
            return LeaderAndIsrResponseReceived(broker_id, header, request, response, answered_ms)
        case UpdateMetadataResponse():
            return UpdateMetadataResponseReceived(broker_id, header, response, answered_ms)
        case StopReplicaResponse():
            assert isinstance(request, StopReplicaRequest)
            if not any(_deletes_for_ever(stop) for _, stop in request.partitions()):
                return None
            return TopicDeletionStopReplicaResponseReceived(
                broker_id, header, request, response, answered_ms
            )


def _deletes_for_ever(stop: StopReplicaPartition) -> bool:
    """Whether the topic goes with the replica; KAFKA-9946: to stop one is not to delete it."""
    return stop.delete_partition and stop.leader_epoch == EPOCH_DURING_DELETE


class ControlResponses:
    """Acts on answers."""

    def __init__(
        self,
        services: ControllerServices,
        replicas: ReplicaStateMachine,
        brokers: BrokerChanges,
        deletions: TopicDeletions,
    ) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._replicas = replicas
        self._brokers = brokers
        self._deletions = deletions

    def is_stale(self, broker_id: BrokerId, header: ControlHeader) -> bool:
        """Whether a response is of another controller epoch of ours, or of another broker epoch."""
        registration = self._context.registrations.get(broker_id)
        return (
            header.controller_epoch != self._context.epoch
            or registration is None
            or registration.broker_epoch != header.broker_epoch
        )

    def is_refused_for_epoch(
        self, event: LeaderAndIsrResponseReceived | UpdateMetadataResponseReceived
    ) -> bool:
        """Whether a broker accepted another controller with our epoch or a higher one."""
        response = event.response
        return (
            response.error_code is Errors.STALE_CONTROLLER_EPOCH
            and response.controller_epoch >= self._context.epoch
            and not self.is_stale(event.broker_id, event.header)
        )

    def on_leader_and_isr(self, event: LeaderAndIsrResponseReceived) -> None:
        """Learn which replicas have logs that fail them, and which of them no longer.

        CORRUPT_MESSAGE says that a log could be replaced in a later leader epoch. An answer about
        an earlier topic of the same name says nothing of this one.
        """
        if self.is_stale(event.broker_id, event.header):
            return
        response = event.response
        if response.error_code is not Errors.NONE:
            self._on_refusal("LeaderAndIsr", event.broker_id, event.header, response.error_code)
        if response.error_code not in _SOME_OBEYED:
            return
        answered: dict[Errors, list[PartitionAndReplica]] = {}
        earlier = {
            topic.topic_name
            for topic in event.request.topic_states
            if topic.topic_id != self._context.topic_id(topic.topic_name)
        }
        for error in response.partition_errors:
            topic_partition = error.topic_partition
            # It may have been deleted, or moved away, since it was asked.
            is_assigned = event.broker_id in self._context.partition_replica_assignment(
                topic_partition
            )
            if is_assigned and topic_partition.topic not in earlier:
                replica = PartitionAndReplica(topic_partition, event.broker_id)
                answered.setdefault(error.error_code, []).append(replica)
        offline = self._context.replicas_on_offline_dirs.setdefault(event.broker_id, set())
        applied = [r for error in _IN_SERVICE for r in answered.get(error, ())]
        back = [replica for replica in applied if replica.topic_partition in offline]
        if back:
            offline.difference_update(replica.topic_partition for replica in back)
            self._on_back(event.broker_id, back)
        if Errors.CORRUPT_MESSAGE in answered:
            self._restart(answered[Errors.CORRUPT_MESSAGE], event.request)
        newly_offline = [
            replica
            for replica in answered.get(Errors.KAFKA_STORAGE_ERROR, ())
            if self._context.replica_state(replica) is ReplicaState.ONLINE
            or replica.topic_partition not in offline
        ]
        if newly_offline:
            offline.update(replica.topic_partition for replica in newly_offline)
            self._services.outbox.record(
                "broker %d: %d replicas offline", event.broker_id, len(newly_offline)
            )
            self._brokers.on_replicas_become_offline(newly_offline)

    def _on_back(self, broker_id: BrokerId, replicas: list[PartitionAndReplica]) -> None:
        """Use replicas again whose logs were replaced; their topics may wait for being deleted."""
        self._services.outbox.record("broker %d: %d replicas are back", broker_id, len(replicas))
        batch = self._services.new_batch()
        batch.add_update_metadata(replica.topic_partition for replica in replicas)
        self._services.announce(batch)
        # An earlier response made us stop them; that StopReplica may still be on its way.
        self._brokers.on_replicas_back(replicas)
        topics = {replica.topic_partition.topic for replica in replicas}
        self._deletions.resume(topics & self._context.topics_to_be_deleted)

    def _restart(
        self, replicas: Collection[PartitionAndReplica], request: LeaderAndIsrRequest
    ) -> None:
        """Begin a leader epoch in which damaged logs may be replaced, unless one has begun."""
        asked_in = {
            topic_partition: state.leader_epoch for topic_partition, state in request.partitions()
        }
        waiting: list[PartitionAndReplica] = []
        for replica in replicas:
            topic_partition = replica.topic_partition
            known = self._context.partition_leadership_info(topic_partition)
            is_present = known and known.leader_and_isr.leader_epoch == asked_in.get(
                topic_partition
            )
            if is_present:
                waiting.append(replica)
        self._replicas.restart(waiting)

    def on_stop_replica(self, event: TopicDeletionStopReplicaResponseReceived) -> None:
        """Learn which replicas are deleted.

        A broker that responds with one error for all has deleted nothing. A response about an
        earlier topic of the same name, or about a replica that was only moved away, does not count.
        """
        if self.is_stale(event.broker_id, event.header):
            return
        response = event.response
        answered = {error.topic_partition: error.error_code for error in response.partition_errors}
        self._deletions.on_stop_replica_response(
            event.broker_id,
            {
                topic_partition: answered.get(topic_partition, response.error_code)
                for topic in event.request.topic_states
                if topic.topic_id == self._context.topic_id(topic.topic_name)
                for stop in topic.partition_states
                if _deletes_for_ever(stop)
                for topic_partition in (TopicPartition(topic.topic_name, stop.partition_index),)
            },
        )

    def on_update_metadata(self, event: UpdateMetadataResponseReceived) -> None:
        """Handle a refusal."""
        error = event.response.error_code
        if error is not Errors.NONE and not self.is_stale(event.broker_id, event.header):
            self._on_refusal("UpdateMetadata", event.broker_id, event.header, error)

    def _on_refusal(
        self, request: str, broker_id: BrokerId, header: ControlHeader, error: Errors
    ) -> None:
        """Send again after an error of the broker itself; stale epochs need no action."""
        self._log.warning("broker %d refused %s: %s", broker_id, request, error.name)
        if error is Errors.UNKNOWN_SERVER_ERROR:
            after_ms = self._services.settings.tell_again_ms
            again = ControlRequestFailed(broker_id, header)
            self._services.outbox.add(ScheduleEvent(after_ms, again))
