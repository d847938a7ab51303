"""The controller of one broker: it stands for election, acts as the controller, and resigns.

Mirrors ``kafka.controller.KafkaController`` as a deterministic machine. ``handle`` processes one
event to completion: it reads and writes ZooKeeper through its store and returns the effects to
perform. It has no clock and no random numbers: the time and the source of topic ids are arguments.

Every broker has one. It is *active* from the time that it wins an election until it resigns.
``ControllerElection`` knows what ``/controller`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import assert_never

from regent.core.controller import quarantine
from regent.core.controller.brokers.broker_changes import BrokerChanges
from regent.core.controller.brokers.broker_health import BrokerHealth
from regent.core.controller.brokers.broker_registrar import BrokerRegistrar
from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.brokers.notifications import Notifications
from regent.core.controller.brokers.responses import ControlResponses
from regent.core.controller.context import ControllerContext
from regent.core.controller.controller_election import ControllerElection
from regent.core.controller.delegation_token_deletion import DelegationTokenDeletion
from regent.core.controller.effects import (
    CancelScheduledEvents,
    ControllerElected,
    ControllerResigned,
    ControllerRoleChanged,
    Effect,
    RemoveBroker,
    SendResponse,
    error_response,
)
from regent.core.controller.election.alter_partition import AlterPartitions
from regent.core.controller.election.leader_elections import LeaderElections
from regent.core.controller.events import (
    AdvertisedListenersChanged,
    AlterPartitionReceived,
    ApiPartitionReassignment,
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    BrokerUnusable,
    ChannelOverflowed,
    CheckBrokers,
    ControlledShutdown,
    ControlledShutdownAbandoned,
    ControlledShutdownTimeout,
    ControllerChange,
    ControllerEvent,
    ControllerFailuresChange,
    ControlRequestFailed,
    DeleteExpiredTokens,
    ElectionDoubted,
    EventsLost,
    Expire,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    ListPartitionReassignments,
    LogDirEventNotification,
    LookAgain,
    MoveController,
    OperationNoted,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    PreferredReplicaElection,
    ReadAgain,
    Reelect,
    RegisterBrokerAndReelect,
    RegistrationDeleted,
    ReplicaLeaderElection,
    ReplicasGivenUp,
    RequestId,
    Resign,
    StandAgain,
    Startup,
    SuspectReplicasChanged,
    TopicChange,
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
    UndeleteTopic,
    UpdateMetadataResponseReceived,
    ZkPartitionReassignment,
)
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.quarantine import Quarantine, event_name
from regent.core.controller.reassignment.partition_reassignment import Reassignments
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.services import ControllerServices, ControllerSettings
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import (
    BadDataError,
    ControllerMovedError,
    Errors,
    ForeignDirectoryError,
    RegentError,
    SessionExpiredError,
    UnreadableError,
)
from regent.core.model import NO_SUSPECTS, BrokerId, BrokerInfo, SuspectReplicas
from regent.core.ports import ControllerEpoch, ControllerStore, TopicIds
from regent.core.protocol.control import ControlHeader
from regent.core.protocol.controller import (
    ControllerResponse,
    MoveControllerResponse,
    NoteOperationResponse,
)

MAX_RESIGNATION_BACKOFF_MS = 60_000


class Controller:
    """One broker's controller: every event enters through ``handle``.

    ``accepted_epoch`` returns the highest controller epoch that this broker has ever accepted,
    ``suspects`` its replicas that may have lost records. ``on_suspects_listed`` is called when
    ZooKeeper lists them.
    """

    def __init__(
        self,
        broker_info: BrokerInfo,
        store: ControllerStore,
        topic_ids: TopicIds,
        settings: ControllerSettings | None = None,
        accepted_epoch: Callable[[], int] = lambda: 0,
        suspects: Callable[[], SuspectReplicas] = lambda: NO_SUSPECTS,
        on_suspects_listed: Callable[[SuspectReplicas], None] = lambda _: None,
    ) -> None:
        self._services = ControllerServices(
            broker_info.broker_id, store, topic_ids, settings or ControllerSettings()
        )
        self._log = self._services.log(__name__)
        self._election = ControllerElection(broker_info, store, accepted_epoch)
        self._registration = BrokerRegistrar(
            self._services, broker_info, suspects, on_suspects_listed
        )
        self._partitions = PartitionStateMachine(self._services)
        self._replicas = ReplicaStateMachine(self._services)
        machines = (self._services, self._partitions, self._replicas)
        self._deletions = TopicDeletions(*machines)
        self._reassignments = Reassignments(*machines, self._deletions)
        self._brokers = BrokerChanges(*machines, self._deletions, self._reassignments)
        self._quarantine = Quarantine(self._services)
        self._topics = TopicChanges(*machines, self._deletions, self._quarantine)
        self._shutdowns = ControlledShutdowns(*machines)
        self._health = BrokerHealth(self._services, self._shutdowns)
        self._elections = LeaderElections(self._services, self._partitions)
        self._alter_partitions = AlterPartitions(self._services)
        self._notifications = Notifications(self._services, self._replicas, self._reassignments)
        self._tokens = DelegationTokenDeletion(self._services)
        self._responses = ControlResponses(
            self._services, self._replicas, self._brokers, self._deletions
        )
        self._is_active = False
        self._resignations = 0  # in succession, after unexpected errors
        self._elected_ms = 0
        self._loading: str | None = None  # the present step of a failover
        self._reads_again_in = 0  # the epoch of the term that scheduled a ReadAgain
        self._will_reelect = False  # a Reelect is scheduled
        self._no_election_before_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller."""
        return self._is_active

    @property
    def active_controller_id(self) -> BrokerId:
        """The active controller according to ZooKeeper; -1: unknown."""
        return self._election.active_controller_id

    @property
    def context(self) -> ControllerContext:
        """The controller's state; empty while it is not active."""
        return self._services.context

    def keep_deleted_topics_for(self, delay_ms: int) -> None:
        """Set for how long topics that are deleted from now on can come back. Thread-safe."""
        self._services.settings.log_segment_delete_delay_ms = delay_ms

    def flush_to(self, perform: Callable[[list[Effect]], None]) -> None:
        """Set what performs urgent effects while their event is still being handled.

        When a broker dies, the requests about new leaders are sent before the broker is removed
        from all other ISRs.
        """
        self._services.outbox.perform = perform

    def handle(self, event: ControllerEvent, now_ms: int) -> list[Effect]:
        """Process one event to completion; the caller performs the effects, in order.

        ``now_ms`` is wall-clock time. It is written into znodes, and compared with no times of
        other brokers but the ends of delegation tokens.
        """
        epoch = self.context.epoch
        self.context.now_ms = now_ms
        self.context.event_id += 1
        try:
            self._dispatch(event, now_ms)
            if self._is_active:
                self._replicas.send_withheld_full()
                self._read_unreadable_later()
        except ControllerMovedError as moved:
            self._log.info("%s", moved)
            self._resign()
            self._reelect_later()
            self._refuse(event)
        except UnreadableError as unreadable:
            if self._loading is not None:
                raise
            # The list of brokers or topics cannot be read. Nothing has been changed yet.
            self._log.error("%s", unreadable)
            self._read_unreadable_later()
        except SessionExpiredError as expired:
            # The event Expire follows and resigns. Until then nothing can be read or written.
            self._log.info("%s", expired)
            self._refuse(event)
        return self._services.outbox.drain(max(epoch, self.context.epoch))

    def _dispatch(self, event: ControllerEvent, now_ms: int) -> None:  # noqa: C901, PLR0915 - every event
        match event:
            case Startup() | ControllerChange():
                self._reconsider(now_ms)
            case Reelect():
                self._will_reelect = False
                self._reconsider(now_ms)
            case LookAgain():
                if self._is_active:
                    self._read_again(everything=True)
                self._reconsider(now_ms)
            case Expire():
                self._will_reelect = False
                self._election.reset()
                self._resign()
            case RegisterBrokerAndReelect():
                if self._registration.create(now_ms):
                    self._reconsider(now_ms)
            case RegistrationDeleted():
                self._registration.create(now_ms)
            case BrokerModifications(broker_id) if broker_id == self._services.broker_id:
                self._registration.create(now_ms)  # the watch on our registration has fired
                if self._is_active:
                    self._brokers.on_broker_modifications(broker_id)
            case ElectionDoubted():
                if self._is_active:
                    self._election.check_in_force(self.context.epoch_zk_version)
            case SuspectReplicasChanged():
                self._registration.update()
            case AdvertisedListenersChanged(endpoints):
                self._registration.move(endpoints)
            case ReplicasGivenUp(broker_epoch):
                self._registration.renew(broker_epoch, now_ms)
            case Resign():
                self._move(event, now_ms)
            case MoveController():
                self._take_over(event, now_ms)
            case StandAgain():
                self._no_election_before_ms = 0
                self._reconsider(now_ms)
            case EventsLost():
                self._registration.create(now_ms)  # the watch on it may have fired
                self._begin_a_new_term(now_ms)
            case _ if self._quarantine.has_event(event_name(event)):
                self._refuse_quarantined(event)
            case UncleanLeaderElectionEnable(enabled):
                self._services.settings.unclean_leader_election_enable = enabled
                if self._is_active and enabled:
                    self._partitions.trigger_online_partition_state_change()
            case _ if not self._is_active:
                self._refuse(event)
            case BrokerChange():
                self._brokers.on_broker_change()
            case BrokerModifications(broker_id):
                self._brokers.on_broker_modifications(broker_id)
            case TopicChange():
                self._topics.on_topic_change()
            case PartitionModifications(topic):
                is_tried_again = self._quarantine.try_again(topic)
                self._topics.on_partition_modifications(topic)
                if is_tried_again:
                    self._deletions.on_topic_deletion()  # a request to delete the topic may wait
                self._reassignments.on_partition_modifications(topic)
            case TopicDeletion():
                self._deletions.on_topic_deletion()
            case UndeleteTopic(request_id, request):
                self._reply(request_id, self._deletions.deleted.undelete(request))
            case OperationNoted(request_id, request):
                self._services.outbox.note("%s", request.done)
                self._reply(request_id, NoteOperationResponse(Errors.NONE))
            case ZkPartitionReassignment():
                self._reassignments.on_zk_reassignment()
            case PartitionReassignmentIsrChange(topic_partition):
                self._reassignments.on_state_written(topic_partition)
            case PreferredReplicaElection():
                self._elections.on_preferred_replica_election()
            case IsrChangeNotification():
                self._notifications.on_isr_change_notification()
            case LogDirEventNotification():
                self._notifications.on_log_dir_event_notification()
            case AutoPreferredReplicaLeaderElection(controller_epoch):
                if controller_epoch == self.context.epoch:
                    self._elections.rebalance()
            case TopicUncleanLeaderElectionEnable(topic):
                self._partitions.trigger_online_partition_state_change(topic)
            case ControlledShutdown():
                self._shutdowns.shut_down(event)
            case ControlledShutdownTimeout():
                self._shutdowns.on_timeout(event)
            case ControlledShutdownAbandoned():
                if self._shutdowns.on_abandoned(event):
                    self._reassignments.on_broker_startup([event.broker_id])
                    self._deletions.resume()
            case AlterPartitionReceived(request_id, request):
                answer, changed = self._alter_partitions.alter(request)
                self._reply(request_id, answer)
                self._reassignments.on_isr_change(changed)
            case ReplicaLeaderElection(request_id, request):
                self._reply(request_id, self._elections.elect(request))
            case ApiPartitionReassignment(request_id, request):
                self._reply(request_id, self._reassignments.submit(request))
            case ListPartitionReassignments(request_id, request):
                self._reply(request_id, self._reassignments.ongoing(request))
            case LeaderAndIsrResponseReceived() | UpdateMetadataResponseReceived() if (
                accepted := self._responses.accepted_epoch(event)
            ) is not None:
                self._raise_epoch_above(accepted, now_ms)
            case LeaderAndIsrResponseReceived():
                self._on_broker_response(event.broker_id, event.header)
                self._responses.on_leader_and_isr(event)
                # Must be last: the answer to ControlledShutdown lists what the broker still leads.
                self._shutdowns.on_leader_and_isr_response(event)
            case UpdateMetadataResponseReceived():
                self._on_broker_response(event.broker_id, event.header)
                self._responses.on_update_metadata(event)
            case TopicDeletionStopReplicaResponseReceived():
                self._on_broker_response(event.broker_id, event.header)
                self._responses.on_stop_replica(event)
            case ControllerFailuresChange():
                self._resume_quarantined(self._quarantine.on_change())
            case CheckBrokers(controller_epoch):
                if controller_epoch == self.context.epoch:
                    self._health.check()
            case DeleteExpiredTokens(controller_epoch):
                if controller_epoch == self.context.epoch:
                    self._tokens.delete_expired()
            case ReadAgain(controller_epoch):
                if controller_epoch == self.context.epoch:
                    self._read_again()
            case ChannelOverflowed(broker_id, header) | ControlRequestFailed(broker_id, header):
                if not self.context.is_stale(broker_id, header):
                    self._brokers.send_complete_state(broker_id)
            case BrokerUnusable(broker_id, header, reason):
                if not self.context.is_stale(broker_id, header):
                    self._services.outbox.note("broker %d takes no requests: %s", broker_id, reason)
            case _ as unreachable:
                assert_never(unreachable)

    # --- znodes that could not be read ---

    def _read_unreadable_later(self) -> None:
        """Schedule another read of unreadable znodes: a changed ACL fires no watch."""
        store, epoch = self._services.store, self.context.epoch
        if not (self.context.must_read_again or store.unreadable):
            return
        if self._reads_again_in != epoch:
            self._reads_again_in = epoch
            self._services.schedule(self._services.settings.tell_again_ms, ReadAgain(epoch))

    def _read_again(self, *, everything: bool = False) -> None:
        self._reads_again_in = 0
        self.context.must_read_again = False
        has_missed_requests = everything or bool(self._services.store.unreadable)
        self._brokers.on_broker_change()
        self._notifications.on_isr_change_notification()
        self._reassignments.try_again(self._topics.read_again())
        if has_missed_requests:
            self._topics.on_topic_change()
            self._deletions.on_topic_deletion()
            self._reassignments.on_zk_reassignment()
            self._elections.on_preferred_replica_election()
            self._notifications.on_log_dir_event_notification()

    def _resume_quarantined(self, tried_again: Collection[str]) -> None:
        """Handle what was quarantined until now, including steps of the failover."""
        if tried_again:
            self._read_again(everything=True)
        if ZkPartitionReassignment.__name__ in tried_again:
            self._reassignments.resume()
        if CheckBrokers.__name__ in tried_again:
            self._health.load()

    def _on_broker_response(self, broker_id: BrokerId, header: ControlHeader) -> None:
        """Use an unresponsive broker again, because it has responded."""
        if not self.context.is_stale(broker_id, header) and self._health.on_response(broker_id):
            self._reassignments.on_broker_startup([broker_id])
            self._deletions.resume()

    # --- election ---

    def _reconsider(self, now_ms: int) -> None:
        """Resign if ``/controller`` is not ours any more; then stand for election."""
        if self._is_active:
            if self._election.holds_controller_znode():
                return
            self._resign()
        self._elect(now_ms)

    def _begin_a_new_term(self, now_ms: int) -> None:
        """Resign and stand for election, to read everything again: events were lost."""
        if self._is_active:
            self._log.error("Events were lost: reading everything again in a new term")
            epoch_zk_version = self.context.epoch_zk_version
            self._resign()
            self._services.store.delete_controller(epoch_zk_version)
        self._reconsider(now_ms)

    def _elect(self, now_ms: int) -> None:
        if now_ms < self._no_election_before_ms:
            self._election.read_active_controller()
            return
        try:
            won = self._election.elect(now_ms)
        except (BadDataError, ForeignDirectoryError) as error:  # until an operator corrects it
            self._registration.complain(f"cannot stand for election: {error}", now_ms)
            self._reelect_later()
            return
        if won is not None:
            self._elected_ms = now_ms
            self._failover(won)

    def give_up(self) -> None:
        """Delete ``/controller`` if it is ours, before this broker stops.

        If that fails, the end of the session deletes it.
        """
        if self._is_active:
            try:
                self._services.store.delete_controller(self.context.epoch_zk_version)
            except RegentError as error:
                self._log.info("%s", error)

    def _take_over(self, asked: MoveController, now_ms: int) -> None:
        """Take the place of the controller, because an operator asked for it."""
        answer = MoveControllerResponse(Errors.NONE)
        if self._is_active:
            self._election.check_in_force(self.context.epoch_zk_version)
        else:
            former = ControllerEpoch(asked.controller_epoch, asked.epoch_zk_version)
            try:
                won = self._election.take_over(former, now_ms)
            except (BadDataError, ForeignDirectoryError) as error:
                answer = MoveControllerResponse(Errors.NOT_CONTROLLER, str(error))
            else:
                self._elected_ms = now_ms
                self._failover(won)
        self._reply(asked.request_id, answer)

    def _raise_epoch_above(self, controller_epoch: int, now_ms: int) -> None:
        """Raise our epoch above one that a broker has accepted, and begin the term again.

        The write is conditional on the version of ``/controller_epoch``: it fails if another
        controller was elected after us.
        """
        try:
            raised = self._election.raise_epoch(controller_epoch, self.context.epoch_zk_version)
        except BadDataError as error:
            self._registration.complain(f"cannot raise the controller epoch: {error}", now_ms)
            return
        self._resign()
        self._failover(raised)

    def _failover(self, won: ControllerEpoch) -> None:
        """Become the active controller, as ``KafkaController.onControllerFailover``.

        Everything is read before anything is sent. UpdateMetadata is sent first: brokers must know
        the live brokers before LeaderAndIsr names their leaders (KAFKA-4443).
        """
        context = self.context
        self._is_active = True
        context.epoch, context.epoch_zk_version = won
        self._services.outbox.add(ControllerRoleChanged(is_active=True, controller_epoch=won.epoch))
        self._services.outbox.record(ControllerElected, self._services.broker_id, won.epoch)
        for name, step in (
            (quarantine.LOADING_QUARANTINE, self._quarantine.load),
            ("IsrChangeNotification", self._notifications.load),
            (quarantine.LOADING_BROKERS, self._brokers.load),
            (quarantine.LOADING_TOPICS, self._topics.load),
            (quarantine.LOADING_TOPICS, self._keep_deletions),
            ("TopicDeletion", self._deletions.load),
            (quarantine.ANNOUNCING_BROKERS, self._services.announce_metadata),
            (quarantine.SETTLING_LEADERSHIPS, self._partitions.settle_restarted_replicas),
            (quarantine.STARTING_STATE_MACHINES, self._brokers.start_state_machines),
            ("ZkPartitionReassignment", self._reassignments.resume),
            ("TopicDeletion", self._deletions.resume),
            ("PreferredReplicaElection", self._elections.load),
            ("CheckBrokers", self._health.load),
        ):
            self._loading = name
            # A step that has the name of an event can be quarantined.
            if not self._quarantine.has_event(name):
                step()
        self._elections.begin_checks()
        self._tokens.begin_checks()
        self._loading = None
        self._log.info(
            "Ready to serve as the new controller: %d brokers, %d topics",
            len(context.registrations),
            len(context.all_topics),
        )

    def _keep_deletions(self) -> None:
        if self._quarantine.has_event("TopicDeletion"):
            self._deletions.keep()

    def _resign(self) -> None:
        """Stop being the controller; nothing of the term stays. Idempotent.

        Mirrors ``KafkaController.onControllerResignation``.
        """
        if not self._is_active:
            return
        self._is_active = False
        self._loading = None
        self._reads_again_in = 0
        self._services.store.unwatch_all_but_controller()
        for broker_id in self.context.live_or_shutting_down_broker_ids:
            self._services.outbox.add(RemoveBroker(broker_id))
        self._services.outbox.add(CancelScheduledEvents())
        self._will_reelect = False
        self._services.outbox.add(
            ControllerRoleChanged(is_active=False, controller_epoch=self.context.epoch)
        )
        self._shutdowns.refuse_all()
        broker_id = self._services.broker_id
        self._services.outbox.record(ControllerResigned, broker_id, self.context.epoch)
        self._log.info("Resigned")
        self.context.reset()

    def _move(self, failed: Resign, now_ms: int) -> None:
        """Resign after an unexpected error and stay out of elections for a backoff.

        The backoff doubles with every failure. It is short again after a term longer than the
        maximum backoff, and if the next term quarantines what failed. Mirrors
        ``KafkaController.triggerControllerMove``. ``_resign`` forgets the version that fences the
        deletion of ``/controller``, so it is read first.
        """
        self._log.error("Resigning after an error: %s", failed.reason)
        was_active, epoch_zk_version = self._is_active, self.context.epoch_zk_version
        term_ms = now_ms - self._elected_ms
        is_quarantined_next = was_active and self._quarantine.write_down(
            self._loading, failed, term_ms=term_ms
        )
        self._resign()
        if is_quarantined_next or (was_active and term_ms > MAX_RESIGNATION_BACKOFF_MS):
            self._resignations = 0
        backoff_ms = self._services.settings.election_retry_ms * 2**self._resignations
        backoff_ms = min(backoff_ms, MAX_RESIGNATION_BACKOFF_MS)
        self._resignations += 1
        self._no_election_before_ms = now_ms + backoff_ms
        self._services.schedule(backoff_ms, StandAgain())
        if was_active:
            self._services.store.delete_controller(epoch_zk_version)

    def _refuse_quarantined(self, event: ControllerEvent) -> None:
        """Refuse an event that is quarantined; a request is answered with an error."""
        name = event_name(event)
        self._services.outbox.note("%s: quarantined, %s", name, self.context.quarantined[name])
        reply = error_response(event, Errors.UNKNOWN_SERVER_ERROR)
        if reply is not None:
            self._services.outbox.add(reply)
        if isinstance(event, AutoPreferredReplicaLeaderElection):
            self._elections.check_later(event.controller_epoch)
        if isinstance(event, DeleteExpiredTokens) and event.controller_epoch == self.context.epoch:
            self._tokens.check_later()

    def _reply(self, request_id: RequestId, response: ControllerResponse) -> None:
        self._services.outbox.add(SendResponse(request_id, response))

    def _refuse(self, event: ControllerEvent) -> None:
        reply = error_response(event)
        if reply is not None and not self._services.outbox.has_answered(reply.request_id):
            self._services.outbox.add(reply)

    def _reelect_later(self) -> None:
        if not self._will_reelect:
            self._will_reelect = True
            self._services.schedule(self._services.settings.election_retry_ms, Reelect())
