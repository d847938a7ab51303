"""A request that ends each controller that handles it, until the third one quarantines it."""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.controller.events import ApiPartitionReassignment, ControllerEvent
from regent.core.model import TopicPartition
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
)
from regent.zk.znodes import ControllerFailuresZNode, DeleteTopicsTopicZNode
from tests.simulation.broker import PlantedError, SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory

POISON_PROBABILITY = 0.1  # of a history
REQUESTS = 4
MAX_ENDED = 2
PATIENCE_MS = 1_000
ELECTION_ROUNDS = 60


class Poison:
    """Repeats a request at the end of some histories; it has random numbers of its own."""

    def __init__(
        self, cluster: Cluster, seed: int, history: LeadershipHistory, note: Callable[..., None]
    ) -> None:
        self._cluster = cluster
        self._random = random.Random(f"{seed}, poison")
        self._history = history
        self._note = note
        self._is_on = False
        self._handled: ControllerEvent | None = None  # the last event that ended a controller
        self._ended = 0
        self.is_due = self._random.random() < POISON_PROBABILITY

    def act(self) -> None:
        """Check that only a few controllers end; then allow the request to be tried again."""
        names = [name for name in sorted(self._history.current) if self._is_kept(name)]
        if not names:
            return
        name = self._random.choice(names)
        assigned = self._history.assignment(name)
        if assigned is None or assigned.is_being_reassigned:
            return
        self._note("a request to move %s ends controllers", name)
        self._is_on = True
        for _ in range(REQUESTS):
            self._await_controller()
            self._cluster.request(AlterPartitionReassignmentsRequest.of({name: assigned.replicas}))
        self._await_controller()
        self._is_on = False
        self._cluster.zookeeper.remove(ControllerFailuresZNode.PATH)

    def end_controller(self, broker: SimulatedBroker) -> None:
        """End a controller that handles the request; only once, so that it can record the cause."""
        event = broker.event
        is_poison = isinstance(event, ApiPartitionReassignment) and event is not self._handled
        if self._is_on and is_poison and broker.is_handling and broker.controller.is_active:
            self._handled = event
            self._ended += 1
            assert self._ended <= MAX_ENDED, "Quarantine: the same request ends a third controller"
            self._note("  %d ends by the request", broker.broker_id)
            raise PlantedError

    def _is_kept(self, name: TopicPartition) -> bool:
        return self._cluster.zookeeper.node(DeleteTopicsTopicZNode.path(name.topic)) is None

    def _await_controller(self) -> None:
        for _ in range(ELECTION_ROUNDS):
            if any(map(self._history.is_active_controller, self._cluster.active_controllers)):
                return
            self._cluster.run_for(PATIENCE_MS)
        raise AssertionError(
            "ElectionIsBounded: no active controller after a request that ends controllers"
        )
