"""Check what brokers accept of control requests: only states that ZooKeeper had (S4)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, NO_LEADER, BrokerId, TopicPartition
from regent.core.protocol.control import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.replication.partition import Role
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.configurations import assert_throttled
from tests.simulation.leadership_history import Belief, LeadershipHistory
from tests.simulation.network import Exchange
from tests.simulation.situations import Situation, Situations

_DEPOSED: dict[type, Situation] = {
    LeaderAndIsrRequest: Situation.DEPOSED_LEADER_AND_ISR,
    StopReplicaRequest: Situation.DEPOSED_STOP_REPLICA,
    UpdateMetadataRequest: Situation.DEPOSED_UPDATE_METADATA,
}
FIRST_METADATA_WITH_IDS = 7


class HandledRequests:
    """Checks every broker that receives a control request; raises ``AssertionError``."""

    def __init__(
        self, cluster: Cluster, history: LeadershipHistory, situations: Situations
    ) -> None:
        self._cluster = cluster
        self._situations = situations
        # The controller epoch and the sequence, of UpdateMetadata and of the other requests.
        self._sequences: dict[tuple[SimulatedBroker, bool], tuple[int, int]] = {}
        self._rows_known: dict[tuple[SimulatedBroker, TopicPartition, str | None], tuple[int, int]]
        self._rows_known = {}
        self._history = history
        self._controller_epochs: dict[BrokerId, int] = {}  # the highest, over restarts
        self._controllers: dict[tuple[SimulatedBroker, int], BrokerId] = {}  # by controller epoch
        self._last_requests: dict[SimulatedBroker, tuple[Exchange, bool, int]] = {}
        self._leader_epochs: dict[tuple[SimulatedBroker, TopicPartition, str | None], int] = {}
        self._snapshots: dict[SimulatedBroker, MetadataSnapshot] = {}

    def on_directory_lost(self, broker_id: BrokerId) -> None:
        """A broker starts without a directory that may have noted the highest controller epoch."""
        if broker_id in self._controller_epochs:
            noted = self._cluster.disks[broker_id].seen.controller_epoch
            self._controller_epochs[broker_id] = min(self._controller_epochs[broker_id], noted)

    def handle_control_request(
        self, broker: SimulatedBroker, exchange: Exchange
    ) -> ControlResponse | ControlRequestRefusedError:
        """Let a broker handle a control request, and compare the result with the expected one."""
        self._history.check()
        must_not_change = self._is_stale(broker, exchange)
        # A copy may do what its first could not: a damaged log is replaced once it is listed.
        received = exchange, broker.disk.has_failed, broker.suspect_listings
        if self._last_requests.get(broker) == received:
            must_not_change = "the same request twice"
        is_throttled = assert_throttled(self._cluster, broker, exchange.request)
        self._situations.meet_if(is_throttled, Situation.COPIED_UNDER_THROTTLE)
        before = _state(broker)
        expected = _Expected.of(broker, exchange)
        was_complete = broker.cache.snapshot.is_complete
        answer = broker.handle_control_request(exchange)
        if not was_complete:
            self._check_knowledge(broker, exchange.request)
        if isinstance(answer, ControlRequestRefusedError):
            must_not_change = must_not_change or "a request that it refused"
        if must_not_change:
            is_refused = answer.error_code is not Errors.NONE
            is_refused |= must_not_change == "the same request twice"
            assert is_refused, f"broker {broker.broker_id} applied {must_not_change}: {exchange}"
            assert _state(broker) == before, (
                f"broker {broker.broker_id} applied {must_not_change}: {exchange.header}"
                f" {exchange.request}"
            )
        else:
            assert not isinstance(answer, ControlRequestRefusedError)
            expected.check(answer, self._situations)
            assert exchange.header is not None
            self._note_sequence(broker, exchange)
            epoch = exchange.header.controller_epoch
            self._controller_epochs[broker.broker_id] = epoch
            self._controllers[broker, epoch] = exchange.header.controller_id
        if not isinstance(answer, ControlRequestRefusedError):
            self._last_requests[broker] = received
        assert isinstance(exchange.request, ControlRequest)
        self._check_replicas(broker, exchange.request)
        self._check_fetched(broker)
        self._check_cache(broker)
        return answer

    def check_broker_of_kafka(self, broker: SimulatedBroker, request: ControlRequest) -> None:
        """Check a broker of Kafka that has handled a request: it believes what ZooKeeper had."""
        self._history.check()
        self._check_replicas(broker, request)
        self._check_fetched(broker)
        self._check_cache(broker)

    def _is_stale(self, broker: SimulatedBroker, exchange: Exchange) -> str:
        header = exchange.header
        assert header is not None
        if header.broker_id != broker.broker_id:
            self._situations.meet(Situation.FOR_ANOTHER_BROKER)
            return "a request for another broker"
        if (header.controller_id, header.controller_epoch) not in self._history.elected:
            self._situations.meet(Situation.OF_NO_CONTROLLER)
            return "a request of nobody who was ever elected"
        # Its registration may be in ZooKeeper, and its process may have read that, while the answer
        # to the registration is still under way.
        if header.broker_epoch < max(broker.broker_epoch, broker.replica_manager.broker_epoch):
            self._situations.meet(Situation.FORMER_BROKER_EPOCH)
            return "a request for a former broker epoch"
        if header.controller_epoch < self._controller_epochs.get(broker.broker_id, 0):
            self._situations.meet(_DEPOSED[type(exchange.request)])
            return "a request of a deposed controller"
        accepted = self._controllers.get((broker, header.controller_epoch), header.controller_id)
        if accepted != header.controller_id:
            self._situations.meet(Situation.TWO_CONTROLLERS_IN_ONE_EPOCH)
            return "a request of a second controller with the same epoch"
        kind = broker, isinstance(exchange.request, UpdateMetadataRequest)
        newest = self._sequences.get(kind, (0, 0))
        if (header.controller_epoch, header.sequence) < newest:
            self._situations.meet(Situation.LATE_COPY)
            return "a late copy of a request"
        return ""

    def _note_sequence(self, broker: SimulatedBroker, exchange: Exchange) -> None:
        assert exchange.header is not None
        kind = broker, isinstance(exchange.request, UpdateMetadataRequest)
        self._sequences[kind] = exchange.header.controller_epoch, exchange.header.sequence

    def _check_replicas(self, broker: SimulatedBroker, request: ControlRequest) -> None:
        named = {name for name, _ in request.partitions()}
        for name, partition in broker.replica_manager.partitions.items():
            if name not in named or partition.leader_epoch < 0:
                continue
            where = f"broker {broker.broker_id} has {partition}"
            key = (broker, name, partition.topic_id)
            assert partition.leader_epoch >= self._leader_epochs.get(key, -1), (
                f"an old leader epoch was applied, {where}"
            )
            self._leader_epochs[key] = partition.leader_epoch
            if partition.role is Role.LEADER:
                assert partition.leader == broker.broker_id, f"LeadsForAnother, {where}"
            led = (name, partition.leader, partition.leader_epoch)
            is_held = led in self._history.ever_led or (
                partition.leader == NO_LEADER
                and self._history.may_be_withheld(name, partition.leader_epoch)
            )
            assert is_held, f"a state that ZooKeeper never had, {where}"

    def _check_fetched(self, broker: SimulatedBroker) -> None:
        """A replica that is not a follower does not fetch."""
        manager = broker.replica_manager
        for name, leader in manager._fetcher._leaders.items():
            partition = manager.partitions.get(name)
            follows = partition is not None and partition.role is Role.FOLLOWER
            is_right = follows and partition is not None and partition.leader == leader
            assert is_right, f"broker {broker.broker_id} fetches {name} of {leader}: {partition}"

    def _check_knowledge(self, broker: SimulatedBroker, request: object) -> None:
        """A broker that was not told of all partitions says of none that it does not exist.

        That is what clients hear which ask a broker as soon as it has started.
        """
        if broker.cache.snapshot.is_complete:
            is_told = isinstance(request, UpdateMetadataRequest) and request.lists_all
            assert is_told, f"broker {broker.broker_id} believes to know all after {request}"
            return
        for name in self._history.ever_held:
            found = broker.replica_manager.active_producers(name)
            assert found is not Errors.UNKNOWN_TOPIC_OR_PARTITION, (
                f"broker {broker.broker_id} says that {name} does not exist: it cannot know"
            )

    def _check_cache(self, broker: SimulatedBroker) -> None:
        snapshot = broker.cache.snapshot
        before = self._snapshots.get(broker)
        if before is snapshot:
            return
        self._snapshots[broker] = snapshot
        rows = snapshot.partitions
        for name, row in rows.items():
            topic_id = snapshot.topic_ids.get(name.topic)
            if topic_id is None and broker.release.update_metadata < FIRST_METADATA_WITH_IDS:
                continue  # it cannot tell a topic from an earlier one of the same name
            key = (broker, name, topic_id)
            epochs = row.leader_epoch, row.partition_epoch
            known = self._rows_known.get(key, epochs)
            is_unreadable = (row.leader, *epochs) == (NO_LEADER, NO_EPOCH, NO_EPOCH)
            # A deletion that begins and is withdrawn removes the rows that were newer.
            is_replaced = before is None or before.partitions.get(name, row) != row
            assert known <= epochs or (is_unreadable and not is_replaced), (
                f"broker {broker.broker_id} goes back to an older state, {name}: {row}"
            )
            self._rows_known[key] = max(known, epochs)
            belief = Belief(row.leader, row.leader_epoch, row.isr, row.partition_epoch)
            is_held = belief in self._history.ever_held.get(name, ()) or (
                row.leader == NO_LEADER and self._history.may_be_withheld(name, row.leader_epoch)
            )
            assert is_held or is_unreadable, (
                f"broker {broker.broker_id} has a state that ZooKeeper never had, {name}: {row}"
            )


def _state(broker: SimulatedBroker) -> Hashable:
    snapshot = broker.cache.snapshot
    return (
        tuple(
            (name, p.topic_id, p.role, p.leader, p.leader_epoch, p.partition_epoch, p.isr)
            for name, p in sorted(broker.replica_manager.partitions.items())
        ),
        tuple(sorted(broker.disk.hosted())),
        tuple(sorted(snapshot.partitions.items())),
        tuple(sorted(snapshot.brokers)),
    )


class _Before(NamedTuple):
    """A replica before a control request."""

    topic_id: str | None
    role: Role
    leader_epoch: int


class _Expected:
    """The expected effect of each row of a control request that is not stale."""

    def __init__(self, broker: SimulatedBroker, request: object) -> None:
        self._broker = broker
        self._request = request
        self._before = {
            name: _Before(p.topic_id, p.role, p.leader_epoch)
            for name, p in broker.replica_manager.partitions.items()
        }
        self._logs = dict(broker.disk.hosted())

    @classmethod
    def of(cls, broker: SimulatedBroker, exchange: Exchange) -> _Expected:
        """Store the state of a broker before it handles a request."""
        return cls(broker, exchange.request)

    def check(self, answer: ControlResponse, situations: Situations) -> None:
        """Compare with the state afterwards; raises ``AssertionError``."""
        request = self._request
        if isinstance(request, LeaderAndIsrRequest) and isinstance(answer, LeaderAndIsrResponse):
            errors = {e.topic_partition: e.error_code for e in answer.partition_errors}
            listed = {name for name, _ in request.partitions()}
            is_full = request.type is LeaderAndIsrType.FULL
            situations.meet_if(is_full and self._logs.keys() - listed, Situation.STRAYS)
            for topic in request.topic_states:
                for state in topic.partition_states:
                    name = TopicPartition(topic.topic_name, state.partition_index)
                    self._check_led(name, topic.topic_id, state, errors.get(name), situations)
        elif isinstance(request, StopReplicaRequest) and isinstance(answer, StopReplicaResponse):
            errors = {e.topic_partition: e.error_code for e in answer.partition_errors}
            for stopped in request.topic_states:
                for stop in stopped.partition_states:
                    name = TopicPartition(stopped.topic_name, stop.partition_index)
                    self._check_stopped(name, stopped.topic_id, stop, errors.get(name), situations)

    def _check_led(
        self,
        name: TopicPartition,
        topic_id: str | None,
        state: LeaderAndIsrPartition,
        error: Errors | None,
        situations: Situations,
    ) -> None:
        before = self._before.get(name)
        where = f"broker {self._broker.broker_id}: {name}: {error} for {state}, was {before}"
        assert error is not None, f"NotAnswered: {where}"
        now = self._broker.replica_manager.partitions.get(name)
        if before is not None and _are_different(before.topic_id, topic_id):
            situations.meet(Situation.OTHER_TOPIC_ID)
        elif before is not None and state.leader_epoch < before.leader_epoch:
            assert error is not Errors.NONE, f"OldLeaderEpochObeyed: {where}"
            assert now is None or now.leader_epoch >= before.leader_epoch, where
        if error is not Errors.NONE or now is None:
            return
        if before is not None and before.role is Role.LEADER:
            situations.meet_if(state.leader < 0, Situation.LEADER_LOSES_ITS_ROLE)
            situations.meet_if(state.leader == now.leader, Situation.LEADER_AGAIN)
        assert now.leader_epoch == state.leader_epoch, f"NotApplied: {where}, is {now}"
        assert now.leader == state.leader, f"NotApplied: {where}, is {now}"
        leads = state.leader == self._broker.broker_id
        roles = (Role.LEADER,) if leads else (Role.FOLLOWER,) if state.leader >= 0 else (Role.NONE,)
        has_failed = now.role is Role.OFFLINE  # its log is damaged
        assert now.role in roles or has_failed, f"NotApplied: {where}, is {now}"

    def _check_stopped(
        self,
        name: TopicPartition,
        topic_id: str | None,
        stop: StopReplicaPartition,
        error: Errors | None,
        situations: Situations,
    ) -> None:
        before = self._before.get(name)
        where = f"broker {self._broker.broker_id}: {name}: {error} for {stop}, was {before}"
        assert error is not None, f"NotAnswered: {where}"
        known_ids = self._logs.get(name), before and before.topic_id
        if any(_are_different(known, topic_id) for known in known_ids):
            situations.meet(Situation.OTHER_TOPIC_ID)
            assert error is not Errors.NONE, f"another topic's replica was stopped: {where}"
            return
        if error is Errors.INCONSISTENT_TOPIC_ID:
            has = self._broker.disk.hosted().get(name)
            assert _are_different(has, topic_id), f"NotStopped: {where}, has {has}"
            return
        now = self._broker.replica_manager.partitions.get(name)
        if before is not None and 0 <= stop.leader_epoch < before.leader_epoch:
            assert error is not Errors.NONE, f"OldLeaderEpochObeyed: {where}"
            assert now is not None, where
            return
        is_same = before is not None and stop.leader_epoch == before.leader_epoch
        situations.meet_if(is_same, Situation.STOP_WITH_SAME_EPOCH)
        assert error in (Errors.NONE, Errors.KAFKA_STORAGE_ERROR), f"NotStopped: {where}"
        if error is Errors.NONE:
            is_gone = now is None and name not in self._broker.disk.hosted()
            is_stopped = now is None or now.role not in (Role.FOLLOWER,)
            assert is_gone if stop.delete_partition else is_stopped, f"NotStopped: {where}"


def _are_different(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other
