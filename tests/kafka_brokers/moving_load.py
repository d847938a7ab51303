"""Clients that run while a cluster moves between the kinds of broker, and what they must see."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

from regent.core.model import TopicPartition
from regent.testing.waits import eventually, scaled
from tests.support.histories import History, Outcome, check, summary
from tests.support.load import TIMEOUT_S, LoadConsumer, LoadProducer
from tests.support.record_batches import Record

Settings = Mapping[str, str | int | float | bool]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACTED, COPIES, GROUP, COPIERS = "compacted", "copies", "readers", "copiers"
PARTITIONS: Final = 2
TOPICS: Final = (*CODECS, COMPACTED, COPIES)
_SOURCE: Final = CODECS[0]
_KEYS: Final = 30
_POLL_S: Final = 0.2
_BATCH: Final = 40
_ABORT_EVERY: Final = 5
_SEND_OFFSETS_S: Final = scaled(5.0)
"""librdkafka may never return from this call when a broker has died, of either kind: it waits for
the coordinator that it remembers, and ignores the limit (its issues 5456 and 5511)."""
_ONE_IN_FLIGHT: Final = {"max.in.flight": 1}
"""After an election a leader of Kafka may refuse the second of two requests in flight with
OUT_OF_ORDER_SEQUENCE_NUMBER. Then librdkafka begins another producer epoch, also in a cluster of
Kafka alone, and repeats what the former leader had appended without an acknowledgement."""
_HAS_ENDED: Final = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._FATAL}


def partitions_of(*topics: str) -> list[TopicPartition]:
    """Return the partitions of topics."""
    return [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]


def position_of(message: Message) -> tuple[TopicPartition, int]:
    """Return where a record is."""
    topic, number, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert number is not None
    assert offset is not None
    return TopicPartition(topic, number), offset


def _end(client: Consumer, partition: TopicPartition) -> tuple[int]:
    """Ask a leader; the client does not ask again after a change of leader."""
    try:
        position = Position(partition.topic, partition.partition)
        return (client.get_watermark_offsets(position, TIMEOUT_S)[1],)
    except KafkaException as error:
        raise LookupError(error) from None


class Member(threading.Thread):
    """A member of a group: it reads the source, and commits what it has read."""

    def __init__(self, name: str, settings: Settings, commits: Commits) -> None:
        super().__init__(name=name, daemon=True)
        self._commits = commits
        self._stopping = threading.Event()
        self._client = Consumer(
            {
                **settings,
                "client.id": name,
                "group.id": GROUP,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6_000,
                "log_level": 0,
            }
        )

    def stop(self) -> None:
        """Leave the group."""
        self._stopping.set()

    def run(self) -> None:
        """Read and commit."""
        self._client.subscribe([_SOURCE])
        while not self._stopping.is_set():
            found = self._client.consume(_BATCH, _POLL_S)
            read = [position_of(message) for message in found if message.error() is None]
            self._commits.note_reads(read)
            if read:
                self._commit({partition: offset + 1 for partition, offset in read})
        self._client.close()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        positions = [Position(p.topic, p.partition, offset) for p, offset in offsets.items()]
        try:
            answered = self._client.commit(offsets=positions, asynchronous=False)
        except KafkaException:
            return  # the member reads these records again, or another one does
        accepted = {p.partition for p in answered or () if p.error is None}
        self._commits.note_commits({p: o for p, o in offsets.items() if p.partition in accepted})


class Commits:
    """What the members of the group have read, and which of their commits were acknowledged."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self.read: dict[TopicPartition, set[int]] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.count = 0
        self._lock = threading.Lock()

    def note_reads(self, read: Sequence[tuple[TopicPartition, int]]) -> None:
        """Note records; each must be at or after the acknowledged position of the group."""
        with self._lock:
            for partition, offset in read:
                if offset < self.committed.get(partition, 0):
                    committed = self.committed[partition]
                    self.complaints.append(f"{partition}: read {offset} after {committed}")
                self.read.setdefault(partition, set()).add(offset)

    def note_commits(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note an acknowledged commit."""
        with self._lock:
            self.committed |= offsets
            self.count += len(offsets)


class Copier(threading.Thread):
    """Copies the source to another topic in transactions, positions too; aborts some of them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name=COPIERS, daemon=True)
        self.complaints: list[str] = []
        self.committed = self.aborted = self.given_up = 0
        self._stopping = threading.Event()
        self._settings = settings
        self._consumer = Consumer(
            {
                **settings,
                "group.id": COPIERS,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 20_000,
                "log_level": 0,
            }
        )

    def stop(self) -> None:
        """Stop after the present transaction."""
        self._stopping.set()

    def run(self) -> None:
        """Copy."""
        self._consumer.subscribe([_SOURCE])
        producer: Producer | None = None
        while not self._stopping.is_set():
            found = self._consumer.consume(_BATCH, _POLL_S)
            records = [message for message in found if message.error() is None]
            if not records:
                continue
            try:
                producer = producer or self._new_producer()
                self._copy(producer, records)
            except TimeoutError:
                self.given_up += 1
                producer = None  # the next one has the same id: it ends this transaction
                self._rewind(records)
            except KafkaException as error:
                self.aborted += 1
                if not self._is_aborted(producer, error.args[0]):
                    producer = None
                self._rewind(records)
        self._consumer.close()

    def _new_producer(self) -> Producer:
        producer = Producer(
            {**self._settings, "transactional.id": COPIERS, "linger.ms": 5, "log_level": 0}
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _copy(self, producer: Producer, records: Sequence[Message]) -> None:
        producer.begin_transaction()
        for message in records:
            value, partition = message.value(), message.partition()
            assert partition is not None
            producer.produce(COPIES, value, partition=partition)
        if (self.committed + self.aborted) % _ABORT_EVERY == _ABORT_EVERY - 1:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
            self.aborted += 1
            self._rewind(records)
            return
        ends = dict(position_of(message) for message in records)
        offsets = [Position(p.topic, p.partition, offset + 1) for p, offset in ends.items()]
        self._send_offsets(producer, offsets)
        while True:
            try:
                producer.commit_transaction(TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                break
        self.committed += 1

    def _send_offsets(self, producer: Producer, offsets: list[Position]) -> None:
        """Raise ``TimeoutError`` when librdkafka does not return; its thread and producer stay."""
        group = self._consumer.consumer_group_metadata()
        ended: Future[None] = Future()

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(offsets, group, _SEND_OFFSETS_S)
            except KafkaException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        threading.Thread(target=send, name=f"{COPIERS} send offsets", daemon=True).start()
        ended.result(2 * _SEND_OFFSETS_S)

    def _is_aborted(self, producer: Producer | None, error: KafkaError) -> bool:
        """Abort after an error; tell whether the producer can be used again."""
        if producer is None or error.fatal() or error.code() in _HAS_ENDED:
            self.complaints.append(f"the copier: {error}")
            return False
        try:
            producer.abort_transaction(TIMEOUT_S)
        except KafkaException as again:
            self.complaints.append(f"the copier cannot abort: {again}, after {error}")
            return False
        return True

    def _rewind(self, records: Sequence[Message]) -> None:
        """Read the records of an aborted transaction again."""
        for message in reversed(records):
            partition, offset = position_of(message)
            try:
                self._consumer.seek(Position(partition.topic, partition.partition, offset))
            except KafkaException:
                continue  # another member has it now; there is none, so it comes back


class MovingLoad:
    """All clients together. A context that ends them; ``finish`` says what was broken."""

    def __init__(self, settings: Settings, records_per_s: float = 30) -> None:
        self._settings = settings
        self.history, self.of_keys, self.of_copies = History(), History(), History()
        self.commits = Commits()
        self.copier = Copier(settings)
        server = str(settings["bootstrap.servers"])
        self._server = server
        self._producers = [
            LoadProducer(
                *(f"of-{topic}", server, partitions_of(topic), history),
                records_per_s=records_per_s,
                record_bytes=100,
                keys=_KEYS if topic == COMPACTED else 0,
                settings={**settings, "compression.type": codec, **_ONE_IN_FLIGHT},
            )
            for topic, codec, history in (
                *((codec, codec, self.history) for codec in CODECS),
                (COMPACTED, "zstd", self.of_keys),
            )
        ]
        self._consumers = [self._consumer("reader", CODECS, self.history)]
        self._consumers += [self._consumer("committed", (COPIES,), self.of_copies)]
        self._members = [Member(f"member-{n}", settings, self.commits) for n in range(2)]

    def _consumer(self, name: str, topics: Sequence[str], history: History) -> LoadConsumer:
        return LoadConsumer(name, self._server, partitions_of(*topics), history, self._settings)

    def __enter__(self) -> Self:
        for thread in (*self._producers, *self._consumers, *self._members, self.copier):
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with ExitStack() as stack:
            stoppable: tuple[Member | Copier, ...] = (*self._members, self.copier)
            for thread in stoppable:
                stack.callback(thread.join, TIMEOUT_S)
                thread.stop()
            for consumer in self._consumers:
                stack.callback(consumer.join, TIMEOUT_S)
                consumer.finish({})
            self._stop_producers()

    def counts(self) -> dict[str, int]:
        """Return how much each client has done."""
        of = {producer.name: producer.acknowledged for producer in self._producers}
        return {
            **of,
            "commits": self.commits.count,
            "transactions": self.copier.committed,
            "aborted": self.copier.aborted,
            "given up": self.copier.given_up,
            "copies": len(self.of_copies.reads),
        }

    def await_progress(self, count: int = 20) -> None:
        """Wait until each client has done some more."""
        before = self.counts()

        def lagging() -> list[str]:
            now = self.counts()
            steps = dict.fromkeys(now, count) | {
                "commits": 2,
                "transactions": 2,
                "aborted": 0,
                "given up": 0,
            }
            return [name for name, step in steps.items() if now[name] - before[name] < step]

        def are_going_on() -> bool:
            if names := lagging():
                raise LookupError(f"these do not: {names}")
            return True

        eventually(are_going_on, "all clients go on", TIMEOUT_S)

    def finish(self) -> str:
        """Let all clients come to the end; return what was broken, empty if nothing."""
        self._stop_producers()
        sent = self._acknowledged(_SOURCE)
        eventually(self._group_is_at_the_end, "the group has no lag", TIMEOUT_S)
        eventually(lambda: sent <= self._copied().keys(), "all is copied", TIMEOUT_S)
        ends = self._ends(*CODECS)
        self._consumers[0].finish(ends)
        late = self._consumer("late", CODECS, self.history)
        late.start()
        late.finish(ends)
        for consumer in (self._consumers[0], late):
            consumer.join(TIMEOUT_S)
        logs = {partition: {0: self._log(partition)} for partition in ends}
        complaints = [*self.commits.complaints, *self.copier.complaints]
        complaints += self.of_keys.complaints + self.of_copies.complaints
        complaints += [f"{v!r} is copied {n} times" for v, n in self._copied().items() if n != 1]
        complaints += self._unread_by_the_group(ends)
        complaints += self._stale_keys()
        return "\n".join((*complaints, summary(check(self.history, logs)))).strip()

    def _stop_producers(self) -> None:
        for producer in self._producers:
            producer.stop()
        for producer in self._producers:
            producer.join(2 * TIMEOUT_S)
            if producer.unanswered:
                self.history.complaints.append(f"{producer.name}: {producer.unanswered} unanswered")
            if producer.failed:  # librdkafka goes on in another epoch, and may repeat records in it
                self.history.complaints.append(f"{producer.name}: {dict(producer.failed)}")

    def _acknowledged(self, topic: str) -> set[bytes]:
        return {
            send.value
            for send in self.history.sends
            if send.partition.topic == topic and send.outcome is Outcome.ACKNOWLEDGED
        }

    def _copied(self) -> Counter[bytes | None]:
        return Counter(read.value for read in list(self.of_copies.reads))

    def _ends(self, *topics: str) -> dict[TopicPartition, int]:
        client = Consumer({**self._settings, "group.id": "ends", "log_level": 0})
        ends = {}
        for partition in partitions_of(*topics):
            what = f"the end of {partition} is known"
            ends[partition] = eventually(partial(_end, client, partition), what, TIMEOUT_S)[0]
        client.close()
        return ends

    def _group_is_at_the_end(self) -> bool:
        ends = self._ends(_SOURCE)
        return all(self.commits.committed.get(p) == end for p, end in ends.items())

    def _unread_by_the_group(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        return [
            f"{partition}: the group has not read {sorted(missing)[:5]}"
            for partition in partitions_of(_SOURCE)
            if (missing := set(range(ends[partition])) - self.commits.read.get(partition, set()))
        ]

    def _log(self, partition: TopicPartition) -> list[Record]:
        """Return the log as the late consumer read it; replicas are compared byte for byte."""
        return [
            Record(read.offset, 0, None, read.value)
            for read in self.history.reads
            if read.consumer == "late" and read.partition == partition
        ]

    def _stale_keys(self) -> list[str]:
        """Return keys whose newest acknowledged record is not the newest one in the log."""
        expected: dict[tuple[TopicPartition, int], bytes] = {}
        for send in self.of_keys.sends:
            if send.outcome is Outcome.ACKNOWLEDGED:
                key = send.number // PARTITIONS % _KEYS
                expected[send.partition, key] = send.value
        found: dict[tuple[TopicPartition, int], bytes | None] = {}
        client = Consumer({**self._settings, "group.id": "keys", "log_level": 0})
        for partition, end in self._ends(COMPACTED).items():
            client.assign([Position(partition.topic, partition.partition, 0)])
            offset = -1
            while offset < end - 1:
                (message,) = client.consume(1, TIMEOUT_S)
                assert message.error() is None, message.error()
                _, offset = position_of(message)
                found[partition, int(message.key() or b"")] = message.value()
        client.close()
        return [f"{key}: {found.get(key)!r}" for key in expected if found.get(key) != expected[key]]
