"""Znodes that brokers may not read or write for a while, as if an admin had changed their ACLs."""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.controller.events import LookAgain
from regent.core.model import BrokerId
from regent.zk.znodes import (
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicsZNode,
    TopicZNode,
    partition_of_state,
)
from tests.simulation.cluster import Cluster
from tests.simulation.leadership_history import LeadershipHistory
from tests.simulation.situations import Situation, Situations

DENIAL_PROBABILITY = 0.12  # of a history
ACTION_PROBABILITY = 0.05
MAX_DENIED = 3
LONGEST_MS = 15_000
READING_SHARE = 0.4
BOUNCE_PROBABILITY = 0.4  # of a leader whose partition's state has just been denied
STATE, LISTS, TOPIC, TOPICS = range(4)
WEIGHTS = (8, 2, 2, 1)


class Denials:
    """Denies access to state znodes, their parents, topic znodes and the list of topics.

    It has random numbers of its own: histories without it do not change.
    """

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        history: LeadershipHistory,
        situations: Situations,
        note: Callable[..., None],
        bounce: Callable[[BrokerId], None],
        *,
        keeps_controllers: bool,
    ) -> None:
        self._random = random.Random(f"{seed}, denied")
        self._is_on = self._random.random() < DENIAL_PROBABILITY
        self._cluster = cluster
        self._zookeeper = cluster.zookeeper
        self._history = history
        self._situations = situations
        self._note = note
        self._bounce = bounce  # restarts a broker, whose machine loses power
        self._keeps_controllers = (
            keeps_controllers  # no controller ends: each must notice all changes
        )
        self._until_ms: dict[str, int] = {}

    def act(self) -> None:
        """Sometimes deny access, and end denials that lasted long enough."""
        for path in [
            p for p, until_ms in self._until_ms.items() if until_ms <= self._cluster.now_ms
        ]:
            self._allow(path)
        is_due = self._is_on and self._random.random() < ACTION_PROBABILITY
        if is_due and len(self._until_ms) < MAX_DENIED:
            self._deny()

    def allow_all(self) -> None:
        """End all denials."""
        for path in tuple(self._until_ms):
            self._allow(path)

    def _deny(self) -> None:
        path = self._pick()
        if path is None or path in self._until_ms:
            return
        is_topic = path.rpartition("/")[0] == TopicsZNode.PATH
        is_read = self._random.random() < READING_SHARE and not (
            is_topic and self._keeps_controllers
        )
        self._until_ms[path] = self._cluster.now_ms + self._random.randrange(LONGEST_MS)
        self._note("%s of %s are denied", "reads" if is_read else "writes", path)
        (self._zookeeper.deny if is_read else self._zookeeper.deny_writing)(path)
        self._situations.meet(Situation.READING_DENIED if is_read else Situation.WRITING_DENIED)
        partition = partition_of_state(path)
        if partition is not None and self._random.random() < BOUNCE_PROBABILITY:
            self._bounce(self._history.current[partition].leader)

    def _pick(self) -> str | None:
        (kind,) = self._random.choices((STATE, LISTS, TOPIC, TOPICS), WEIGHTS)
        topics = self._zookeeper.children_of(TopicsZNode.PATH)
        led = sorted(self._history.current)
        paths = {
            STATE: list(map(TopicPartitionStateZNode.path, led)),
            LISTS: [TopicPartitionsZNode.path(topic) for topic in topics],
            TOPIC: [TopicZNode.path(topic) for topic in topics],
            TOPICS: [TopicsZNode.PATH],
        }[kind]
        paths = [path for path in paths if self._zookeeper.node(path) is not None]
        return self._random.choice(paths) if paths else None

    def _allow(self, path: str) -> None:
        """End the denial of a znode; brokers notice that lists can be read."""
        del self._until_ms[path]
        self._note("nothing of %s is denied", path)
        has_missed = path in self._zookeeper.paths_with_lost_events
        self._zookeeper.allow(path)
        if path == TopicsZNode.PATH:
            for broker in self._cluster.brokers.values():
                broker.tell(LookAgain())
        elif has_missed and path.rpartition("/")[0] == TopicsZNode.PATH:
            # Its watch fired while reads were denied: the next controller reads it.
            self._zookeeper.remove(ControllerZNode.PATH)
