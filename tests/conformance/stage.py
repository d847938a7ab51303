"""A simulated cluster for scenarios: brokers by name, and conditions that become true in time.

``C`` is the first active controller, the others are named in the sequence of their start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from regent.core.controller.context import ControllerContext
from regent.core.errors import ControllerMovedError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.codecs.topic_znodes import TopicZNodeData
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import BrokerIdZNode, TopicZNode
from tests.conformance.fields import Fields, UnknownInCaseError
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster, short_settings
from tests.simulation.fetchers import FETCH_INTERVAL_MS
from tests.support.fake_zookeeper import FakeZooKeeper

TIMEOUT_MS = 120_000
MAX_STEPS = 20_000
_CONTROLLER_LOG = logging.getLogger("regent.core.controller.controller")


class MovedLog(logging.Handler):
    """Stores whether the controller logged that another one is active."""

    def __init__(self) -> None:
        super().__init__()
        self.has_moved = False

    def emit(self, record: logging.LogRecord) -> None:
        """Look for the error."""
        arguments = record.args if isinstance(record.args, tuple) else ()
        self.has_moved |= any(isinstance(a, ControllerMovedError) for a in arguments)

    def __enter__(self) -> Self:
        self._level = _CONTROLLER_LOG.level
        _CONTROLLER_LOG.setLevel(logging.INFO)
        _CONTROLLER_LOG.addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _CONTROLLER_LOG.removeHandler(self)
        _CONTROLLER_LOG.setLevel(self._level)


class Stage:
    """Brokers of a case, started by a step, or before the first one."""

    def __init__(
        self, brokers: list[Any], config: Fields, log: MovedLog, *, starts_itself: bool
    ) -> None:
        if len({type(name) for name in brokers}) > 1:
            raise UnknownInCaseError(f"brokers {brokers}")
        self.ids: dict[Any, BrokerId] = {
            name: name if isinstance(name, int) else number for number, name in enumerate(brokers)
        }
        self.start_order = [self.ids[name] for name in config.take("start_order", brokers)]
        self.uses_controlled_shutdown: bool = config.take("controlled.shutdown.enable", True)
        settings = replace(
            short_settings(),
            auto_leader_rebalance_enable=config.take("auto.leader.rebalance.enable", False),
            unclean_leader_election_enable=config.take("unclean.leader.election.enable", False),
            delete_topic_enable=config.take("delete.topic.enable", True),
            controlled_shutdown_abandoned_ms=300_000,
        )
        if config.take("log_dirs", 2) not in (1, 2):  # there are always two
            raise UnknownInCaseError("more than two log directories")
        config.take("note", None)
        self.cluster = Cluster([], lambda: replace(settings))
        self.admin = ZkAdminStore(FakeZooKeeper(self.cluster.zookeeper))
        self.log = log
        self.first: BrokerId | None = None
        self.names: dict[str, Any] = {}  # bound by steps
        self.topics: list[str] = []
        if not starts_itself:
            self.start_all()

    # --- names ---

    def broker(self, name: Any) -> BrokerId:
        """Return the broker with that name."""
        if isinstance(name, str):
            name = self.names.get(name, name)
        if isinstance(name, int) and not isinstance(name, bool):
            return name
        if name in self.ids:
            return self.ids[name]
        if name == "controller":
            return self.controller.broker_id
        if name == "C" and self.first is not None:
            return self.first
        if name == "O":
            return next(b for b in self.ids.values() if b != self.first)
        raise UnknownInCaseError(f"broker {name!r}")

    def brokers(self, names: Iterable[Any]) -> list[BrokerId]:
        """Return brokers by name; -1 stays -1."""
        return [name if name == -1 else self.broker(name) for name in names]

    @property
    def controller(self) -> SimulatedBroker:
        """The active controller."""
        (active,) = self.cluster.active_controllers
        return active

    @property
    def context(self) -> ControllerContext:
        """The controller's context."""
        return self.controller.controller.context

    # --- time ---

    def go_on(self) -> None:
        """Take one step of the cluster."""
        steps = self.cluster.steps()
        if steps:
            self.cluster.take(steps[0])
        else:
            self.cluster.time.advance(FETCH_INTERVAL_MS)

    def eventually(self, what: str, condition: Callable[[], bool]) -> None:
        """Run until ``condition`` holds; it must hold within the usual timeout."""
        until_ms = self.cluster.now_ms + TIMEOUT_MS
        for _ in range(MAX_STEPS):
            if condition():
                return
            assert self.cluster.now_ms < until_ms, f"this did not happen: {what}"
            self.go_on()
        raise AssertionError(f"{what}: still busy after {MAX_STEPS} steps")

    def go_on_for(self, ms: int) -> None:
        """Let this much time pass."""
        until_ms = self.cluster.now_ms + ms
        while self.cluster.now_ms < until_ms:
            self.go_on()

    def settle(self) -> None:
        """Run until the cluster is at rest."""
        self.cluster.run_until_quiet()

    # --- processes ---

    def start_all(self) -> None:
        """Start every broker; the first one is elected before the second one starts."""
        for broker_id in self.start_order:
            self.start(broker_id)
            if self.first is None:
                self.first = broker_id
                self.eventually("a controller", lambda: bool(self.cluster.active_controllers))
        self.settle()

    def start(self, broker_id: BrokerId) -> None:
        """Start a broker; return when it is registered."""
        broker = self.cluster.start(broker_id)
        self.eventually(f"broker {broker_id} is registered", lambda: broker.broker_epoch > 0)

    def shut_down(self, broker_id: BrokerId, mode: str | None) -> None:
        """Stop a broker, controlled or hard; return when process and session are gone."""
        if mode not in (None, "controlled", "hard"):
            raise UnknownInCaseError(f"mode {mode!r}")
        if mode == "hard" or (mode is None and not self.uses_controlled_shutdown):
            session_id = self.cluster.brokers[broker_id].session.session_id
            self.cluster.kill(broker_id)
            self.cluster.expire(session_id)
        else:
            self.cluster.shut_down(broker_id)
            gone = f"broker {broker_id} has stopped"
            self.eventually(gone, lambda: broker_id not in self.cluster.brokers)

    def hold_events(self) -> None:
        """Keep the controller from handling events."""
        self.cluster.in_call.add(self.controller.broker_id)

    def release_events(self) -> None:
        """Let the controller handle events again."""
        self.cluster.in_call.clear()

    # --- ZooKeeper ---

    @property
    def nodes(self) -> Mapping[str, Any]:
        """Every znode by path."""
        return self.cluster.zookeeper.snapshot()

    def is_registered(self, broker_id: BrokerId) -> bool:
        """Whether a broker is registered."""
        return BrokerIdZNode.path(broker_id) in self.nodes

    def topic(self, topic: str) -> TopicZNodeData | None:
        """Return the content of a topic's znode."""
        node = self.nodes.get(TopicZNode.path(topic))
        return None if node is None else TopicZNode.decode(node.data)

    def leads(self, topic_partition: TopicPartition) -> tuple[BrokerId, int] | None:
        """Return leader and leader epoch in ZooKeeper."""
        if self.cluster.state(topic_partition) is None:
            return None
        leader, _, leader_epoch = self.cluster.leads(topic_partition)
        return leader, leader_epoch

    def isr(self, topic_partition: TopicPartition) -> list[BrokerId]:
        """Return the ISR in ZooKeeper, sorted."""
        stored = self.cluster.state(topic_partition)
        return [] if stored is None else sorted(stored.leader_and_isr.isr)
