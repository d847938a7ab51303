"""Elections on request, and the periodic rebalance of leaders.

Mirrors ``KafkaController.processReplicaLeaderElection``, ``onReplicaElection`` and
``checkAndTriggerAutoLeaderRebalance``. Only a request gets an answer, so only its failures are not
logged here; only a request may ask for unclean elections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from regent.core.controller.election.election import (
    ElectionStrategy,
    OfflineElection,
    PartitionChange,
    PreferredElection,
    partition_replicas,
)
from regent.core.controller.election.partition_change import change_partition
from regent.core.controller.events import AutoPreferredReplicaLeaderElection, ElectionTrigger
from regent.core.controller.partition_state_machine import PartitionStateMachine
from regent.core.controller.services import ControllerServices
from regent.core.controller.states import PartitionState
from regent.core.errors import ApiError, BadDataError, Errors, StateChangeFailedError
from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)

_STRATEGIES: Mapping[ElectionType, ElectionStrategy] = {
    ElectionType.PREFERRED: PreferredElection(),
    # The request itself accepts the loss; the topic's configuration does not matter.
    ElectionType.UNCLEAN: OfflineElection(allow_unclean=True),
}
_NOBODY_FOUND = {
    ElectionType.PREFERRED: Errors.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


class LeaderElections:
    """Elects preferred replicas, and on request unclean leaders."""

    def __init__(self, services: ControllerServices, partitions: PartitionStateMachine) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context
        self._partitions = partitions

    def load(self) -> None:
        """At the start of a term: hold the elections that the znode requests."""
        self.on_preferred_replica_election()

    def begin_checks(self) -> None:
        """At the start of a term: schedule the first rebalance, if it is enabled."""
        settings = self._services.settings
        if settings.auto_leader_rebalance_enable:
            self._schedule_rebalance(settings.first_leader_imbalance_check_ms)

    def elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Hold the elections and answer for each partition. Raises ``ControllerMovedError``.

        Without ``request.partitions`` all partitions are meant, and the answer leaves out those
        that need no election.
        """
        if request.election_type not in _STRATEGIES:
            return ElectLeadersResponse.of({}, ApiError(Errors.INVALID_REQUEST))
        named = request.partitions
        partitions = sorted(self._context.all_partitions()) if named is None else named
        results = self._elect(
            partitions,
            ElectionType(request.election_type),
            ElectionTrigger.ADMIN_CLIENT_TRIGGERED,
        )
        if named is None:
            unneeded = Errors.ELECTION_NOT_NEEDED
            results = {p: r for p, r in results.items() if r.error_code is not unneeded}
        leaders = {p: self._leader(p) for p, r in results.items() if r.error_code is Errors.NONE}
        return ElectLeadersResponse.of(results, leaders=leaders)

    def on_preferred_replica_election(self) -> None:
        """Hold the elections that the znode requests, once, and delete it in any case.

        The deletion fires the watch that the read set, so this runs again: it finds a node written
        since, and sets the watch for the next one (KAFKA-6146).
        """
        requested = self._services.store.read_preferred_elections()
        if requested is None:
            return
        if isinstance(requested, BadDataError):
            self._log.error(
                "preferred elections requested through ZooKeeper are dropped: %s", requested
            )
        else:
            self._elect(requested, ElectionType.PREFERRED, ElectionTrigger.ZK_TRIGGERED)
        self._services.store.delete_preferred_elections(self._context.epoch_zk_version)

    def rebalance(self) -> None:
        """Elect preferred replicas of brokers that lead too few; schedule the next rebalance."""
        # First: this must not be the last rebalance of the term if it fails.
        self.check_later(self._context.epoch)
        if self._context.preferred_replica_imbalance_count == 0:
            return
        movable = [
            topic_partition
            for partitions in self._imbalanced_brokers().values()
            for topic_partition in partitions
            if self._can_be_given_back(topic_partition)
        ]
        self._elect(movable, ElectionType.PREFERRED, ElectionTrigger.AUTO_TRIGGERED)

    # --- elections ---

    def _elect(
        self,
        partitions: Iterable[TopicPartition],
        election_type: ElectionType,
        trigger: ElectionTrigger,
    ) -> dict[TopicPartition, ApiError]:
        """Elect where possible and needed; return the result of each partition, in their order."""
        refusals = {p: self._refusal(p, election_type) for p in partitions}
        electable = [p for p, refusal in refusals.items() if refusal is None]
        if refusals:
            started = (
                "replica leader election (%s) for %d of %d partitions triggered by %s",
                election_type.name,
                len(electable),
                len(refusals),
                trigger,
            )
            self._log.info(*started)
            self._services.outbox.note(*started)
        failures = self._partitions.handle_state_changes(
            electable, PartitionState.ONLINE, _STRATEGIES[election_type]
        )
        results: dict[TopicPartition, ApiError] = {}
        for topic_partition, refusal in refusals.items():
            failure = failures.get(topic_partition) or self._other_leader(
                topic_partition, election_type
            )
            if refusal is None and failure is not None:
                refusal = ApiError(_NOBODY_FOUND[election_type], str(failure))
            results[topic_partition] = refusal or NO_ERROR
        if trigger is not ElectionTrigger.ADMIN_CLIENT_TRIGGERED:
            self._log_failures(list(results.values()), election_type, trigger)
        return results

    def _log_failures(
        self,
        results: Sequence[ApiError],
        election_type: ElectionType,
        trigger: ElectionTrigger,
    ) -> None:
        done = (Errors.NONE, Errors.ELECTION_NOT_NEEDED)
        failed = [result for result in results if result.error_code not in done]
        if failed:
            self._log.warning(
                "%d of %d replica leader elections (%s) triggered by %s failed, the first: %s",
                len(failed),
                len(results),
                election_type.name,
                trigger,
                failed[0].message,
            )

    def _other_leader(
        self, topic_partition: TopicPartition, election_type: ElectionType
    ) -> StateChangeFailedError | None:
        """Return an error if a preferred election of a new partition gave it another leader.

        Every kind of election gives a new partition its first replica that is online.
        """
        leader = self._leader(topic_partition)
        if election_type is not ElectionType.PREFERRED or self._is_preferred(
            leader, topic_partition
        ):
            return None
        return StateChangeFailedError(
            f"{topic_partition}: broker {leader} is its first leader, because the preferred replica"
            " is not online"
        )

    def _refusal(
        self, topic_partition: TopicPartition, election_type: ElectionType
    ) -> ApiError | None:
        """Return why there is no election; None when there is one."""
        replicas = self._context.partition_replica_assignment(topic_partition)
        leader = self._leader(topic_partition)
        if election_type is ElectionType.PREFERRED:
            is_well_led = self._is_preferred(leader, topic_partition)
        else:
            is_well_led = self._context.is_replica_online(leader, topic_partition)
        if not replicas:
            error, message = Errors.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
        elif self._context.is_topic_queued_for_deletion(topic_partition.topic):
            error, message = Errors.INVALID_TOPIC_EXCEPTION, "its topic is being deleted"
        elif is_well_led:
            error, message = Errors.ELECTION_NOT_NEEDED, f"broker {leader} leads already"
        else:
            return None
        return ApiError(error, f"{topic_partition}: {message}")

    def _is_preferred(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        return self._context.partition_replica_assignment(topic_partition)[:1] == (broker_id,)

    def _leader(self, topic_partition: TopicPartition) -> BrokerId:
        leadership = self._context.partition_leadership_info(topic_partition)
        return NO_LEADER if leadership is None else leadership.leader_and_isr.leader

    # --- rebalancing ---

    def _imbalanced_brokers(self) -> dict[BrokerId, list[TopicPartition]]:
        """Return, for each broker that leads too few, the partitions that others lead instead."""
        preferred: Counter[BrokerId] = Counter()
        led_by_others: dict[BrokerId, list[TopicPartition]] = {}
        for topic_partition in self._context.all_partitions():
            replicas = self._context.partition_replica_assignment(topic_partition)
            if not replicas or self._context.is_topic_queued_for_deletion(topic_partition.topic):
                continue
            preferred[replicas[0]] += 1
            leadership = self._context.partition_leadership_info(topic_partition)
            if leadership is not None and leadership.leader_and_isr.leader != replicas[0]:
                led_by_others.setdefault(replicas[0], []).append(topic_partition)
        allowed = self._services.settings.leader_imbalance_per_broker_percentage
        return {
            broker_id: partitions
            for broker_id, partitions in sorted(led_by_others.items())
            if len(partitions) * 100 > allowed * preferred[broker_id]
        }

    def _can_be_given_back(self, topic_partition: TopicPartition) -> bool:
        """Whether a preferred election would succeed now (KAFKA-9866).

        A replica that is being added does not lead before the reassignment is complete: it may
        still be cancelled or superseded (KAFKA-14808). Other reassignments are no obstacle
        (KAFKA-10149).
        """
        leadership = self._context.partition_leadership_info(topic_partition)
        assert leadership is not None, "another replica leads it"
        replicas = partition_replicas(self._context, topic_partition)
        change = change_partition(leadership.leader_and_isr, replicas, PreferredElection())
        return (
            isinstance(change, PartitionChange)
            and change.leader_and_isr.leader not in replicas.assignment.adding_replicas
        )

    def check_later(self, controller_epoch: int) -> None:
        """Schedule the next rebalance, unless ``controller_epoch`` is of an earlier term."""
        if controller_epoch == self._context.epoch:
            interval_s = self._services.settings.leader_imbalance_check_interval_seconds
            self._schedule_rebalance(interval_s * 1000)

    def _schedule_rebalance(self, after_ms: int) -> None:
        event = AutoPreferredReplicaLeaderElection(self._context.epoch)
        self._services.schedule(after_ms, event)
