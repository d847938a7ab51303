"""Limit the time until all partitions have leaders without faults, and the epochs used for it.

Without limits, a cluster that elects many controllers, or moves leaderships back and forth, would
pass if it came to rest at some time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from regent.core.controller import events
from regent.core.controller.controller import MAX_RESIGNATION_BACKOFF_MS
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
)
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.simulation.cluster import Cluster
from tests.simulation.fetchers import FETCH_INTERVAL_MS
from tests.simulation.leadership_history import LeadershipHistory

# Nothing that is awaited is lost. A leader may be known to be sound only after SUSPECTS_DELAY_MS.
MAX_ELECTION_MS = 2 * FETCH_INTERVAL_MS
MAX_CONTROLLERS = 3  # the next may have lost events
CONTROLLERS = "controllers"
MAX_EPOCHS_OF_A_MOVE = 5  # the start, a new leader, up to three removals


class Bounds:
    """Measures a cluster without faults; raises ``AssertionError``."""

    def __init__(self, cluster: Cluster, history: LeadershipHistory) -> None:
        self._cluster = cluster
        self._history = history
        self._began_ms: int | None = None  # None: not measuring
        self._before: Mapping[str, int] = {}
        self._moves: Counter[str] = Counter()  # requested moves of each partition
        self._may_take_ms = MAX_ELECTION_MS
        self._max_controllers = MAX_CONTROLLERS
        self._active_ms = 0  # when a controller was last seen active

    def begin(self) -> None:
        """Start to measure."""
        self._began_ms = self._cluster.now_ms
        self._before = self.epochs()
        self._moves = self._moves_asked_for()
        all_back_off = self._cluster.is_backing_off
        self._may_take_ms = MAX_RESIGNATION_BACKOFF_MS if all_back_off else MAX_ELECTION_MS
        # A controller reads again what it was denied; nothing tells it that it may now.
        self._may_take_ms += max(
            (
                active.settings.tell_again_ms
                for active in self._cluster.active_controllers
                if active.controller.context.must_read_again
            ),
            default=0,
        )
        self._max_controllers = max(MAX_CONTROLLERS, 1 + self._refusals())

    def look(self) -> None:
        """Check, while time passes, that a controller is active and all partitions have leaders."""
        began_ms, now_ms = self._began_ms, self._cluster.now_ms
        if began_ms is None:
            return
        if any(map(self._history.is_active_controller, self._cluster.active_controllers)):
            self._active_ms = now_ms
        if now_ms - began_ms < self._may_take_ms:
            return
        # A controller finds a changed epoch at its next write, at any time, and then resigns.
        since_ms = self._active_ms if self._history.is_epoch_tampered_with else began_ms
        assert self._active_ms == now_ms or now_ms - since_ms < self._may_take_ms, (
            "ElectionIsBounded: no active controller yet"
        )
        unled = self._unled()
        assert not unled, f"ElectionIsBounded: no leader for {unled}"

    def check(self, max_leader_epochs: int) -> None:
        """Check the number of epochs since the start, and stop to measure."""
        self._began_ms = None
        now = self.epochs()
        used = {key: now[key] - self._before.get(key, now[key]) for key in now}
        controllers = used.pop(CONTROLLERS)
        assert controllers <= self._max_controllers, f"EpochsAreBounded: {controllers} controllers"
        beyond = {key: n - MAX_EPOCHS_OF_A_MOVE * self._moves[key] for key, n in used.items()}
        worst = max(beyond, key=lambda key: beyond[key], default="")
        assert not used or beyond[worst] <= max_leader_epochs, (
            f"EpochsAreBounded: {used[worst]} leader epochs of {worst}"
        )

    def epochs(self) -> dict[str, int]:
        """Return the number of controller elections and the leader epochs of all partitions."""
        history = self._history
        history.check()
        of_partitions = {
            self._key(topic_partition): now.leader_epoch
            for topic_partition, now in history.current.items()
        }
        return {CONTROLLERS: history.elections, **of_partitions}

    def _refusals(self) -> int:
        """Return how many controllers brokers may refuse after the epoch was set back.

        A refused controller raises its epoch above that of the broker. Another broker may have
        accepted an even higher one.
        """
        accepted = {b.replica_manager.controller_epoch for b in self._cluster.brokers.values()}
        return len(accepted) if self._history.is_epoch_tampered_with else 0

    def _key(self, topic_partition: TopicPartition) -> str:
        return f"{topic_partition} {self._history.topic_id(topic_partition.topic)}"

    def _moves_asked_for(self) -> Counter[str]:
        """Return the number of unhandled requests to move each partition."""
        cluster = self._cluster
        packets, brokers = cluster.network.packets.values(), cluster.brokers.values()
        under_way = [packet.exchange.request for packet in packets if packet.answer is None]
        queued = [
            event.request
            for broker in brokers
            for event in broker.inbox
            if isinstance(event, events.ApiPartitionReassignment)
        ]
        return Counter(
            self._key(topic_partition)
            for request in (*under_way, *queued)
            if isinstance(request, AlterPartitionReassignmentsRequest)
            for topic_partition in request.targets
        )

    def _unled(self) -> list[TopicPartition]:
        """Return the partitions without a live leader although a member of the ISR could lead."""
        return [
            topic_partition
            for topic_partition, now in self._history.current.items()
            if now.leader not in self._cluster.brokers
            and any(self._could_lead(member, topic_partition) for member in now.isr)
            and self._cluster.zookeeper.node(DeleteTopicsTopicZNode.path(topic_partition.topic))
            is None
        ]

    def _could_lead(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        if broker_id not in self._cluster.brokers or self._is_leaving(broker_id):
            return False
        disk = self._cluster.disks[broker_id]
        return (
            disk.get(topic_partition) is not None
            and disk.suspects().end_of(topic_partition) is None
            and not self._is_still_listed(broker_id, topic_partition)
        )

    def _is_still_listed(self, broker_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether a replica is sound now, but the controller could not read that yet.

        Its broker has not had time to list it as sound, or the controller's server of ZooKeeper
        lags. The controller waits for that list if it did not check with which broker epoch the
        replica joined the ISR: the leader, or an earlier controller, wrote the ISR.
        """
        is_about_to_list = self._cluster.brokers[broker_id].is_about_to_list_suspects
        is_behind = self._cluster.zookeeper.is_behind
        return any(
            r.controller.context.suspect_end(broker_id, topic_partition) is not None
            and (is_about_to_list or is_behind(r.session.session_id))
            for r in self._cluster.active_controllers
        )

    def _is_leaving(self, broker_id: BrokerId) -> bool:
        """Whether it asked to shut down: it gets no partitions until it is known to stay."""
        active = self._cluster.active_controllers
        return any(broker_id in r.controller.context.shutting_down_broker_ids for r in active)
