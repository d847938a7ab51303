"""Defects in the core: they test the simulation.

Each is a function that breaks one protection while the returned context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from regent.core.controller.assignments import write_assignments
from regent.core.controller.brokers.broker_changes import BrokerChanges
from regent.core.controller.brokers.controlled_shutdown import ControlledShutdowns
from regent.core.controller.brokers.notifications import Notifications
from regent.core.controller.context import ControllerContext
from regent.core.controller.controller import Controller
from regent.core.controller.effects import SendResponse
from regent.core.controller.election import decisions, partition_change
from regent.core.controller.election.alter_partition import AlterPartitions
from regent.core.controller.partition_entries import PartitionEntry
from regent.core.controller.reassignment import partition_reassignment
from regent.core.controller.reassignment.partition_reassignment import requested_assignment
from regent.core.controller.reassignment.reassignment_phases import ReassignmentPhases
from regent.core.controller.replica_state_machine import ReplicaStateMachine
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.controller.topics.topic_deletion import TopicDeletions
from regent.core.errors import Errors
from regent.core.model import LeaderAndIsr, ReplicaAssignment
from regent.core.ports import ControlFacts, ControllerEpoch
from regent.core.protocol.control import ControlHeader, LeaderAndIsrRequest
from regent.core.protocol.controller import ControlledShutdownResponse
from regent.core.replication import control_request_handler
from regent.core.replication.control_request_fence import ControlRequestFence
from regent.core.replication.control_request_handler import ControlRequestHandler
from regent.core.replication.request_parts import ListedPartitions, RequestParts, _named
from regent.zk.stores import fenced_writes, znode_store
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.znode_store import WatchingStore
from tests.simulation import channel
from tests.simulation.tampering_defects import terms_unchecked

# --- who may write to ZooKeeper -------------------------------------------------------------------


def no_controller_epoch_check_on_writes() -> Any:
    """Writes of a deposed controller take effect (KAFKA-6082)."""
    write = fenced_writes.write_fenced

    def unfenced(zookeeper: Any, writes: Any, fence: Any, **options: Any) -> Any:
        return write(zookeeper, writes, [], **options)

    return patch.object(znode_store, "write_fenced", unfenced)


def epoch_read_after_waking() -> Any:
    """A controller that was paused writes with the epoch it reads afterwards (KAFKA-1096)."""
    update = ZkControllerStore.update_partition_states

    def with_present_epoch(self: ZkControllerStore, states: Any, epoch_zk_version: int) -> Any:
        current = self.read_controller_epoch() or ControllerEpoch(0, epoch_zk_version)
        with terms_unchecked():
            return update(self, states, current.zk_version)

    return patch.object(ZkControllerStore, "update_partition_states", with_present_epoch)


def own_election_unnoticed() -> Any:
    """A broker whose election succeeded without an answer believes that it lost (KAFKA-13407)."""
    read = ZkControllerStore.read_controller

    def as_another_session(self: ZkControllerStore) -> Any:
        controller = read(self)
        return None if controller is None else replace(controller, is_own_session=False)

    return patch.object(ZkControllerStore, "read_controller", as_another_session)


# --- what is written ------------------------------------------------------------------------------


def no_leader_epoch_bump() -> Any:
    """An election keeps the leader epoch."""

    def without_bump(self: LeaderAndIsr, leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
        return self._replace(leader=leader, isr=isr)

    return patch.object(LeaderAndIsr, "new_leader_and_isr", without_bump)


def last_isr_member_removed() -> Any:
    """The ISR becomes empty when its last member dies (KAFKA-708)."""
    new = LeaderAndIsr.new_leader_and_isr

    def shrink_to_nothing(self: LeaderAndIsr, leader: int, isr: tuple[int, ...]) -> LeaderAndIsr:
        changed = new(self, leader, isr)
        return changed._replace(isr=()) if leader < 0 and isr == self.isr else changed

    return patch.object(LeaderAndIsr, "new_leader_and_isr", shrink_to_nothing)


def every_topic_allows_unclean_elections() -> Any:
    """Any live replica may become the leader, whatever records it lacks."""

    def allow(services: Any, cases: Iterable[Any]) -> list[Any]:
        del services
        return [
            replace(case, replicas=replace(case.replicas, allows_unclean_election=True))
            for case in cases
        ]

    return patch.object(decisions, "_with_settings", allow)


def proposals_of_any_version() -> Any:
    """A leader's proposal replaces a state that the leader does not know."""
    decide = AlterPartitions._decide

    def at_present_version(self: AlterPartitions, row: Any, sender: int) -> Any:
        known = self._known(row.topic_partition)
        if known is not None and known.leader_and_isr.leader_epoch == row.leader_epoch:
            row = row._replace(partition_epoch=known.leader_and_isr.partition_epoch)
        return decide(self, row, sender)

    return patch.object(AlterPartitions, "_decide", at_present_version)


def any_replica_may_join_the_isr() -> Any:
    """Dead, shutting-down and restarted replicas may join the ISR (KIP-841, KIP-903)."""
    return patch.object(partition_change, "_are_eligible", lambda *_: True)


def final_replica_set_written_first() -> Any:
    """A reassignment is written as complete before the removed replicas are stopped."""
    finish = ReassignmentPhases._complete

    def after_writing(self: ReassignmentPhases, partitions: Any) -> None:
        assignment = self._context.partition_full_replica_assignment
        targets = {p: ReplicaAssignment(assignment(p).target_replicas) for p in partitions}
        write_assignments(self._services, targets)
        finish(self, partitions)

    return patch.object(ReassignmentPhases, "_complete", after_writing)


def failed_deletions_count_as_done() -> Any:
    """A topic is forgotten although a replica could not be deleted (KAFKA-9946)."""
    answered = TopicDeletions.on_stop_replica_response

    def without_errors(self: TopicDeletions, broker_id: int, errors: Any) -> None:
        answered(self, broker_id, dict.fromkeys(errors, Errors.NONE))

    return patch.object(TopicDeletions, "on_stop_replica_response", without_errors)


# --- what a controller notices and remembers ------------------------------------------------------


def watches_armed_after_the_read() -> Any:
    """A change between a read and the setting of its watch is missed."""

    def children(self: WatchingStore, path: str) -> list[str]:
        names = self._zookeeper.children(path) or []
        self._watched.add(path)
        self._zookeeper.children(path, watch=True)
        return names

    return patch.object(WatchingStore, "_watch_children", children)


def bounces_unnoticed() -> Any:
    """A broker that restarts quickly is taken for the one before (KIP-380)."""
    read = BrokerChanges._read_brokers

    def with_known_epochs(self: BrokerChanges) -> Any:
        known = self._context.registrations
        return {b: known.get(b, registration) for b, registration in read(self).items()}

    return patch.object(BrokerChanges, "_read_brokers", with_known_epochs)


def new_brokers_get_no_state() -> Any:
    """A broker that starts is not sent the full state."""
    return patch.object(ReplicaStateMachine, "send_everything", lambda self, broker_ids: None)


def stale_answers_accepted() -> Any:
    """An answer of a former broker epoch or controller epoch counts."""

    def is_unknown(self: ControllerContext, broker_id: int, header: Any) -> bool:
        return broker_id not in self.registrations

    return patch.object(ControllerContext, "is_stale", is_unknown)


def resignation_without_reset() -> Any:
    """A controller keeps its former state in its next term (KAFKA-5310)."""
    reset = ControllerContext.reset

    def only_once(self: ControllerContext) -> None:
        if not hasattr(self, "_topics"):
            reset(self)

    return patch.object(ControllerContext, "reset", only_once)


def watches_outlive_the_term() -> Any:
    """A broker that resigned keeps its watches."""
    return patch.object(WatchingStore, "unwatch_all_but_controller", lambda self: None)


def imbalance_counted_once() -> Any:
    """The imbalance metric rises when a preferred leader is lost, and never falls."""
    count = ControllerContext._count_imbalance

    def upwards(self: ControllerContext, record: Any) -> None:
        if not record.counts_as_imbalanced:
            count(self, record)

    return patch.object(ControllerContext, "_count_imbalance", upwards)


# --- how control requests are sent ----------------------------------------------------------------


def any_two_requests_unanswered_together() -> Any:
    """A LeaderAndIsr may arrive after the StopReplica that followed it."""
    return patch.object(channel, "may_be_unanswered_together", lambda *_: True)


# --- how brokers handle control requests ----------------------------------------------------------


def no_broker_epoch_check() -> Any:
    """A control request for a former broker epoch is applied (KIP-380)."""

    def by_controller_epoch(self: ControlRequestFence, header: Any, **_: Any) -> Errors:
        is_stale = header.controller_epoch < self.controller_epoch
        return Errors.STALE_CONTROLLER_EPOCH if is_stale else Errors.NONE

    stack = ExitStack()
    stack.enter_context(patch.object(ControlRequestFence, "refuse", by_controller_epoch))
    stack.enter_context(patch.object(ControlFacts, "confirm", lambda self, header: True))
    return stack


def deposed_controllers_accepted() -> Any:
    """A control request of a deposed controller is applied (KAFKA-1188)."""

    def by_broker_epoch(self: ControlRequestFence, header: Any, **_: Any) -> Errors:
        is_stale = header.broker_epoch < self.broker_epoch
        return Errors.STALE_BROKER_EPOCH if is_stale else Errors.NONE

    stack = ExitStack()
    stack.enter_context(patch.object(ControlRequestFence, "refuse", by_broker_epoch))
    stack.enter_context(patch.object(ControlFacts, "confirm", lambda self, header: True))
    return stack


def controllers_believed_from_messages() -> Any:
    """A control request with a new controller epoch from any sender is applied."""
    return patch.object(ControlFacts, "confirm", lambda self, header: True)


def receivers_unchecked() -> Any:
    """A broker applies control requests that are for another broker."""
    admit = ControlRequestFence.admit

    def for_anybody(self: ControlRequestFence, header: Any, facts: Any, **kind: Any) -> bool:
        header = header._replace(broker_id=self._broker_id, broker_epoch=self.broker_epoch)
        return admit(self, header, facts, **kind)

    handle = ControlRequestHandler.handle

    def as_if_for_us(self: ControlRequestHandler, header: Any, request: Any, now_ms: int) -> Any:
        return handle(self, header._replace(broker_epoch=self.broker_epoch), request, now_ms)

    stack = ExitStack()
    stack.enter_context(patch.object(ControlRequestFence, "admit", for_anybody))
    stack.enter_context(patch.object(ControlRequestHandler, "handle", as_if_for_us))
    return stack


def old_leader_epochs_applied() -> Any:
    """A late control request undoes a newer one."""
    handle_control_request = ControlRequestHandler._apply

    def with_any_epoch(
        self: ControlRequestHandler,
        name: Any,
        topic: Any,
        state: Any,
        now_ms: int,
        **options: Any,
    ) -> Any:
        partition = self._partitions.get(name)
        if partition is not None:
            partition.leader_epoch = min(partition.leader_epoch, state.leader_epoch - 1)
        return handle_control_request(self, name, topic, state, now_ms, **options)

    return patch.object(ControlRequestHandler, "_apply", with_any_epoch)


def topic_ids_ignored() -> Any:
    """The log of a deleted topic is taken for the log of a new topic with the same name."""
    return patch.object(control_request_handler, "differ", lambda one, other: False)


def requests_before_the_write() -> Any:
    """Brokers learn a leader epoch that ZooKeeper does not have yet."""
    add = ControlRequestBatch.add_entry

    def one_ahead(self: Any, brokers: Any, entry: PartitionEntry, **options: Any) -> None:
        now = entry.leadership
        if now is not None:
            ahead = now._replace(leader_and_isr=now.leader_and_isr.new_epoch())
            add(self, brokers, replace(entry, leadership=ahead), **options)

    return patch.object(ControlRequestBatch, "add_entry", one_ahead)


# --- answers of the controller --------------------------------------------------------------------


def shutdowns_answered_at_once() -> Any:
    """A shutting-down broker may stop before the new leaders know that they lead (KAFKA-6029)."""
    return patch.object(ControlledShutdowns, "_new_leaders", lambda self, partitions, broker: {})


def remaining_leaderships_not_reported() -> Any:
    """A shutting-down broker gets the answer that it leads nothing, even if it leads."""

    def done(self: ControlledShutdowns, request_id: int, waiting: Any) -> None:
        self._services.outbox.add(SendResponse(request_id, ControlledShutdownResponse(Errors.NONE)))

    return patch.object(ControlledShutdowns, "_let_go", done)


def leaving_brokers_used_again_at_once() -> Any:
    """A shutting-down broker is elected and joins ISRs."""
    return patch.object(ControlledShutdowns, "_mark", lambda self, broker_id: None)


def brokers_that_stay_never_used_again() -> Any:
    """A broker that asked to shut down and did not stop never leads again."""
    return patch.object(ControlledShutdowns, "on_abandoned", lambda self, event: False)


def waiting_shutdowns_not_answered() -> Any:
    """A broker that waits to shut down gets no answer when the controller resigns."""
    return patch.object(ControlledShutdowns, "refuse_all", lambda self: self._waiting.clear())


def requests_left_unanswered() -> Any:
    """A broker that is not the active controller does not answer controller requests."""
    return patch.object(Controller, "_refuse", lambda self, event: None)


def any_proposal_accepted() -> Any:
    """The controller does not check proposed ISRs."""
    return patch.object(partition_change, "_is_valid_isr", lambda *_: True)


def cancelled_moves_continue() -> Any:
    """A reassignment is reported as cancelled, and goes on."""

    def to_its_target(context: Any, partition: Any, target: Any, **options: Any) -> Any:
        current = context.partition_full_replica_assignment(partition)
        if target is None and current.is_being_reassigned:
            target = current.target_replicas
        return requested_assignment(context, partition, target, **options)

    return patch.object(partition_reassignment, "requested_assignment", to_its_target)


# --- writes of others -----------------------------------------------------------------------------


def removed_topics_stay_on_brokers() -> Any:
    """Brokers do not learn that the znode of a topic was removed by hand."""

    def in_memory(self: TopicChanges, topics: Any) -> None:
        for topic in topics:
            self._context.remove_topic(topic)

    return patch.object(TopicChanges, "_purge", in_memory)


def isr_changes_unread() -> Any:
    """The controller does not read ISRs that leaders write themselves."""
    return patch.object(Notifications, "_learn_leaderships", lambda self, partitions: [])


def one_part_taken_for_the_full_request() -> Any:
    """A replica is stray when one part of a FULL does not list it, although another does."""

    def add(
        parts: RequestParts, _: ControlHeader, request: LeaderAndIsrRequest
    ) -> ListedPartitions:
        named = _named(request)
        return ListedPartitions(named, is_everything=True)

    return patch.object(RequestParts, "add", add)


def dropped_events_without_a_new_term() -> Any:
    """Events that do not fit into the queue are dropped without a new term."""
    return patch.object(Controller, "_begin_a_new_term", lambda *_: None)


SEARCH_FROM: dict[Callable[[], Any], int] = {
    epoch_read_after_waking: 105,
    proposals_of_any_version: 2,
    any_replica_may_join_the_isr: 85,
    final_replica_set_written_first: 1,
    failed_deletions_count_as_done: 109,
    watches_armed_after_the_read: 1882,
    bounces_unnoticed: 40,
    stale_answers_accepted: 231,
    watches_outlive_the_term: 1,
    any_two_requests_unanswered_together: 1451,
    receivers_unchecked: 4,
    old_leader_epochs_applied: 16,
    topic_ids_ignored: 101,
    shutdowns_answered_at_once: 115,
    remaining_leaderships_not_reported: 104,
    leaving_brokers_used_again_at_once: 31,
    brokers_that_stay_never_used_again: 47,
    waiting_shutdowns_not_answered: 115,
    requests_left_unanswered: 1,
    any_proposal_accepted: 84,
    cancelled_moves_continue: 126,
    removed_topics_stay_on_brokers: 20,
    isr_changes_unread: 18,
    one_part_taken_for_the_full_request: 68,
    dropped_events_without_a_new_term: 102,
}
