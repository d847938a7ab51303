"""Transactions, in some histories: their topics, the producers, and readers of committed records.

Such histories have random numbers of their own for transactions; others are as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.coordinator.transaction.transaction_metadata import EXPIRABLE
from regent.core.coordinator.transaction.transaction_state_manager import TransactionConfig
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ConsumerFetch, ConsumerPosition
from regent.core.protocol.groups import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRequest,
    OffsetAndMetadata,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from tests.simulation.application_topics import LEDGER
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_processes import ClientProcesses
from tests.simulation.client_requests import ConsumeRequest, GroupCall, TransactionCall
from tests.simulation.cluster import Cluster
from tests.simulation.coordinators import Coordinators, create_topic
from tests.simulation.group_history import GroupHistory
from tests.simulation.group_server import GroupWorld
from tests.simulation.groups import REST_STEP_MS
from tests.simulation.invariants import Invariants
from tests.simulation.odds import (
    TRANSACTIONS_ACT_PROBABILITY,
    TRANSACTIONS_PROBABILITY,
    Menu,
)
from tests.simulation.transaction_history import TransactionHistory
from tests.simulation.transaction_server import TransactionWorld
from tests.simulation.transactional_producers import (
    APPLICATION,
    TIMEOUTS_MS,
    Add,
    Commit,
    Phase,
    Send,
    TransactionalProducer,
    ledger,
)

MAX_PRODUCERS = 4
LEDGER_PARTITIONS = 3
IDS = ("pay", "bill")
ROUNDS = 40
ROUND_MS = 1_000
GRACE_MS = 6_000
LEFT_PROBABILITY = 0.4
SHORTAGES_PROBABILITY = 0.2  # of a history with transactions
POSITIONS_PROBABILITY = 0.6  # of a history with transactions
COMMIT_PROBABILITY = 0.6  # of a position, in a transaction
POSITIONS = TopicPartition(GROUP_METADATA_TOPIC, 0)
CONSUMED = 3  # partitions of orders


def positions_world(seed: int) -> GroupWorld | None:
    """Return what group coordinators share; None: transactions commit no positions."""
    dice = random.Random(f"{seed}, positions of transactions")
    if dice.random() >= POSITIONS_PROBABILITY:
        return None
    return GroupWorld(config=GroupConfig(), partitions=1, dice=dice)


def transaction_world(seed: int) -> TransactionWorld | None:
    """Return what coordinators share; None: there are no transactions in this history."""
    if random.Random(f"{seed}, open transactions").random() >= TRANSACTIONS_PROBABILITY:
        return None
    dice = random.Random(f"{seed}, transaction coordinators")
    config = TransactionConfig(missing_partition_grace_ms=GRACE_MS)
    world = TransactionWorld(config=config, partitions=dice.choice((1, 1, 2)), dice=dice)
    shortages = random.Random(f"{seed}, transaction coordinators lack descriptors")
    if shortages.random() < SHORTAGES_PROBABILITY:
        world.shortages = shortages
    return world


class Transactions:
    """All transactions of a history; ``note`` writes it."""

    def __init__(
        self,
        cluster: Cluster,
        world: TransactionWorld,
        seed: int,
        invariants: Invariants,
        note: Callable[..., None],
        positions: GroupWorld | None,
    ) -> None:
        """``positions``: what group coordinators share if transactions commit positions."""
        self._cluster = cluster
        self._world = world
        self._random = random.Random(f"{seed}, transactional producers")
        self._note = note
        self.history = TransactionHistory(world, invariants, self._steps)
        world.observer = self.history
        self._coordinators = Coordinators(
            cluster, TRANSACTION_STATE_TOPIC, world.partitions, self._random, TransactionCall
        )
        self._processes: ClientProcesses[TransactionalProducer] = ClientProcesses(
            "producer", cluster, self._random, note
        )
        self._read_to: dict[TopicPartition, int] = {}
        self._groups: GroupHistory | None = None
        self._resets = 0
        self._ids = world.keys = IDS[: self._random.randint(1, 2)]
        self._menu = Menu(self._random)
        self._menu.add(self._begin, 3, is_remedy=True)
        self._menu.add(self._processes.stall, 3)
        self._menu.add(self._processes.kill, 2)
        self._menu.add(self._come_back, 2, is_remedy=True)
        self._menu.add(self._processes.repeat, 2)
        self._menu.add(self._read, 4)
        if positions is not None:
            self._groups = positions.observer = GroupHistory(cluster, positions, invariants)
            self._menu.add(self._use_a_tool, 2)
        cluster.rest_step_ms = REST_STEP_MS

    def begin(self) -> None:
        """Create the topics, and the first producers."""
        self._create_topic(TRANSACTION_STATE_TOPIC, self._world.partitions)
        self._create_topic(LEDGER, LEDGER_PARTITIONS)
        if self._groups is not None:
            self._create_topic(GROUP_METADATA_TOPIC, 1)
        for _ in range(self._random.randint(1, MAX_PRODUCERS)):
            self._begin()

    def _create_topic(self, topic: str, partitions: int) -> None:
        create_topic(self._cluster, self._random, self._note, topic, partitions)

    def act_at_times(self) -> None:
        """Let something happen to producers and readers, now and then."""
        if self._random.random() < TRANSACTIONS_ACT_PROBABILITY:
            self._menu.act()

    # --- producers ---

    def _steps(self, number: int) -> Iterator[Add | Send | Commit]:
        """Yield the steps of a transaction: partitions are added before records are sent there."""
        dice = self._random
        commits = self._groups is not None and dice.random() < COMMIT_PROBABILITY
        if commits and dice.random() < 0.5:  # the Java client commits last, but nothing asks for it
            yield from self._commit(number)
            commits = False
        names = [ledger(p) for p in dice.sample(range(LEDGER_PARTITIONS), dice.randint(1, 3))]
        at_once = dice.randint(1, len(names))
        values = 0
        for added in (names[:at_once], names[at_once:]):
            if added:
                yield Add(tuple(added))
            for name in added * dice.choice((1, 1, 2)):
                count = dice.choice((1, 1, 2))
                yield Send(name, tuple(b"%d.%d" % (number, values + n) for n in range(count)))
                values += count
        if commits:
            yield from self._commit(number)

    def _commit(self, number: int) -> Iterator[Add | Commit]:
        """Yield the steps that commit a position."""
        yield Add((POSITIONS,))
        yield Commit(POSITIONS, orders(number % CONSUMED), b"%d.position" % number)

    def _living(self, transactional_id: str | None = None) -> list[TransactionalProducer]:
        return [
            producer
            for producer in self._processes.living
            if transactional_id in (None, producer.transactional_id)
        ]

    def _begin(self) -> None:
        """Start a producer whose transactional id has none."""
        free = [name for name in self._ids if not self._living(name)]
        if free:
            self._start(self._random.choice(free))

    def _start(self, transactional_id: str) -> None:
        producer = TransactionalProducer(
            len(self._processes.all),
            transactional_id,
            self._coordinators,
            self._note,
            self.history,
            self._random.choice(TIMEOUTS_MS),
        )
        self._processes.all.append(producer)
        self._note("producer %d of %s begins", producer.number, transactional_id)
        producer.tick()

    def _come_back(self) -> None:
        """Start a process with the transactional id of another one, which may live."""
        if len(self._living()) < MAX_PRODUCERS:
            self._start(self._random.choice(self._ids))

    # --- readers ---

    def _read(self) -> None:
        name = ledger(self._random.randrange(LEDGER_PARTITIONS))
        leader = self._coordinators.leader(name)
        if leader is None:
            return
        offset = self._random.choice((0, self._read_to.get(name, 0)))
        position = ConsumerPosition(offset, self._random.choice((100, 200, 1_000_000)))
        fetch = ConsumerFetch({name: position}, is_read_committed=self._random.random() < 0.8)
        self._read_to[name] = offset + self._random.randrange(6)
        endpoint = self._cluster.brokers[leader].client_endpoint
        request = ConsumeRequest(fetch, self._random.random() < 0.3)
        self._cluster.network.ask(None, endpoint, request, lambda answer: None)

    # --- tools ---

    def _use_a_tool(self) -> None:
        """Delete, reset or read a position of the application."""
        leader = self._coordinators.leader(POSITIONS)
        if leader is None:
            return
        self._resets += 1
        reset = OffsetAndMetadata(self._resets, metadata=f"reset {self._resets}")
        position = orders(self._random.randrange(CONSUMED))
        request: GroupRequest[Any] = self._random.choice(
            (
                DeleteOffsets(APPLICATION, (position,)),
                DeleteOffsets(APPLICATION, (position,)),
                CommitOffsets(APPLICATION, {position: reset}),
                FetchOffsets(APPLICATION, (position,), require_stable=True),
            )
        )
        self._note("a tool asks %d for %s", leader, request)
        endpoint = self._cluster.brokers[leader].client_endpoint
        self._cluster.network.ask(None, endpoint, GroupCall(request), lambda answer: None)

    # --- the end ---

    def rest(self) -> None:
        """Begin nothing more: a cluster in which records are written is never at rest."""
        self._world.is_at_rest = True
        self._processes.wake_all()

    def finish(self) -> None:
        """Check that transactions end, that another one works, and what readers see then."""
        has_clocks = any(disk.wall_clock_ahead_ms for disk in self._cluster.disks.values())
        for name in self._ids:
            # Without a producer, an open transaction is aborted at its timeout.
            is_left = not has_clocks and self._random.random() < LEFT_PROBABILITY
            for producer in self._living(name) if is_left else ():
                if producer.phase is Phase.IDLE:
                    producer.begin()
                self._processes.kill(producer)
            if not self._living(name) and not is_left:
                self._start(name)
        self._await_settled()
        for producer in self._living():
            if producer.phase is Phase.IDLE:
                producer.begin()
        self._await_settled()
        self._cluster.run_until_quiet()
        for broker in self._cluster.brokers.values():
            assert broker.transactions is not None
            broker.transactions.assert_owes_nothing()
        if self._is_able():
            self._check_written()

    def _check_written(self) -> None:
        for written in self._written():
            self.history.check_end(self._able(written), written)
        if self._groups is not None:
            groups = self._able(POSITIONS).groups
            assert groups is not None
            self._groups.check_memory(groups, POSITIONS.partition)

    def _written(self) -> list[TopicPartition]:
        """Return the partitions to which transactions write."""
        positions = [] if self._groups is None else [POSITIONS]
        return [*map(ledger, range(LEDGER_PARTITIONS)), *positions]

    def _is_able(self) -> bool:
        """Whether all partitions can be written."""
        names = [TopicPartition(TRANSACTION_STATE_TOPIC, n) for n in range(self._world.partitions)]
        names += self._written()
        able = all(self._coordinators.able_leader(name) for name in names)
        return able and not any(map(self.history.is_excused, names))

    def _able(self, name: TopicPartition) -> SimulatedBroker:
        leader = self._coordinators.able_leader(name)
        assert leader is not None
        return leader

    def _await_settled(self) -> None:
        problem = ""
        for _ in range(ROUNDS):
            problem = next(self._problems(), "") if self._is_able() else ""
            if not problem:
                return
            self._cluster.run_for(ROUND_MS)
        raise AssertionError(f"TransactionsEnd: {problem}")

    def _problems(self) -> Iterator[str]:
        for producer in self._living():
            if producer.phase is not Phase.IDLE:
                yield f"producer {producer.number} {producer.phase.value}: {producer.transaction}"
        for name in self._ids:
            leader = self._able(self._coordinators.partition_of(name))
            assert leader.transactions is not None
            found = leader.transactions.machine.states.get(name)
            if isinstance(found, Errors):
                yield f"{name} of {leader.broker_id}: {found.name}"
            elif found is not None:
                metadata = found.metadata
                if metadata.state not in EXPIRABLE or metadata.pending_state is not None:
                    yield f"{metadata} of {leader.broker_id}"
        for written in self._written():
            led = self._able(written).replica_manager.partitions[written]
            if led.last_stable_offset < led.high_watermark:
                yield f"{led.topic_partition} is stable up to {led.last_stable_offset}: {led}"


def orders(partition: int) -> TopicPartition:
    """Return a partition that the application consumes."""
    return TopicPartition("orders", partition)
