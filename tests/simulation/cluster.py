"""A cluster of real cores around a fake ZooKeeper, one step at a time.

Every broker is a process: its controller's queue, its channels to other brokers, its replica
manager. ``Cluster.steps`` names everything that could happen next; whoever drives the cluster picks
one. Nothing happens by itself, time is a number, and the same picks give the same history.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from core.controller import effects as fx
from core.controller import events
from core.controller.controller import Controller
from core.controller.events import ControllerEvent
from core.errors import SessionExpiredError
from core.model import (
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from core.protocol.control import (
    LeaderAndIsrResponse,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from core.replication.metadata_cache import MetadataCache
from core.replication.replica_manager import ReplicaManager
from storage.empty_logs import EmptyLogs
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer, Hook
from zk.operations import WatchEvent
from zk.store import ZkControllerStore
from zk.watches import controller_event
from zk.znodes import TopicPartitionStateZNode, TopicZNode

Step: TypeAlias = tuple[str, BrokerId, BrokerId]
"""What could happen next: its kind, the broker it happens to, and for ``send`` the receiver."""


class SimulatedCrashError(BaseException):
    """The process that is in the middle of a call dies there."""


class CountedTopicIds:
    """Topic ids that are the same in every run."""

    def __init__(self, cache: MetadataCache, next_number: Callable[[], int]) -> None:
        self._cache = cache
        self._next_number = next_number

    def new_topic_id(self) -> str:
        """Return the next id."""
        return f"{self._next_number():022d}"

    def last_known(self, topic: str) -> str | None:
        """Return the id the broker's metadata cache has."""
        return self._cache.snapshot.topic_ids.get(topic)


class CurrentSession(FakeZooKeeper):
    """The session a broker has at the moment; a new one replaces it when it is over."""

    def __init__(self, server: FakeZooKeeperServer, on_watch: Callable[[WatchEvent], None]) -> None:
        self._on_watch = on_watch
        super().__init__(server, on_watch, wait=self._cannot_wait)

    def renew(self) -> None:
        """Open a new session."""
        self._session_id = self.server.open_session(self._on_watch)

    def _cannot_wait(self) -> None:
        # A real client waits for the connection and gives the session up after its timeout.
        self.server.expire(self._session_id)
        self.server.reconnect(self._session_id)


@dataclass(slots=True)
class Channel:
    """What a controller has still to deliver to one incarnation of a broker."""

    endpoint: str
    requests: deque[fx.SendControlRequest] = field(default_factory=deque)


class SimulatedBroker:
    """One broker process."""

    def __init__(self, cluster: Cluster, broker_id: BrokerId, incarnation: int) -> None:
        self.broker_id = broker_id
        self.endpoint = f"tcp://broker-{broker_id}:{incarnation}"
        self.is_paused = False
        self.inbox: deque[ControllerEvent] = deque()
        self.channels: dict[BrokerId, Channel] = {}
        self.cache = MetadataCache()
        self.replica_manager = ReplicaManager(broker_id, EmptyLogs(), self.cache)
        self.session = CurrentSession(cluster.zookeeper, self._on_watch)
        info = BrokerInfo(
            broker_id,
            (EndPoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id),),
            control_endpoint=self.endpoint,
        )
        store = ZkControllerStore(self.session)
        topic_ids = CountedTopicIds(self.cache, cluster.next_topic_number)
        self.controller = Controller(info, store, topic_ids)
        self.replies: list[fx.Reply] = []
        self._cluster = cluster

    def tell(self, event: ControllerEvent) -> None:
        """Queue an event, unless the same trigger waits already."""
        key = events.collapse_key(event)
        if key is None or all(events.collapse_key(queued) != key for queued in self.inbox):
            self.inbox.append(event)

    def _on_watch(self, watch: WatchEvent) -> None:
        event = controller_event(watch)
        if event is not None:
            self.tell(event)

    def handle_next(self) -> None:
        """Process one event and perform its effects."""
        event = self.inbox.popleft()
        for effect in self.controller.handle(event, self._cluster.now_ms):
            self._perform(effect)

    def notice_expiry(self) -> None:
        """Do what the session keeper does: have the controller resign, then open a session."""
        self.inbox.clear()
        for effect in self.controller.handle(events.Expire(), self._cluster.now_ms):
            self._perform(effect)
        self.session.renew()
        self.tell(events.RegisterBrokerAndReelect())

    def has_session(self) -> bool:
        """Whether the current session lives, as far as this broker can know."""
        try:
            self.session.server.check_alive(self.session.session_id)
        except SessionExpiredError:
            return False
        return True

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.AddBroker(registration):
                self.channels[registration.info.broker_id] = Channel(_endpoint(registration))
            case fx.RemoveBroker(broker_id):
                self.channels.pop(broker_id, None)
            case fx.SendControlRequest(broker_id):
                channel = self.channels.get(broker_id)
                if channel is not None:
                    channel.requests.append(effect)
            case fx.Reply():
                self.replies.append(effect)
            case fx.ScheduleEvent(after_ms, event):
                self._cluster.schedule(self, after_ms, event)
            case fx.CancelScheduledEvents():
                self._cluster.cancel(self)
            case fx.BrokerRegistered(broker_epoch):
                self.replica_manager.broker_epoch = broker_epoch
            case fx.ControllerRoleChanged() | fx.RecordChanges():
                pass


class Cluster:
    """Brokers, ZooKeeper, time, and the messages under way."""

    def __init__(self, broker_count: int) -> None:
        self.now_ms = 0
        self.zookeeper = FakeZooKeeperServer(now_ms=lambda: self.now_ms)
        self.brokers: dict[BrokerId, SimulatedBroker] = {}
        self.in_call: set[BrokerId] = set()  # stalled inside a call to ZooKeeper
        self._incarnations = 0
        self._topic_numbers = itertools.count(1)
        self._timers: list[tuple[int, int, SimulatedBroker, ControllerEvent]] = []
        self._timer_count = 0
        self.hook_for: Callable[[SimulatedBroker], Hook | None] = lambda broker: None
        for broker_id in range(broker_count):
            self.start(broker_id)

    def next_topic_number(self) -> int:
        """Return the number of the next topic id."""
        return next(self._topic_numbers)

    # --- what happens to brokers ---

    def start(self, broker_id: BrokerId) -> None:
        """Start a broker process."""
        self._incarnations += 1
        broker = SimulatedBroker(self, broker_id, self._incarnations)
        self.brokers[broker_id] = broker
        broker.session.hook = self.hook_for(broker)
        broker.tell(events.RegisterBrokerAndReelect())

    def kill(self, broker_id: BrokerId) -> None:
        """End a broker process at once; its session lives on until somebody expires it."""
        broker = self.brokers.pop(broker_id)
        self.cancel(broker)

    def expire(self, session_id: int) -> None:
        """Let a session time out."""
        self.zookeeper.expire(session_id)

    # --- steps ---

    def steps(self) -> list[Step]:
        """Return everything that could happen next, in a fixed order."""
        steps: list[Step] = []
        for broker_id, broker in sorted(self.brokers.items()):
            if broker.is_paused or broker_id in self.in_call:
                continue
            if not broker.has_session():
                steps.append(("expiry", broker_id, broker_id))
            elif broker.inbox:
                steps.append(("event", broker_id, broker_id))
            for receiver_id, channel in sorted(broker.channels.items()):
                if channel.requests and self._receiver(receiver_id, channel) is not None:
                    steps.append(("send", broker_id, receiver_id))
        return steps

    def take(self, step: Step) -> None:
        """Let one thing happen."""
        kind, broker_id, receiver_id = step
        broker = self.brokers[broker_id]
        try:
            self.in_call.add(broker_id)
            if kind == "expiry":
                broker.notice_expiry()
            elif kind == "event":
                broker.handle_next()
            else:
                self.deliver(broker, receiver_id)
        except SimulatedCrashError:
            if self.brokers.get(broker_id) is broker:
                self.kill(broker_id)
        finally:
            self.in_call.discard(broker_id)

    def deliver(
        self, sender: SimulatedBroker, receiver_id: BrokerId, *, answer_is_lost: bool = False
    ) -> None:
        """Deliver the next request of a channel; without its answer it will be sent again."""
        channel = sender.channels[receiver_id]
        receiver = self._receiver(receiver_id, channel)
        assert receiver is not None
        effect = channel.requests[0]
        response = receiver.replica_manager.handle(effect.header, effect.request)
        if answer_is_lost:
            return
        channel.requests.popleft()
        match response:
            case LeaderAndIsrResponse():
                sender.tell(
                    events.LeaderAndIsrResponseReceived(receiver_id, effect.header, response)
                )
            case UpdateMetadataResponse():
                sender.tell(
                    events.UpdateMetadataResponseReceived(receiver_id, effect.header, response)
                )
            case StopReplicaResponse():
                pass

    def _receiver(self, receiver_id: BrokerId, channel: Channel) -> SimulatedBroker | None:
        receiver = self.brokers.get(receiver_id)
        if receiver is None or receiver.is_paused or receiver.endpoint != channel.endpoint:
            return None
        return receiver

    def run_until_quiet(self, max_steps: int = 10_000) -> None:
        """Take the first step there is until none is left and no timer is pending."""
        for _ in range(max_steps):
            steps = self.steps()
            if steps:
                self.take(steps[0])
            elif not self.advance_to_next_timer():
                return
        raise AssertionError(f"still busy after {max_steps} steps: {self.steps()}")

    # --- time ---

    def schedule(self, broker: SimulatedBroker, after_ms: int, event: ControllerEvent) -> None:
        """Queue an event for later."""
        self._timer_count += 1
        self._timers.append((self.now_ms + after_ms, self._timer_count, broker, event))

    def cancel(self, broker: SimulatedBroker) -> None:
        """Forget the timers of a broker."""
        self._timers = [timer for timer in self._timers if timer[2] is not broker]

    def advance_to_next_timer(self) -> bool:
        """Let time pass until the next timer fires; False when there is none."""
        if not self._timers:
            return False
        due = min(self._timers, key=lambda timer: timer[:2])
        self._timers.remove(due)
        self.now_ms = max(self.now_ms, due[0])
        due[2].tell(due[3])
        return True

    # --- what admins do, and what is there to see ---

    def put_topic(self, topic: str, partitions: Mapping[int, tuple[BrokerId, ...]]) -> None:
        """Create a topic without an id, or add partitions to one, keeping its id."""
        path = TopicZNode.path(topic)
        node = self.zookeeper.snapshot().get(path)
        topic_id = TopicZNode.decode(node.data).topic_id if node else None
        assignments = {p: ReplicaAssignment(replicas) for p, replicas in partitions.items()}
        self.zookeeper.put(path, TopicZNode.encode(topic_id, assignments))

    def leadership(self, partition: TopicPartition) -> LeaderIsrAndControllerEpoch | None:
        """Return what ZooKeeper says about a partition."""
        node = self.zookeeper.snapshot().get(TopicPartitionStateZNode.path(partition))
        if node is None:
            return None
        return TopicPartitionStateZNode.decode(node.data, node.stat.version)

    @property
    def active_controllers(self) -> list[SimulatedBroker]:
        """The brokers that rule, in their own opinion."""
        return [b for _, b in sorted(self.brokers.items()) if b.controller.is_active]


def _endpoint(registration: BrokerRegistration) -> str:
    return registration.info.control_endpoint or ""
