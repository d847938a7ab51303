"""A cluster of real cores around a fake ZooKeeper, one step at a time.

``Cluster.steps`` lists everything that could happen next; the caller picks one. Nothing happens
otherwise, time is a number, and the same picks give the same history. Tests without random
choices call ``run_until_quiet``, which always takes the first step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from regent.core.controller.effects import Effect, SendControlRequest
from regent.core.controller.events import ControllerEvent, StandAgain
from regent.core.controller.services import ControllerSettings
from regent.core.errors import ForeignDirectoryError
from regent.core.model import (
    BrokerId,
)
from regent.core.protocol.control import ControlRequest, ControlResponse
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    ControllerRequest,
    ControllerResponse,
)
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.core.replication.replication_settings import ReplicationSettings
from regent.zk.client.operations import Znode
from regent.zk.znodes import ClusterIdZNode, DeleteTopicsZNode
from tests.simulation.broker import MAX_EVENTS, SimulatedBroker, SimulatedWorld
from tests.simulation.channel import MANY_REQUESTS
from tests.simulation.disk import Disk
from tests.simulation.fetchers import FETCH_INTERVAL_MS
from tests.simulation.group_server import GroupWorld
from tests.simulation.kafka_broker import KafkaBroker
from tests.simulation.kafka_protocol import KafkaRelease
from tests.simulation.network import Exchange, Network
from tests.simulation.records import RecordObserver
from tests.simulation.simulated_logs import LostBatches, SimulatedDisk
from tests.simulation.transaction_server import TransactionWorld
from tests.simulation.virtual_time import AWAKE, VirtualTime
from tests.support.fake_zookeeper import FakeZooKeeperServer, Hook
from tests.support.world import Znodes

Step: TypeAlias = tuple[str, int]
"""What could happen next: "expiry" or "event" of a broker, "deliver" of a packet."""

DiskFor: TypeAlias = Callable[[BrokerId, Callable[[], int]], SimulatedDisk]
"""Makes the disk of a broker; its second argument returns the virtual time."""

CLUSTER_ID = "simulated-cluster-abcd"
QUIET_MS = 11_000
MAX_SHOWN = 150
MAX_STEPS_AT_ONCE = 10_000  # while no time passes; random histories need up to 2,000


class BusyFollowers(ReplicationSettings):
    """Idle followers fetch as often as others, so that more happens in a history."""

    @property
    def idle_fetch_wait_ms(self) -> int:
        """The wait of every fetch."""
        return self.replica_fetch_wait_max_ms


REPLICATION = BusyFollowers(
    replica_lag_time_max_ms=4_000,
    replica_fetch_wait_max_ms=500,
    replica_fetch_backoff_ms=500,
    replica_fetch_max_bytes=150,  # a batch or two, so that followers catch up slowly
    replica_fetch_response_max_bytes=300,
)


def short_settings() -> ControllerSettings:
    """Return settings under which all delays end within ``QUIET_MS``."""
    return ControllerSettings(
        registration_renewal_ms=1_000,
        log_segment_delete_delay_ms=5_000,
        topic_deletion_retry_ms=2_000,
        election_retry_ms=250,
        leader_imbalance_check_interval_seconds=5,
        first_leader_imbalance_check_ms=3_000,
        controlled_shutdown_ack_timeout_ms=2_000,
        tell_again_ms=2_500,
        controlled_shutdown_abandoned_ms=4_500,
        delegation_token_expiry_check_interval_ms=3_000,
    )


class SimulatedCrashError(BaseException):
    """The process crashes in the middle of a call."""


class Cluster(Znodes):
    """Brokers, their disks, ZooKeeper, time, and the messages in flight.

    ``brokers``: how many to start, or their ids. ``settings`` is called for each process.
    ``disk_for`` makes the disk of each broker, once. ``groups``, ``transactions``: brokers
    coordinate them.
    """

    def __init__(
        self,
        brokers: int | Iterable[BrokerId],
        settings: Callable[[], ControllerSettings] = short_settings,
        replication: ReplicationSettings = REPLICATION,
        disk_for: DiskFor = Disk,
        groups: GroupWorld | None = None,
        transactions: TransactionWorld | None = None,
    ) -> None:
        self.time = VirtualTime()
        self._last_step_ms = 0
        self._steps_at_once = 0
        self.zookeeper = FakeZooKeeperServer(now_ms=lambda: self.time.now_ms)
        self.zookeeper.put(ClusterIdZNode.PATH, ClusterIdZNode.encode(CLUSTER_ID))
        self.network = Network(now_ms=lambda: self.time.now_ms)
        self.brokers: dict[BrokerId, SimulatedBroker] = {}
        self.disks: dict[BrokerId, SimulatedDisk] = {}
        self._disk_for = disk_for
        self.release_for: Callable[[BrokerId], KafkaRelease | None] = lambda broker_id: None
        self.on_obeyed: Callable[[SimulatedBroker, ControlRequest], None]
        self.on_obeyed = lambda broker, request: None
        self.in_call: set[BrokerId] = set()  # stalled inside a call to ZooKeeper
        self.hook_for: Callable[[SimulatedBroker], Hook | None] = lambda broker: None
        self.after_step: Callable[[], None] = lambda: None
        self.before_rest: Callable[[], None] = lambda: None
        self.rest_step_ms = FETCH_INTERVAL_MS
        self.closing_logs_ms = 0  # from the end of a process to the end of its session
        self.handle_control_request: Callable[
            [SimulatedBroker, Exchange], ControlResponse | ControlRequestRefusedError
        ] = SimulatedBroker.handle_control_request
        self.handle: Callable[[SimulatedBroker, ControllerEvent], list[Effect]]
        self.handle = SimulatedBroker.handle
        self.on_control_request: Callable[[SimulatedBroker, SendControlRequest], None]
        self.on_control_request = lambda broker, order: None
        self._world = SimulatedWorld(
            self.time,
            self.network,
            self.zookeeper,
            settings,
            replication,
            topic_numbers=itertools.count(1),
            stop=self._stop,
            handle_control_request=lambda broker, exchange: self.handle_control_request(
                broker, exchange
            ),
            handle=lambda broker, event: self.handle(broker, event),
            observer=RecordObserver(),
            on_control_request=lambda broker, order: self.on_control_request(broker, order),
            groups=groups,
            transactions=transactions,
            on_obeyed=lambda broker, request: self.on_obeyed(broker, request),
        )
        self._ports = itertools.count(20_000)
        for broker_id in range(brokers) if isinstance(brokers, int) else brokers:
            self.start(broker_id)

    def let_threads_act(self) -> None:
        """Let other threads read the disk, and control requests overtake appends of followers."""
        self._world.has_threads = True

    def bound_inboxes(self, limit: int = MAX_EVENTS) -> None:
        """Limit the number of events that are queued for a controller."""
        self._world.inbox_limit = limit

    def widen_channels(self) -> None:
        """Allow as many queued requests for a broker as in production.

        With a low limit, a full update of one broker may overflow the channels of the others.
        """
        self._world.channel_limit = MANY_REQUESTS

    def send_one_at_a_time(self) -> None:
        """Let each control request to a broker wait for the answer to the one before it."""
        self._world.channels_send_two = False

    def lose_isr_answers(self, is_lost: Callable[[AlterPartitionRequest], bool]) -> None:
        """Let leaders that write ISRs lose answers with their sessions."""
        self._world.is_answer_lost = is_lost

    def delay_checks(self, delay_ms: Callable[[], int]) -> None:
        """Let brokers handle other requests while they ask ZooKeeper about a controller."""
        self._world.check_delay_ms = delay_ms

    def let_kafka_rule(self, *, may_rule: bool) -> None:
        """Set whether brokers of Kafka may be elected; one that rules goes on."""
        self._world.kafka_may_rule = may_rule

    def observe(self, observer: RecordObserver) -> None:
        """Set the observer of records written, committed and answered."""
        self._world.observer = observer
        for disk in self.disks.values():
            disk.observer = observer

    @property
    def events_handled(self) -> int:
        """How many events controllers have handled."""
        return self._world.events_handled

    @property
    def now_ms(self) -> int:
        """Virtual milliseconds since the cluster was made."""
        return self.time.now_ms

    # --- what happens to brokers ---

    def start(self, broker_id: BrokerId, *, port: int | None = None) -> SimulatedBroker:
        """Start a broker process, by default on a port of its own."""
        if broker_id not in self.disks:
            self.disks[broker_id] = self._disk_for(broker_id, lambda: self.now_ms)
        disk = self.disks[broker_id]
        disk.join_cluster(CLUSTER_ID)
        disk.observer = self._world.observer
        release, at = self.release_for(broker_id), port or next(self._ports)
        broker = (
            SimulatedBroker(self._world, broker_id, at, disk)
            if release is None
            else KafkaBroker(self._world, broker_id, at, disk, release)
        )
        self.brokers[broker_id] = broker
        broker.session.hook = self.hook_for(broker)
        broker.start()
        return broker

    def kill(
        self,
        broker_id: BrokerId,
        *,
        is_clean: bool = False,
        lost_batches: LostBatches | None = None,
    ) -> None:
        """End a broker process at once; its session stays until it is expired.

        ``is_clean``: the logs are closed first. ``lost_batches``: the machine loses power.
        """
        broker = self.brokers.pop(broker_id)
        broker.is_dead = True
        broker.note_end(is_clean=is_clean)
        self.network.leave(broker)
        self.time.forget(broker)
        disk = broker.disk.ended(is_clean=is_clean, lost_batches=lost_batches)
        self.disks[broker_id] = disk

    def shut_down(self, broker_id: BrokerId) -> None:
        """Begin a controlled shutdown; the broker ends some time later."""
        self.brokers[broker_id].shut_down()

    def expire(self, session_id: int) -> None:
        """Let a session time out."""
        self.zookeeper.expire(session_id)

    def _stop(self, broker: SimulatedBroker) -> None:
        """End a process, and its session when the logs are closed; another rules before that."""
        if broker.broker_id in self.in_call:  # its controller is stopped first
            self.time.schedule(broker, FETCH_INTERVAL_MS, lambda: self._stop(broker))
            return
        if broker.groups is not None:
            broker.groups.stop()
        broker.replica_manager.checkpoint_high_watermarks()
        if self.closing_logs_ms and not broker.info.is_of_kafka:
            self._give_up(broker)
            if broker.is_dead:  # it crashed in this call, or was killed while it waited
                return
        self.kill(broker.broker_id, is_clean=True)
        session_id = broker.session.session_id
        if self.closing_logs_ms:
            self.time.schedule(AWAKE, self.closing_logs_ms, lambda: self.expire(session_id))
        else:
            self.expire(session_id)

    def _give_up(self, broker: SimulatedBroker) -> None:
        self.in_call.add(broker.broker_id)
        try:
            broker.controller.give_up()
        except SimulatedCrashError:
            if not broker.is_dead:
                self.kill(broker.broker_id)
        finally:
            self.in_call.discard(broker.broker_id)

    # --- steps ---

    def steps(self) -> list[Step]:
        """Return everything that could happen next, in a fixed order."""
        return list(self._steps())

    def _steps(self) -> Iterator[Step]:
        for broker_id in sorted(self.brokers):
            broker = self.brokers[broker_id]
            if broker.is_paused or broker_id in self.in_call:
                continue
            if not broker.has_session():
                yield "expiry", broker_id
            elif broker.inbox:
                yield "event", broker_id
        for number in self.network.deliverable():
            yield "deliver", number

    def take(self, step: Step) -> None:
        """Let one thing happen."""
        if self._last_step_ms != self.now_ms:
            self._last_step_ms, self._steps_at_once = self.now_ms, 0
        self._steps_at_once += 1
        if self._steps_at_once > MAX_STEPS_AT_ONCE:
            raise AssertionError(f"no end of steps at {self.now_ms} ms: {self._pending_steps()}")
        kind, number = step
        if kind == "deliver":
            self.network.deliver(number)
        else:
            self._run_controller(kind, self.brokers[number])
        self.after_step()

    def _run_controller(self, kind: str, broker: SimulatedBroker) -> None:
        self.in_call.add(broker.broker_id)
        try:
            if kind == "expiry":
                broker.notice_expiry()
            else:
                broker.handle_next()
        except SimulatedCrashError:
            if not broker.is_dead:
                self.kill(broker.broker_id)
        except ForeignDirectoryError:
            self.in_call.discard(broker.broker_id)
            self._stop(broker)
        finally:
            self.in_call.discard(broker.broker_id)

    def run_until_quiet(self, quiet_ms: int = QUIET_MS, max_steps: int = 50_000) -> None:
        """Take the first step, or let time pass, until the cluster is at rest.

        At rest: for ``quiet_ms`` ZooKeeper has not changed, no broker has received a control
        request, no record has been copied, and not all brokers are backing off from elections. The
        default is longer than any relevant timer. Fetches and failing retries go on for ever.

        Of a topic whose deletion waits for a broker, only committed records count. Its leaders are
        not told that the ISR lost that broker (Kafka does not tell them either), so that nothing
        they write is committed any more: members of groups join again for ever, each time with a
        record.
        """
        progress, since_ms = self._progress(), self.now_ms
        for _ in range(max_steps):
            step = next(self._steps(), None)
            if step is not None:
                self.take(step)
                continue
            reached = self._progress()
            if reached != progress:
                progress, since_ms = reached, self.now_ms
            elif self.now_ms - since_ms >= quiet_ms and not self.is_backing_off:
                return
            self.before_rest()
            self.time.advance(self.rest_step_ms)
        raise AssertionError(f"still busy after {max_steps} steps: {self._pending_steps()}")

    def _progress(self) -> tuple[int, int, int]:
        going = set(self.zookeeper.children_of(DeleteTopicsZNode.PATH))
        batches = sum(disk.batch_count(going) for disk in self.disks.values())
        committed = sum(
            partition.high_watermark
            for broker in self.brokers.values()
            for name, partition in broker.replica_manager.partitions.items()
            if name.topic in going
        )
        return self.zookeeper.zxid, self._world.control_requests_received, batches + committed

    @property
    def is_backing_off(self) -> bool:
        """Whether there is no active controller because all candidates back off from elections."""
        candidates = [
            broker
            for broker in self.brokers.values()
            if self._world.kafka_may_rule or not broker.is_of_kafka
        ]
        if self.active_controllers or not candidates:
            return False
        return all(StandAgain() in self.time.events_of(broker) for broker in candidates)

    def _pending_steps(self) -> str:
        """Return how many steps of each kind are possible, with some examples."""
        steps = self.steps()
        packets = [self.network.packets[number] for kind, number in steps if kind == "deliver"]
        waiting = [event for broker in self.brokers.values() for event in broker.inbox]
        kinds = Counter(packet.kind for packet in packets)
        kinds.update(type(event).__name__ for event in waiting)
        shown = [str(pending)[:MAX_SHOWN] for pending in (*packets[:3], *waiting[:3])]
        return f"{dict(kinds.most_common())}, such as {shown}"

    def run_for(self, ms: int) -> None:
        """Take the first step, or let time pass, until some time has passed."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            step = next(self._steps(), None)
            if step is None:
                self.before_rest()
                self.time.advance(min(self.rest_step_ms, FETCH_INTERVAL_MS // 2))
            else:
                self.take(step)

    # --- what admins do, and what is there to see ---

    def request(
        self, request: ControllerRequest, to: BrokerId | None = None, max_steps: int = 10_000
    ) -> ControllerResponse:
        """Send a request to the controller (or to broker ``to``), and run until the answer."""
        asked = self.active_controllers[0] if to is None else self.brokers[to]
        answers: list[ControllerResponse] = []
        self.network.ask(None, asked.control_endpoint, request, answers.append)  # type: ignore[arg-type]
        for _ in range(max_steps):
            if answers:
                return answers[0]
            steps = self.steps()
            if steps:
                self.take(steps[0])
            else:
                self.time.advance(FETCH_INTERVAL_MS)
        raise AssertionError(f"no answer to {request}")

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node and its parents, or replace its data."""
        self.zookeeper.put(path, data)

    def node(self, path: str) -> Znode | None:
        """Return a node."""
        return self.zookeeper.node(path)

    @property
    def kafka_controllers(self) -> list[KafkaBroker]:
        """The brokers of Kafka that believe to be the controller."""
        found = [b for _, b in sorted(self.brokers.items()) if isinstance(b, KafkaBroker)]
        return [broker for broker in found if broker.is_controller]

    @property
    def active_controllers(self) -> list[SimulatedBroker]:
        """The brokers that believe to be the active controller."""
        return [b for _, b in sorted(self.brokers.items()) if b.controller.is_active]
