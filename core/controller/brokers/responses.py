"""Responses of brokers to control requests.

A response counts only in the controller epoch and for the broker epoch of its request. The header
of the request has both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from regent.core.controller.brokers.broker_changes import BrokerChanges
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
from regent.core.controller.topics.topic_deletion import TopicDeletions
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

# Errors of a whole request. After UNKNOWN_SERVER_ERROR its errors of single partitions count too.
_SOME_APPLIED = (Errors.NONE, Errors.UNKNOWN_SERVER_ERROR)
# Errors of a partition. STALE_CONTROLLER_EPOCH: an earlier copy of the request was applied, and the
# response to it may be lost.
_IN_SERVICE = (Errors.NONE, Errors.STALE_CONTROLLER_EPOCH)

MAX_GUESSES: Final = 16
"""How often the epoch is raised for brokers that do not say which they have accepted."""


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
    """Whether the topic is deleted, and not only this replica stopped or removed (KAFKA-9946)."""
    return stop.delete_partition and stop.leader_epoch == EPOCH_DURING_DELETE


class ControlResponses:
    """Handles the responses of brokers to control requests."""

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
        self._guesses: dict[BrokerId, int] = {}  # steps since brokers of Kafka refuse our epochs

    def accepted_epoch(
        self, event: LeaderAndIsrResponseReceived | UpdateMetadataResponseReceived
    ) -> int | None:
        """Return the epoch, ours or a higher one, in which a broker accepted another controller.

        None: it refused nothing for that. A broker of Kafka does not say which epoch it is, so ours
        is raised in steps that become longer.
        """
        response, broker_id = event.response, event.broker_id
        if self._context.is_stale(broker_id, event.header):
            return None
        if response.error_code is not Errors.STALE_CONTROLLER_EPOCH:
            self._guesses.pop(broker_id, None)
            return None
        registration = self._context.registrations.get(broker_id)
        if registration is not None and registration.info.is_of_kafka:
            return self._guessed_epoch(broker_id)
        return (
            response.controller_epoch if response.controller_epoch >= self._context.epoch else None
        )

    def _guessed_epoch(self, broker_id: BrokerId) -> int | None:
        """Return the end of the next step; None after so many that the fault must be another."""
        registered = self._context.registrations
        guesses = max((n for b, n in self._guesses.items() if b in registered), default=0)
        if guesses >= MAX_GUESSES:
            self._log.error(
                "broker %d refuses controller epoch %d, and refused %d lower ones: restart it",
                *(broker_id, self._context.epoch, guesses),
            )
            self._services.outbox.note("broker %d refuses every epoch: restart it", broker_id)
            return None
        self._guesses[broker_id] = guesses + 1
        return self._context.epoch + (1 << guesses) - 1

    def on_leader_and_isr(self, event: LeaderAndIsrResponseReceived) -> None:
        """Learn which replicas have failed logs, and which logs work again.

        CORRUPT_MESSAGE means that a log can be replaced, but only in a later leader epoch.
        INCONSISTENT_TOPIC_ID means that a log is of an earlier topic of the same name. A response
        about such a topic does not count.
        """
        if self._context.is_stale(event.broker_id, event.header):
            return
        response = event.response
        if response.error_code is not Errors.NONE:
            self._on_refusal("LeaderAndIsr", event.broker_id, event.header, response.error_code)
        if response.error_code not in _SOME_APPLIED:
            return
        offline = self._context.replicas_on_offline_dirs.setdefault(event.broker_id, set())
        answered = self._answered(event, has_offline=bool(offline))
        applied = [r for error in _IN_SERVICE for r in answered.get(error, ())]
        back = [replica for replica in applied if replica.topic_partition in offline]
        if back:
            offline.difference_update(replica.topic_partition for replica in back)
            self._on_back(event.broker_id, back)
        if Errors.CORRUPT_MESSAGE in answered:
            self._restart(answered[Errors.CORRUPT_MESSAGE], event.request)
        if Errors.INCONSISTENT_TOPIC_ID in answered:
            self._replace_earlier(answered[Errors.INCONSISTENT_TOPIC_ID], event)
        newly_offline = [
            replica
            for replica in answered.get(Errors.KAFKA_STORAGE_ERROR, ())
            if self._context.replica_state(replica) is ReplicaState.ONLINE
            or replica.topic_partition not in offline
        ]
        if newly_offline:
            offline.update(replica.topic_partition for replica in newly_offline)
            self._services.outbox.note(
                "broker %d: %d replicas offline", event.broker_id, len(newly_offline)
            )
            self._brokers.on_replicas_become_offline(newly_offline)

    def _answered(
        self, event: LeaderAndIsrResponseReceived, *, has_offline: bool
    ) -> dict[Errors, list[PartitionAndReplica]]:
        """Return the replicas by error; those in service only if some were offline before."""
        answered: dict[Errors, list[PartitionAndReplica]] = {}
        earlier = {
            topic.topic_name
            for topic in event.request.topic_states
            if topic.topic_id != self._context.topic_id(topic.topic_name)
        }
        for topic, partition, error in event.response.partition_errors:
            if error in _IN_SERVICE and not has_offline:
                continue
            topic_partition = TopicPartition(topic, partition)
            # The replica may have been deleted or reassigned since the request.
            assigned = self._context.partition_replica_assignment(topic_partition)
            if event.broker_id in assigned and topic not in earlier:
                replica = PartitionAndReplica(topic_partition, event.broker_id)
                answered.setdefault(error, []).append(replica)
        return answered

    def _on_back(self, broker_id: BrokerId, replicas: list[PartitionAndReplica]) -> None:
        """Use replicas again whose logs were replaced; deletions may have waited for them."""
        self._services.outbox.note("broker %d: %d replicas are back", broker_id, len(replicas))
        self._services.announce_metadata(replica.topic_partition for replica in replicas)
        # After an earlier response they were stopped; that StopReplica may still be on its way.
        self._brokers.on_replicas_back(replicas)
        topics = {replica.topic_partition.topic for replica in replicas}
        self._deletions.resume(topics & self._context.topics_to_be_deleted)

    def _replace_earlier(
        self, replicas: Collection[PartitionAndReplica], event: LeaderAndIsrResponseReceived
    ) -> None:
        """Let a broker of Kafka delete logs of earlier topics, and begin with empty ones.

        Otherwise it would refuse the present replicas for ever. Brokers of this project set such
        logs aside. In the ISR a log stays: if a topic's znode was lost, and clients made the topic
        again, these logs have the records of the lost one.
        """
        registration = self._context.registrations.get(event.broker_id)
        if registration is None or not registration.info.is_of_kafka:
            return
        kept: list[PartitionAndReplica] = []
        replaced: list[PartitionAndReplica] = []
        for replica in replicas:
            known = self._context.partition_leadership_info(replica.topic_partition)
            is_in_sync = known is None or event.broker_id in known.leader_and_isr.isr
            (kept if is_in_sync else replaced).append(replica)
        for text, found in (
            ("it keeps them, because it is in the ISR: stop it, and move them away", kept),
            ("it deletes them, and fetches the present ones", replaced),
        ):
            if found:
                self._log.warning(
                    "broker %d has %d logs of earlier topics of the same names, the first: %s; %s",
                    *(event.broker_id, len(found), found[0].topic_partition, text),
                )
        if replaced:
            self._replicas.delete_earlier(event.broker_id, [r.topic_partition for r in replaced])
            self._restart(replaced, event.request)

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

        After an error of the whole request the broker has deleted nothing. A response about an
        earlier topic of the same name, or about a replica that a reassignment removed, does not
        count. Neither does one about a replica that was asked again later.
        """
        if self._context.is_stale(event.broker_id, event.header):
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
                if self._deletions.is_answer(
                    PartitionAndReplica(topic_partition, event.broker_id), event.header.event_id
                )
            },
        )

    def on_update_metadata(self, event: UpdateMetadataResponseReceived) -> None:
        """Log a refusal, and send again what the broker could not handle."""
        error = event.response.error_code
        if error is not Errors.NONE and not self._context.is_stale(event.broker_id, event.header):
            self._on_refusal("UpdateMetadata", event.broker_id, event.header, error)

    def _on_refusal(
        self, request: str, broker_id: BrokerId, header: ControlHeader, error: Errors
    ) -> None:
        """Log an error. After an error of the broker itself everything is sent again later."""
        self._log.warning("broker %d refused %s: %s", broker_id, request, error.name)
        if error is Errors.UNKNOWN_SERVER_ERROR:
            after_ms = self._services.settings.tell_again_ms
            self._services.schedule(after_ms, ControlRequestFailed(broker_id, header))
