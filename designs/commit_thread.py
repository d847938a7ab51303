"""The commit thread of a leader: it waits for the in-sync replicas, one append after the other.

The designs before the controller give every led partition a queue of appends and a thread that
commits them in order. The thread also changes the in-sync replicas (ISR): one that is stuck for
``keep_in_sync_ms`` or more than ``max_bytes_lag`` behind leaves, one that has what is committed
joins. Kafka dropped the bound in bytes later (KIP-16): a burst of records removed every follower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from pykka import ActorRef

from regent.core.model import BrokerId
from regent.designs.pooled_actor import ActorClock, Dispatcher, PooledActor

_LOOKS_IN_A_PERIOD: Final = 4


class InSyncLimits(NamedTuple):
    """When a replica is no longer in sync; the defaults are those of Kafka 0.8's first versions."""

    keep_in_sync_ms: int = 30_000
    max_bytes_lag: int = 4_000

    @property
    def look_every_ms(self) -> int:
        """How often the replicas are looked at while an append waits."""
        return max(1, self.keep_in_sync_ms // _LOOKS_IN_A_PERIOD)


class RecordsAppended(NamedTuple):
    """The leader appended; ``acknowledge`` is called with the outcome of the commit."""

    log_end_offset: int
    size: int  # of the records appended, in bytes
    acknowledge: Callable[[bool], None]


class FollowerAt(NamedTuple):
    """A follower asked for the records from ``offset`` on: it has all before."""

    broker_id: BrokerId
    offset: int


class ReplicasChanged(NamedTuple):
    """The partition has these replicas now; others are not in sync any more."""

    replicas: tuple[BrokerId, ...]


class Look(NamedTuple):
    """It is time to look for replicas that are stuck."""


class HighWatermarkAt(NamedTuple):
    """To the replica: the records before ``high_watermark`` are committed."""

    high_watermark: int


class IsrStored(NamedTuple):
    """To the replica: these are in sync now."""

    isr: tuple[BrokerId, ...]


class IsrRefused(NamedTuple):
    """To the replica: another leader has changed the in-sync replicas."""


CommitMessage: TypeAlias = RecordsAppended | FollowerAt | ReplicasChanged | Look


class _Position(NamedTuple):
    offset: int
    since_ms: int


class CommitThread(PooledActor):
    """Commits the appends of one leadership.

    ``write_isr`` stores the in-sync replicas and says whether they were stored.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        leader: BrokerId,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        high_watermark: int,
        limits: InSyncLimits,
        owner: ActorRef[Any],
        write_isr: Callable[[tuple[BrokerId, ...]], bool],
        clock: ActorClock,
    ) -> None:
        super().__init__(dispatcher)
        self._leader = leader
        self._followers = _without(leader, replicas)
        self._isr = tuple(isr)
        self._high_watermark = high_watermark
        self._limits = limits
        self._owner = owner
        self._write_isr = write_isr
        self._clock = clock
        self._queue: deque[RecordsAppended] = deque()
        self._waits_since_ms = 0  # the commit of the first append in the queue
        self._positions: dict[BrokerId, _Position] = {}  # of the followers that have fetched
        self._looks_later = False

    def handle(self, message: CommitMessage) -> None:
        """Note an append or a position, then commit what can be committed."""
        match message:
            case RecordsAppended():
                if not self._queue:
                    self._waits_since_ms = self._clock.now_ms()
                self._queue.append(message)
            case FollowerAt(broker_id, offset):
                known = self._positions.get(broker_id)
                if broker_id in self._followers and (known is None or offset != known.offset):
                    self._positions[broker_id] = _Position(offset, self._clock.now_ms())
            case ReplicasChanged(replicas):
                self._use(replicas)
            case Look():
                self._looks_later = False
        self._commit()

    def on_stop(self) -> None:
        """Refuse what is not committed: another replica leads."""
        for append in self._queue:
            append.acknowledge(False)

    def _commit(self) -> None:
        while self._queue:
            append = self._queue[0]
            if not self._is_held(append.log_end_offset) and not self._shrink(append):
                self._look_later()
                return
            if not self._expand(append.log_end_offset):
                return
            self._queue.popleft()
            self._waits_since_ms = self._clock.now_ms()
            self._high_watermark = append.log_end_offset
            self._owner.tell(HighWatermarkAt(self._high_watermark))
            append.acknowledge(True)
        self._expand(self._high_watermark)

    def _use(self, replicas: tuple[BrokerId, ...]) -> None:
        self._followers = _without(self._leader, replicas)
        isr = tuple(r for r in self._isr if r == self._leader or r in replicas)
        if isr != self._isr:
            self._store(isr)

    def _is_held(self, offset: int) -> bool:
        """Whether every in-sync replica has what is before ``offset``."""
        return not self._behind(offset)

    def _behind(self, offset: int) -> list[BrokerId]:
        """Return the in-sync replicas that lack a record before ``offset``."""
        return [r for r in self._followers if r in self._isr and not self._has(r, offset)]

    def _has(self, replica: BrokerId, offset: int) -> bool:
        position = self._positions.get(replica)
        return position is not None and position.offset >= offset

    def _shrink(self, append: RecordsAppended) -> bool:
        """Remove the replicas that hold up an append for too long; whether all others have it."""
        behind = self._behind(append.log_end_offset)
        gone = [r for r in behind if self._is_stuck(r) or self._is_slow(r)]
        if gone and not self._store(tuple(r for r in self._isr if r not in gone)):
            return False
        return len(gone) == len(behind)

    def _expand(self, offset: int) -> bool:
        """Add the replicas that have everything up to ``offset``; False when that was refused."""
        caught_up = [r for r in self._followers if r not in self._isr and self._has(r, offset)]
        return not caught_up or self._store((*self._isr, *caught_up))

    def _store(self, isr: tuple[BrokerId, ...]) -> bool:
        if not self._write_isr(isr):
            self._owner.tell(IsrRefused())
            return False
        self._isr = isr
        self._owner.tell(IsrStored(isr))
        return True

    def _is_stuck(self, replica: BrokerId) -> bool:
        """Whether a replica has made no progress for too long while records waited for it."""
        position = self._positions.get(replica)
        moved_ms = self._waits_since_ms if position is None else position.since_ms
        waited_ms = self._clock.now_ms() - max(moved_ms, self._waits_since_ms)
        return waited_ms >= self._limits.keep_in_sync_ms

    def _is_slow(self, replica: BrokerId) -> bool:
        """Whether more than ``max_bytes_lag`` bytes wait that a replica does not have."""
        position = self._positions.get(replica)
        offset = self._high_watermark if position is None else position.offset
        lacking = [append for append in self._queue if append.log_end_offset > offset]
        return sum(append.size for append in lacking) > self._limits.max_bytes_lag

    def _look_later(self) -> None:
        if not self._looks_later:
            self._looks_later = True
            self._tell_later(self._clock, self._limits.look_every_ms, Look())


def _without(leader: BrokerId, replicas: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(replica for replica in replicas if replica != leader)
