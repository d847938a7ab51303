"""The transaction coordinator in a broker: its actor, and its requests to other brokers.

It sends markers to the leaders of partitions, and asks coordinators whether partitions are part of
transactions. ``api.transactions`` answers the same requests of other brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pykka import ActorDeadError, ActorRef

from regent.actors.coordinator import (
    CoordinatorActorService,
    LeadershipsChanged,
    PartitionsDeleted,
    PartitionsKnown,
)
from regent.actors.inter_broker_senders import InterBrokerSenders, OpenChannel
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler
from regent.actors.transaction_coordinator import (
    LeadersChanged,
    RespondToMarkers,
    TransactionCoordinatorActor,
    TransactionIntervals,
)
from regent.broker.internal_topics import deleted_partitions, is_news_of
from regent.broker.machine_settings import filled
from regent.config.settings import Settings
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.coordinator.transaction.marker_receiver import MarkerReceiver
from regent.core.coordinator.transaction.transaction_marker_manager import PartitionLeaders
from regent.core.coordinator.transaction.transaction_state_manager import (
    TransactionConfig,
    TransactionLogSettings,
)
from regent.core.errors import Errors
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.coordinator import CoordinatorService, Question
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    MarkerTarget,
    TransactionToVerify,
    TxnMarker,
    TxnResponse,
    VerifyPartitionsRequest,
    VerifyPartitionsResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import inter_broker_endpoint
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.setting import SettingValues
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC

_STOP_TIMEOUT_S = 2.0
_ANSWER_MS = 5_000
"""How much longer than the request may take at the other broker its answer is waited for."""


class BrokerTransactionService:
    """Runs the transaction coordinator from ``start`` to ``stop``."""

    reconfigurable_configs: Final = ("transaction.partition.verification.enable",)

    def __init__(
        self,
        broker_id: BrokerId,
        settings: Settings,
        cache: MetadataCache,
        open_channel: OpenChannel,
    ) -> None:
        config = settings.transactions
        self.partitions = CoordinatorPartitions(
            TRANSACTION_STATE_TOPIC, cache, config.transaction_state_log_num_partitions
        )
        self._broker_id = broker_id
        self._settings = settings
        self._inter_broker = settings.listeners.inter_broker
        self._verifies = config.transaction_partition_verification_enable
        self._cache = cache
        self._seen = cache.snapshot
        timeout_ms = settings.controller.request_timeout_ms + _ANSWER_MS
        self._markers_out, self._questions_out = (
            InterBrokerSenders(purpose, self._endpoint_of, open_channel, timeout_ms=timeout_ms)
            for purpose in ("transaction-markers", "transaction-verification")
        )
        self._markers_in: MarkerTarget | None = None
        self._actor: ActorRef[TransactionCoordinatorActor] | None = None

    def start(
        self,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        *,
        target: MarkerTarget,
        groups: CoordinatorService,
        take_block: Callable[[], range],
    ) -> None:
        """Start the actor. Call it before the first control request is handled.

        ``target`` takes markers for the partitions of this broker, and ``take_block`` producer ids
        from ZooKeeper.
        """
        self._markers_in = MarkerReceiver(target, groups)
        actor = TransactionCoordinatorActor(
            replica_manager,
            scheduler,
            filled(TransactionConfig, self._settings),
            filled(TransactionLogSettings, self._settings),
            filled(TransactionIntervals, self._settings),
            partitions=self.partitions,
            leaders=PartitionLeaders(self._leader_of, lambda: self._cache.snapshot.is_complete),
            send_markers=self._send_markers,
            take_block=take_block,
        )
        self.marker_manager, self.loads = actor.marker_manager, actor.loads
        self._actor = launch(actor)
        replica_manager.observe_leaderships(self._on_leaderships)

    def stop(self) -> None:
        """Stop the actor, which refuses the requests that wait. Idempotent."""
        self._markers_out.close()
        self._questions_out.close()
        if self._actor is not None:
            stop_actor(self._actor, _STOP_TIMEOUT_S)

    @property
    def coordinator(self) -> CoordinatorService:
        """Takes the requests of clients."""
        assert self._actor is not None
        return CoordinatorActorService(self._actor)

    @property
    def markers(self) -> MarkerTarget:
        """Takes markers for the partitions of this broker."""
        assert self._markers_in is not None
        return self._markers_in

    @property
    def verifies(self) -> bool:
        """Whether brokers ask if partitions are part of transactions."""
        return self._verifies

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Change whether brokers ask; on any thread."""
        del old
        (name,) = self.reconfigurable_configs
        self._verifies = new[name]

    def on_metadata_changed(self) -> None:
        """Tell the coordinator about leaders and deleted partitions. Always on the same thread."""
        before, self._seen = self._seen, self._cache.snapshot
        for senders in (self._markers_out, self._questions_out):
            senders.keep_only(self._seen.brokers)
        gone = tuple(deleted_partitions(before, self._seen))
        if gone:
            self._tell(PartitionsDeleted(gone))
        if is_news_of(self.partitions.topic, before, self._seen):
            self._tell(PartitionsKnown())
        self._tell(LeadersChanged())

    def _on_leaderships(self, leaderships: Sequence[Leadership]) -> None:
        self._tell(LeadershipsChanged(leaderships))

    def _tell(
        self, message: LeadershipsChanged | PartitionsKnown | PartitionsDeleted | LeadersChanged
    ) -> None:
        if self._actor is not None:
            with suppress(ActorDeadError):
                self._actor.tell(message)

    # --- other brokers ---

    def _leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        snapshot = self._cache.snapshot
        row = snapshot.partitions.get(topic_partition)
        if row is None:
            return None
        return row.leader if row.leader in snapshot.brokers else NO_LEADER

    def _endpoint_of(self, broker_id: BrokerId) -> str | None:
        broker = self._cache.snapshot.brokers.get(broker_id)
        if broker is None:
            return None
        ours = self._inter_broker
        return inter_broker_endpoint(broker, ours.listener, ours.security_protocol)

    def _send_markers(
        self, broker_id: BrokerId, markers: Sequence[TxnMarker], respond: RespondToMarkers
    ) -> None:
        if broker_id == self._broker_id:
            self.markers.write_markers(markers, respond)
            return

        def answered(response: TxnResponse | None) -> None:
            respond(response.results if isinstance(response, WriteMarkersResponse) else None)

        self._markers_out.send(broker_id, WriteMarkersRequest(tuple(markers)), answered)

    def verify(
        self,
        transaction: TransactionToVerify,
        respond: Callable[[Mapping[TopicPartition, Errors]], None],
    ) -> None:
        """See ``TransactionVerifier.verify``; if brokers do not ask, every partition is part."""
        if not self._verifies:
            respond(dict.fromkeys(transaction.partitions, Errors.NONE))
            return
        coordinator = self._leader_of(
            TopicPartition(
                TRANSACTION_STATE_TOPIC, self.partitions.of(transaction.transactional_id)
            )
        )

        def tell(errors: Mapping[TopicPartition, Errors]) -> None:
            respond({tp: _known_to_producers(errors.get(tp)) for tp in transaction.partitions})

        def answered(response: TxnResponse | None) -> None:
            rows = response.partitions if isinstance(response, VerifyPartitionsResponse) else ()
            tell({row.topic_partition: row.error_code for row in rows})

        if coordinator == self._broker_id:
            self.coordinator.ask([Question(_verification(transaction), tell)])
        elif coordinator is None or coordinator == NO_LEADER:
            tell(dict.fromkeys(transaction.partitions, Errors.COORDINATOR_NOT_AVAILABLE))
        else:
            question = VerifyPartitionsRequest(transaction)
            self._questions_out.send(coordinator, question, answered)


def _verification(transaction: TransactionToVerify) -> AddPartitionsToTxn:
    return AddPartitionsToTxn(
        transaction.transactional_id,
        ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
        transaction.partitions,
        verify_only=True,
    )


def _known_to_producers(error: Errors | None) -> Errors:
    """Return an error as producers know it; None: there was no answer."""
    if error is None:
        return Errors.NETWORK_EXCEPTION
    return Errors.INVALID_PRODUCER_EPOCH if error is Errors.PRODUCER_FENCED else error
