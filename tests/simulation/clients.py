"""Random producers and consumers, of which most retry.

The topic decides which producers its partitions have. Those of topic-0 use ``acks=1`` and do not
retry. Those of topic-1 use ``acks=all`` and retry what was not acknowledged; its records are
deleted too. All others are idempotent: each record is there exactly once, and in order.
Those of topic-4 and topic-5 have several batches in flight.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.client import ACKS_ALL, ACKS_LEADER, ConsumerFetch, ConsumerPosition
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.simulation.application_topics import APPLICATION_TOPICS
from tests.simulation.broker import SimulatedBroker
from tests.simulation.client_requests import (
    ConsumeRequest,
    ConsumeResponse,
    DeleteRecordsRequest,
    ProduceRequest,
    ProduceResponse,
)
from tests.simulation.cluster import Cluster
from tests.simulation.network import AnswerBody, Exchange
from tests.simulation.pipelining import (
    LOST_PLACES,
    MAX_IN_FLIGHT,
    REQUEST_TIMEOUT_MS,
    PipeliningProducer,
)
from tests.simulation.record_history import RecordHistory
from tests.support.record_batches import batch

CARELESS_TOPIC, PLAIN_TOPIC = "topic-0", "topic-1"
PIPELINED_TOPICS = ("topic-4", "topic-5")
LAST_ATTEMPTS = 16  # a follower may fetch too late for a producer several times in a row
ATTEMPT_MS = 6_000  # longer than a produce request, and than the time between two fetches
MAX_BATCHES = 150  # of a history, to bound its duration
MAX_BYTES = (100, 200, 1_000_000)
MAX_BURST = 6
FAVOURITE_PROBABILITY = 0.6
FAVOURITES = 3
MISTAKE_PROBABILITY = 0.1
LATEST = 2**62


@dataclass(slots=True)
class Batch:
    """A batch that a producer has to send."""

    values: tuple[bytes, ...]
    sequence: int


class Producer:
    """Writes to one partition: one batch at a time, until it is acknowledged."""

    def __init__(self, name: TopicPartition, producer_id: int, acks: int) -> None:
        self.name = name
        self.acks = acks
        self.pending: Batch | None = None
        self.exchange: Exchange | None = None
        self.sequence = 0
        self.producer_id = producer_id  # -1: it is not idempotent

    @property
    def has_room(self) -> bool:
        """Whether it has no batch to send."""
        return self.pending is None

    def take(self, values: tuple[bytes, ...]) -> None:
        """Set the next batch."""
        self.pending = Batch(values, self.sequence if self.producer_id >= 0 else -1)

    def request(self) -> ProduceRequest:
        """Return the request for the pending batch."""
        assert self.pending is not None
        data = batch(
            *self.pending.values,
            producer_id=self.producer_id,
            producer_epoch=0 if self.producer_id >= 0 else -1,
            base_sequence=self.pending.sequence,
        )
        return ProduceRequest(self.name, self.acks, data)

    def done(self) -> None:
        """Forget the pending batch: it was acknowledged or given up."""
        assert self.pending is not None
        self.sequence += len(self.pending.values)
        self.pending = None

    def start_over(self, producer_id: int) -> None:
        """Send the pending batch with another producer id, from sequence 0 on."""
        assert self.pending is not None
        self.producer_id, self.sequence = producer_id, 0
        self.pending.sequence = 0


AnyProducer: TypeAlias = Producer | PipeliningProducer


class Clients:
    """All producers and consumers; ``note`` writes the history."""

    def __init__(
        self,
        cluster: Cluster,
        dice: random.Random,
        records: RecordHistory,
        note: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._random = dice
        self._records = records
        self._note = note
        self._numbers = itertools.count(1)
        self._producer_ids = itertools.count(1_000)
        self._batches = 0
        self._producers: dict[TopicPartition, AnyProducer] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._actions = [
            *[self._produce] * 6,
            *[self._consume] * 3,
            self._delete_records,
        ]

    def act(self) -> None:
        """Let a few random clients act."""
        for _ in range(self._random.randrange(1, MAX_BURST + 1)):
            self._random.choice(self._actions)()

    # --- producers ---

    def _produce(self) -> None:
        found = self._a_partition()
        if found is None:
            return
        name, leader = found
        producer = self._producers.get(name)
        if producer is None:
            producer = self._producers[name] = self._new_producer(name)
        at_once = 1 if isinstance(producer, Producer) else self._random.randint(1, MAX_IN_FLIGHT)
        for _ in range(at_once):
            if producer.has_room and self._batches < MAX_BATCHES:
                self._batches += 1
                count = self._random.choice((1, 1, 1, 2, 3))
                producer.take(tuple(b"%d" % next(self._numbers) for _ in range(count)))
        if producer.pending:
            self._send_to(producer, leader)

    def _new_producer(self, name: TopicPartition) -> AnyProducer:
        if name.topic in PIPELINED_TOPICS:
            network, time = self._cluster.network, self._cluster.time
            producer_id = next(self._producer_ids)
            return PipeliningProducer(name, producer_id, network, lambda: time.now_ms, self._note)
        if name.topic == CARELESS_TOPIC:
            return Producer(name, -1, ACKS_LEADER)
        is_plain = name.topic == PLAIN_TOPIC
        return Producer(name, -1 if is_plain else next(self._producer_ids), ACKS_ALL)

    def _send_to(self, producer: AnyProducer, leader: BrokerId) -> None:
        if isinstance(producer, Producer):
            self._send(producer, leader)
        else:
            producer.send(self._cluster.brokers[leader].client_endpoint)

    def _send(self, producer: Producer, leader: BrokerId) -> None:
        waiting = producer.exchange
        if waiting is not None and not waiting.is_over:
            if self._cluster.now_ms - waiting.sent_ms < REQUEST_TIMEOUT_MS:
                return
            waiting.give_up()
        pending = producer.pending
        assert pending is not None
        broker = self._cluster.brokers[leader]
        self._note("produce %s to %s of %d", pending, producer.name, leader)

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ProduceResponse)
            self._on_produced(producer, leader, answer)

        producer.exchange = self._cluster.network.ask(
            None, broker.client_endpoint, producer.request(), on_answer
        )

    def _on_produced(self, producer: Producer, asked: BrokerId, answer: ProduceResponse) -> None:
        error = answer.outcome.error_code
        self._note("  %s: %s at %d", producer.name, error.name, answer.outcome.base_offset)
        is_careless = producer.acks == ACKS_LEADER
        if error is Errors.NONE or is_careless:
            producer.done()
        elif error in LOST_PLACES and self._leads(asked, producer.name):
            known = self._records.latest(producer.name)
            is_excused = known is None or known.is_excused(producer.producer_id)
            assert is_excused, f"{producer.name}: producer {producer.producer_id}: {error.name}"
            producer.start_over(next(self._producer_ids))

    def _leads(self, broker_id: BrokerId, name: TopicPartition) -> bool:
        """Whether a broker leads in the present leader epoch, so that it knows the last batches."""
        state = self._cluster.state(name)
        broker = self._cluster.brokers.get(broker_id)
        partition = None if broker is None else broker.replica_manager.partitions.get(name)
        return (
            state is not None
            and partition is not None
            and state.leader_and_isr.leader == broker_id
            and state.leader_and_isr.leader_epoch == partition.leader_epoch
        )

    # --- consumers and others ---

    def _consume(self) -> None:
        found = self._a_partition()
        if found is None:
            return
        name, leader = found
        offset = self._positions.get(name, 0)
        if self._random.random() < MISTAKE_PROBABILITY:
            offset = self._random.randrange(20)
        position = ConsumerPosition(offset, self._random.choice(MAX_BYTES))
        request = ConsumeRequest(ConsumerFetch({name: position}), self._random.random() < 0.5)

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ConsumeResponse)
            self._on_consumed(name, offset, answer)

        endpoint = self._cluster.brokers[leader].client_endpoint
        self._cluster.network.ask(None, endpoint, request, on_answer)

    def _on_consumed(self, name: TopicPartition, offset: int, answer: ConsumeResponse) -> None:
        outcome = answer.partitions[name]
        if outcome.error_code is Errors.OFFSET_OUT_OF_RANGE:
            self._positions.pop(name, None)
        elif outcome.error_code is Errors.NONE:
            self._positions[name] = max(offset, min(outcome.high_watermark, offset + 5))

    def _delete_records(self) -> None:
        found = self._a_partition()
        if found is None or found[0].topic not in (CARELESS_TOPIC, PLAIN_TOPIC):
            return
        name, leader = found
        offset = self._random.choice((-1, self._random.randrange(20)))
        self._note("delete records of %s below %d", name, offset)
        endpoint = self._cluster.brokers[leader].client_endpoint
        request = DeleteRecordsRequest(name, offset)
        self._cluster.network.ask(None, endpoint, request, lambda answer: None)

    def _a_partition(self) -> tuple[TopicPartition, BrokerId] | None:
        """Return a partition and its leader, as in some broker's metadata cache."""
        brokers = [b for _, b in sorted(self._cluster.brokers.items())]
        if not brokers:
            return None
        snapshot = self._random.choice(brokers).cache.snapshot
        led = [
            (name, row.leader)
            for name, row in sorted(snapshot.partitions.items())
            if row.leader in self._cluster.brokers and name.topic not in APPLICATION_TOPICS
        ]
        if not led:
            return None
        is_favourite = self._random.random() < FAVOURITE_PROBABILITY
        name, leader = self._random.choice(led[:FAVOURITES] if is_favourite else led)
        if self._random.random() < MISTAKE_PROBABILITY:
            leader = self._random.choice(brokers).broker_id
        return name, leader

    # --- the end ---

    def finish(self) -> None:
        """Send what is pending, without faults; then check that no broker owes an answer."""
        for _ in range(LAST_ATTEMPTS):
            unfinished = self._unfinished()
            if not unfinished:
                break
            for producer, leader in unfinished:
                self._send_to(producer, leader)
            self._cluster.run_until_quiet(ATTEMPT_MS)
            if not self._unfinished():  # followers get the new high watermark too
                self._cluster.run_until_quiet()
        for producer, _ in self._unfinished():
            raise AssertionError(f"{producer.name}: no broker accepts {producer.pending}")
        for broker in self._cluster.brokers.values():
            overdue = {
                exchange: until_ms
                for exchange, until_ms in broker.record_server.waiting.items()
                if until_ms < self._cluster.now_ms
            }
            assert not overdue, f"broker {broker.broker_id} owes {overdue}"

    def _unfinished(self) -> list[tuple[AnyProducer, BrokerId]]:
        """Return the producers with pending batches that their leaders can accept."""
        found: list[tuple[AnyProducer, BrokerId]] = []
        for producer in self._producers.values():
            leader = self._leader(producer) if producer.pending else None
            if leader is not None:
                isr = leader.replica_manager.partitions[producer.name].isr
                if len(isr) >= self._min_isr(leader, producer.name):
                    found.append((producer, leader.broker_id))
        return found

    def _leader(self, producer: AnyProducer) -> SimulatedBroker | None:
        """Return the leader; None too if the topic is queued for deletion."""
        if self._cluster.zookeeper.node(DeleteTopicsTopicZNode.path(producer.name.topic)):
            return None
        state = self._cluster.state(producer.name)
        return None if state is None else self._cluster.brokers.get(state.leader_and_isr.leader)

    @staticmethod
    def _min_isr(leader: SimulatedBroker, name: TopicPartition) -> int:
        log = leader.disk.get(name)
        return 0 if log is None else log.config.min_insync_replicas
