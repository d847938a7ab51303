"""A replica of a partition before the controller: it leads, follows, replicates and commits.

How it learns that it leads is what the designs differ in: ``v1`` and ``v2``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from pykka import ActorDeadError, ActorRef

from regent.core.model import BrokerId, TopicPartition
from regent.designs.commit_thread import (
    CommitThread,
    FollowerAt,
    HighWatermarkAt,
    InSyncLimits,
    IsrRefused,
    IsrStored,
    RecordsAppended,
)
from regent.designs.leader_lock import LeaderLock
from regent.designs.mail import FetchRecords, RecordsFetched, ReplicaMail, refusal_of
from regent.designs.memory_log import MemoryLog
from regent.designs.pooled_actor import ActorClock, Dispatcher, PooledActor
from regent.designs.watched_zookeeper import DataChanged, SessionBegan, WatchedZooKeeper
from regent.designs.znodes import decode_ids, leader_path, replicas_path
from regent.zk.client.operations import Znode

RETRY_MS: Final = 100
"""The pause before a follower asks again who leads. It doubles each time, up to the maximum."""

MAX_RETRY_MS: Final = 3_200

_TURNS_IN_A_MS: Final = 1_000

PREFERRED_REPLICA_WAIT_MS: Final = 300
"""How long the other replicas let the preferred one take the lock first."""

LockOf: TypeAlias = Callable[[WatchedZooKeeper, str, BrokerId, ActorRef[Any]], LeaderLock]
"""``NameLock`` or ``SequentialLock``."""


class ReplicaRole(Enum):
    """What a replica believes it is."""

    NONE = "none"
    FOLLOWER = "follower"
    LEADER = "leader"


class Belief(NamedTuple):
    """What a replica believes about its partition, since when (monotonic milliseconds)."""

    role: ReplicaRole
    leader: BrokerId | None
    since_ms: int


class PeerRestarted(NamedTuple):
    """A broker cannot be reached, or is another process by now: it has forgotten our fetches."""

    broker_id: BrokerId


class OtherBrokers(Protocol):
    """The other brokers, as a replica sees them."""

    def send(self, broker_id: BrokerId, message: ReplicaMail, /) -> None:
        """Send a message to the replica of the same partition on a broker.

        A fetch that cannot be delivered is answered with ``is_leader`` False.
        """
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all replicas of one broker share."""

    broker_id: BrokerId
    zookeeper: WatchedZooKeeper
    peers: OtherBrokers
    clock: ActorClock
    dispatcher: Dispatcher
    limits: InSyncLimits = field(default_factory=InSyncLimits)
    logs: dict[TopicPartition, MemoryLog] = field(default_factory=dict)
    """The logs on this broker; they stay when a replica starts again."""
    replicas: dict[TopicPartition, ActorRef[Any]] = field(default_factory=dict)
    """The replicas on this broker; only its own actor writes it, anybody reads it."""
    beliefs: dict[TopicPartition, Belief] = field(default_factory=dict)
    """Written by each replica for itself, read by anybody."""

    def deliver(self, message: ReplicaMail) -> None:
        """Pass a message of another broker to its replica here."""
        replica = self.replicas.get(message.topic_partition)
        if replica is not None:
            with suppress(ActorDeadError):
                replica.tell(message)
                return
        if isinstance(message, FetchRecords):
            self.peers.send(message.follower, refusal_of(message))


class ProduceRecords(NamedTuple):
    """Records of a producer; ``acknowledge`` is called with whether they are committed."""

    records: Sequence[str]
    acknowledge: Callable[[bool], None]


class BegunLeadership(NamedTuple):
    """What a new leader has stored: the in-sync replicas.

    ``write_isr`` stores others in the same leadership, and returns False when that is refused. A
    commit thread calls it, also when the leadership is over and the replica has begun another one.
    """

    isr: tuple[BrokerId, ...]
    write_isr: Callable[[tuple[BrokerId, ...]], bool]


class _Later(NamedTuple):
    turn: int
    act: Callable[[], None]

    def act_in(self, turn: int) -> None:
        """Act, unless the role has changed meanwhile."""
        if turn == self.turn:
            self.act()


class DesignReplica(PooledActor):
    """A replica; ``turn`` counts the changes of its role, and outdates messages of earlier ones."""

    def __init__(
        self,
        around: Surroundings,
        topic_partition: TopicPartition,
        log: MemoryLog,
        lock_of: LockOf,
    ) -> None:
        super().__init__(around.dispatcher)
        self._around = around
        self._zookeeper = around.zookeeper
        self._topic_partition = topic_partition
        self._log = log
        self._lock = lock_of(
            around.zookeeper, leader_path(topic_partition), around.broker_id, self.actor_ref
        )
        self._replicas: tuple[BrokerId, ...] = ()  # those assigned; the first is preferred
        self._turn = _TURNS_IN_A_MS * around.clock.now_ms()  # more than a former process had
        self._retry_ms = RETRY_MS
        self._role = ReplicaRole.NONE
        self._leader: BrokerId | None = None
        self._commit_thread: ActorRef[CommitThread] | None = None
        self._waiting: list[FetchRecords] = []

    # --- what the designs differ in ---

    @abstractmethod
    def _read_isr(self) -> tuple[BrokerId, ...]:
        """Read the in-sync replicas; empty when nobody has led yet."""

    @abstractmethod
    def _begin_leadership(self) -> BegunLeadership | None:
        """Store that this replica leads; None when that is refused."""

    def _on_isr(self, isr: tuple[BrokerId, ...]) -> None:
        """The in-sync replicas are these now."""

    def _on_change(self, message: Any) -> None:
        """Handle what the other listeners tell."""

    # --- messages ---

    def on_start(self) -> None:
        """Find out who leads."""
        self._zookeeper.listen_to_session(self.actor_ref)
        self._join()

    def handle(self, message: Any) -> object:
        """Handle what clients, other replicas, timers, the commit thread and listeners tell."""
        match message:
            case FetchRecords():
                self._on_fetch(message)
            case RecordsFetched():
                self._on_fetched(message)
            case ProduceRecords():
                self._append(message)
            case HighWatermarkAt() | IsrStored() | IsrRefused():
                self._on_commit(message)
            case SessionBegan():
                self._become(ReplicaRole.NONE, None)
                self._join()
            case DataChanged(path, znode) if path in self._lock.paths:
                self._on_lock(znode)
            case PeerRestarted(broker_id) if self._role is ReplicaRole.FOLLOWER:
                if self._leader == broker_id:
                    self._ask_again()
            case _Later():
                message.act_in(self._turn)
            case _:
                self._on_change(message)
        return None

    def on_stop(self) -> None:
        """Lead no more."""
        self._become(ReplicaRole.NONE, None)
        self._around.beliefs.pop(self._topic_partition, None)

    # --- elections ---

    def _join(self) -> None:
        """Find out who leads: follow, or stand for election."""
        leader = self._lock.watch()
        if leader is None or leader == self._around.broker_id:
            self._stand()
        else:
            self._follow(leader)

    def _on_lock(self, znode: Znode | None) -> None:
        leader = None if znode is None else self._lock.leader_in(znode)
        if leader is not None and leader != self._around.broker_id:
            self._follow(leader)
        elif znode is None and self._role is ReplicaRole.LEADER:
            self._ask_again()  # somebody took the lock away
        elif znode is None:
            self._stand()

    def _stand(self) -> None:
        """Stand for election; the preferred replica at once, the others a little later."""
        self._become(ReplicaRole.NONE, None)
        me, isr = self._around.broker_id, self._read_isr()
        self._replicas = self._ids_in(replicas_path(self._topic_partition))
        if isr and me not in isr:
            self._lock.release()
            self._await_leader()
        elif self._lock.is_queued or self._replicas[:1] == (me,):
            self._take_lock()
        else:
            self._later(PREFERRED_REPLICA_WAIT_MS, self._take_lock)

    def _take_lock(self) -> None:
        if not self._lock.take():
            self._follow(self._lock.leader())
            return
        leadership = self._begin_leadership()
        if leadership is None:
            self._lock.release()
            self._ask_again()
        else:
            self._lead(leadership)

    # --- leading ---

    def _lead(self, leadership: BegunLeadership) -> None:
        me = self._around.broker_id
        self._become(ReplicaRole.LEADER, me)
        self._retry_ms = RETRY_MS
        self._commit_thread = CommitThread.start(
            self._around.dispatcher,
            leader=me,
            replicas=self._replicas,
            isr=leadership.isr,
            high_watermark=self._log.high_watermark,
            limits=self._around.limits,
            owner=self.actor_ref,
            write_isr=leadership.write_isr,
            clock=self._around.clock,
        )
        if self._log.log_end_offset > self._log.high_watermark:
            self._commit_from(self._log.high_watermark, lambda _: None)

    def _append(self, message: ProduceRecords) -> None:
        if self._role is not ReplicaRole.LEADER:
            message.acknowledge(False)
            return
        offset = self._log.log_end_offset
        self._log.append(message.records)
        self._commit_from(offset, message.acknowledge)
        self._answer_waiting()

    def _commit_from(self, offset: int, acknowledge: Callable[[bool], None]) -> None:
        """Let the commit thread commit the records from ``offset`` on."""
        assert self._commit_thread is not None
        size = sum(map(len, self._log.read(offset)))
        self._commit_thread.tell(RecordsAppended(self._log.log_end_offset, size, acknowledge))

    def _on_commit(self, message: HighWatermarkAt | IsrStored | IsrRefused) -> None:
        match message:
            case _ if self._role is not ReplicaRole.LEADER:
                pass  # of a leadership that has ended
            case HighWatermarkAt(high_watermark):
                self._log.commit(high_watermark)
                self._answer_waiting()
            case IsrStored(isr):
                self._on_isr(isr)
            case IsrRefused():
                self._ask_again()

    def _on_fetch(self, fetch: FetchRecords) -> None:
        if self._role is not ReplicaRole.LEADER or self._commit_thread is None:
            self._refuse(fetch)
            return
        self._commit_thread.tell(FollowerAt(fetch.follower, fetch.offset))
        self._waiting = [w for w in self._waiting if w.follower != fetch.follower]
        self._waiting.append(fetch)
        self._answer_waiting()

    def _answer_waiting(self) -> None:
        """Answer the fetches for which there is something new."""
        log, waiting = self._log, self._waiting
        known = (log.log_end_offset, log.high_watermark)
        self._waiting = [f for f in waiting if (f.offset, f.high_watermark) == known]
        for fetch in waiting:
            if (fetch.offset, fetch.high_watermark) != known:
                records = tuple(log.read(fetch.offset))
                answer = RecordsFetched(
                    fetch.topic_partition, fetch.turn, True, log.high_watermark, records
                )
                self._around.peers.send(fetch.follower, answer)

    def _refuse(self, fetch: FetchRecords) -> None:
        self._around.peers.send(fetch.follower, refusal_of(fetch))

    # --- following ---

    def _follow(self, leader: BrokerId | None) -> None:
        if leader is None or leader == self._around.broker_id:
            self._await_leader()
        elif not (self._role is ReplicaRole.FOLLOWER and self._leader == leader):
            self._become(ReplicaRole.FOLLOWER, leader)
            self._log.truncate_to_high_watermark()
            self._fetch()

    def _fetch(self) -> None:
        assert self._leader is not None
        fetch = FetchRecords(
            self._topic_partition,
            self._around.broker_id,
            self._turn,
            self._log.log_end_offset,
            self._log.high_watermark,
        )
        self._around.peers.send(self._leader, fetch)

    def _on_fetched(self, fetched: RecordsFetched) -> None:
        if fetched.turn != self._turn:
            return
        if not fetched.is_leader:
            self._ask_again()
            return
        self._retry_ms = RETRY_MS
        self._log.append(fetched.records)
        self._log.commit(fetched.high_watermark)
        self._fetch()

    # --- the role ---

    def _await_leader(self) -> None:
        """Nobody leads: hear of the next leader, or ask a little later."""
        if self._lock.tells_everybody:
            self._become(ReplicaRole.NONE, None)
        else:
            self._ask_again()

    def _ask_again(self) -> None:
        """Ask a little later who leads."""
        self._become(ReplicaRole.NONE, None)
        self._later(self._retry_ms, self._join)
        self._retry_ms = min(2 * self._retry_ms, MAX_RETRY_MS)

    def _later(self, after_ms: int, act: Callable[[], None]) -> None:
        """Call ``act`` in this actor after a while, unless the role has changed by then."""
        self._tell_later(self._around.clock, after_ms, _Later(self._turn, act))

    def _become(self, role: ReplicaRole, leader: BrokerId | None) -> None:
        self._turn += 1
        self._role, self._leader = role, leader
        belief = Belief(role, leader, self._around.clock.now_ms())
        self._around.beliefs[self._topic_partition] = belief
        if self._commit_thread is not None:
            self._commit_thread.stop(block=False)
            self._commit_thread = None
        waiting, self._waiting = self._waiting, []
        for fetch in waiting:
            self._refuse(fetch)

    def _ids_in(self, path: str) -> tuple[BrokerId, ...]:
        """Read a node with a list of brokers; an absent one has none."""
        znode = self._zookeeper.get(path)
        return () if znode is None else decode_ids(znode.data)
