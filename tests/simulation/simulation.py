"""One random history: faults and admins at work on a simulated cluster, then peace.

A seed is a history: the same seed makes the same picks. While it runs, ``Invariants`` hold after
every step; when everything is healed and quiet, ``assert_converged`` holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from core.controller import events
from core.model import BrokerId
from tests.simulation.cluster import Cluster, SimulatedBroker, SimulatedCrashError
from tests.simulation.invariants import Invariants, assert_converged
from tests.support.fake_zookeeper import Call, Hook, Moment
from zk.operations import ConnectionLossError
from zk.znodes import ControllerZNode, TopicZNode

BROKERS = 4
CALL_FAULT_PROBABILITY = 0.02
STALL_STEPS = 25
MAX_NESTED_STALLS = 2
READS = ("get", "get_many", "children", "children_many")


class Simulation:
    """Picks what happens next by a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster(0)
        self.cluster.hook_for = self._hook_for
        for broker_id in range(BROKERS):
            self.cluster.start(broker_id)
        self.invariants = Invariants(self.cluster)
        self.history: list[str] = []
        self._faults_are_on = True
        self._stalls = 0
        self._topics = 0
        self._partitions: dict[str, dict[int, tuple[BrokerId, ...]]] = {}
        self._forgotten_sessions: list[int] = []  # of killed brokers, not yet expired
        self._broken: dict[str, bytes] = {}  # topics with an unreadable znode, and what it held
        self._leaving: set[SimulatedBroker] = set()  # asked to hand over: they must stop some day
        self._faults: list[Callable[[], None]] = [
            self._kill,
            self._start,
            self._start,
            self._pause,
            self._resume,
            self._resume,
            self._expire_a_session,
            self._expire_a_dead_session,
            self._cut_and_mend_a_connection,
            self._create_topic,
            self._create_topic,
            self._expand_topic,
            self._delete_controller_znode,
            self._overwrite_controller_znode,
            self._lose_an_answer,
            self._ask_for_controlled_shutdown,
            self._break_a_topic,
            self._mend_a_topic,
        ]

    def run(self, steps: int) -> None:
        """Live through ``steps`` steps with faults, then heal and converge."""
        for _ in range(steps):
            if self.random.random() < 0.12:
                self.random.choice(self._faults)()
            else:
                self._step()
            self.invariants.check()
        self._heal()
        self.cluster.run_until_quiet()
        self.invariants.check()
        assert_converged(self.cluster)

    def _step(self) -> None:
        steps = self.cluster.steps()
        if not steps:
            self.cluster.advance_to_next_timer()
            return
        step = self.random.choice(steps)
        self._note("%s %d %d", *step)
        self.cluster.take(step)

    def _heal(self) -> None:
        self._faults_are_on = False
        self._note("heal")
        for broker_id in range(BROKERS):
            broker = self.cluster.brokers.get(broker_id)
            if broker in self._leaving:
                self._end(broker)
                broker = None
            if broker is None:
                self.cluster.start(broker_id)
            else:
                broker.is_paused = False
                self.cluster.zookeeper.reconnect(broker.session.session_id)
        for session_id in self._forgotten_sessions:
            self.cluster.expire(session_id)
        while self._broken:
            self._mend_a_topic()

    # --- faults inside a call ---

    def _hook_for(self, broker: SimulatedBroker) -> Hook:
        return partial(self._interrupt, broker)

    def _interrupt(self, broker: SimulatedBroker, call: Call) -> None:
        if not self._faults_are_on or self.random.random() >= CALL_FAULT_PROBABILITY:
            return
        fault = self.random.randrange(4)
        if fault == 0:
            self._note("  %d crashes %s %s", broker.broker_id, call.moment.value, call.method)
            self._forgotten_sessions.append(broker.session.session_id)
            raise SimulatedCrashError
        if fault == 1:
            self._note("  %d loses %s %s", broker.broker_id, call.moment.value, call.method)
            raise ConnectionLossError("simulated")
        if self._stalls < MAX_NESTED_STALLS:
            self._stall(broker, call, expire=fault == 2)

    def _stall(self, broker: SimulatedBroker, call: Call, *, expire: bool) -> None:
        self._note("  %d stalls %s %s", broker.broker_id, call.moment.value, call.method)
        if expire and not (call.method in READS and call.moment is Moment.BETWEEN):
            self.cluster.expire(broker.session.session_id)
        self._stalls += 1
        try:
            for _ in range(self.random.randrange(STALL_STEPS)):
                self._step()
                self.invariants.check()
        finally:
            self._stalls -= 1

    # --- faults between steps ---

    def _pick(self, *, paused: bool | None = None) -> SimulatedBroker | None:
        brokers = [
            broker
            for broker_id, broker in sorted(self.cluster.brokers.items())
            if paused in (None, broker.is_paused) and broker_id not in self.cluster.in_call
        ]
        return self.random.choice(brokers) if brokers else None

    def _kill(self) -> None:
        broker = self._pick()
        if broker is not None:
            self._note("kill %d", broker.broker_id)
            self._end(broker)

    def _end(self, broker: SimulatedBroker) -> None:
        self._forgotten_sessions.append(broker.session.session_id)
        self.cluster.kill(broker.broker_id)

    def _ask_for_controlled_shutdown(self) -> None:
        broker, rulers = self._pick(paused=False), self.cluster.active_controllers
        if broker is None or not rulers or broker.replica_manager.broker_epoch < 0:
            return
        ruler = self.random.choice(rulers)
        self._note("%d asks %d for a controlled shutdown", broker.broker_id, ruler.broker_id)
        self._leaving.add(broker)
        epoch = broker.replica_manager.broker_epoch
        ruler.tell(events.ControlledShutdown(len(self.history), broker.broker_id, epoch))

    def _start(self) -> None:
        missing = [b for b in range(BROKERS) if b not in self.cluster.brokers]
        if missing:
            broker_id = self.random.choice(missing)
            self._note("start %d", broker_id)
            self.cluster.start(broker_id)

    def _pause(self) -> None:
        broker = self._pick(paused=False)
        if broker is not None:
            self._note("pause %d", broker.broker_id)
            broker.is_paused = True

    def _resume(self) -> None:
        broker = self._pick(paused=True)
        if broker is not None:
            self._note("resume %d", broker.broker_id)
            broker.is_paused = False

    def _expire_a_session(self) -> None:
        broker = self._pick()
        if broker is not None:
            self._note("expire the session of %d", broker.broker_id)
            self.cluster.expire(broker.session.session_id)

    def _expire_a_dead_session(self) -> None:
        if self._forgotten_sessions:
            session_id = self._forgotten_sessions.pop(0)
            self._note("expire dead session %d", session_id)
            self.cluster.expire(session_id)

    def _cut_and_mend_a_connection(self) -> None:
        broker = self._pick()
        if broker is None:
            return
        self._note("cut and mend the connection of %d", broker.broker_id)
        session_id = broker.session.session_id
        self.cluster.zookeeper.disconnect(session_id)
        broker.is_paused, was_paused = True, broker.is_paused
        for _ in range(self.random.randrange(10)):
            self._step()
        broker.is_paused = was_paused
        self.cluster.zookeeper.reconnect(session_id)

    def _create_topic(self) -> None:
        if len(self._partitions) >= 6:
            return
        self._topics += 1
        topic = f"topic-{self._topics}"
        self._partitions[topic] = {p: self._replicas() for p in range(self.random.randint(1, 4))}
        self._note("create %s %s", topic, self._partitions[topic])
        self.cluster.put_topic(topic, self._partitions[topic])

    def _break_a_topic(self) -> None:
        whole = sorted(self._partitions.keys() - self._broken.keys())
        if whole:
            topic = self.random.choice(whole)
            self._note("break %s", topic)
            path = TopicZNode.path(topic)
            self._broken[topic] = self.cluster.zookeeper.snapshot()[path].data
            self.cluster.zookeeper.put(path, b'{"version":3,"partitions":')

    def _mend_a_topic(self) -> None:
        if self._broken:
            topic = self.random.choice(sorted(self._broken))
            self._note("mend %s", topic)
            self.cluster.zookeeper.put(TopicZNode.path(topic), self._broken.pop(topic))

    def _expand_topic(self) -> None:
        whole = sorted(self._partitions.keys() - self._broken.keys())
        if whole:
            topic = self.random.choice(whole)
            partitions = self._partitions[topic]
            partitions[len(partitions)] = self._replicas()
            self._note("expand %s to %d", topic, len(partitions))
            self.cluster.put_topic(topic, partitions)

    def _replicas(self) -> tuple[BrokerId, ...]:
        return tuple(self.random.sample(range(BROKERS), self.random.randint(1, 3)))

    def _delete_controller_znode(self) -> None:
        self._note("delete /controller")
        self.cluster.zookeeper.remove(ControllerZNode.PATH)

    def _overwrite_controller_znode(self) -> None:
        data = self.random.choice(
            [b"garbage", ControllerZNode.encode(99, 0), ControllerZNode.encode(1, 0)]
        )
        if ControllerZNode.PATH in self.cluster.zookeeper.snapshot():
            self._note("overwrite /controller with %s", data)
            self.cluster.zookeeper.put(ControllerZNode.PATH, data)

    def _lose_an_answer(self) -> None:
        sends = [step for step in self.cluster.steps() if step[0] == "send"]
        if sends:
            _, sender_id, receiver_id = self.random.choice(sends)
            self._note("the answer of %d to %d is lost", receiver_id, sender_id)
            sender = self.cluster.brokers[sender_id]
            self.cluster.deliver(sender, receiver_id, answer_is_lost=True)

    def _note(self, template: str, *args: object) -> None:
        self.history.append(template % args)
