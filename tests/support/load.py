"""Producers and consumers of a topic, and the history of their operations.

They are librdkafka's: idempotent, ``acks=all``, checksums verified. Each has a thread of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from time import monotonic
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Position

from regent.core.model import TopicPartition
from regent.testing.waits import eventually, scaled
from tests.support.histories import History, Outcome, Read, Send
from tests.support.transaction_load import TransactionLoad

TIMEOUT_S = scaled(60.0)
SILENCE_MS = 5_000  # a paused leader of all partitions is given up after this
BATCH_BYTES = 16 * 1024  # at most; see ``SMALL_SEGMENTS``
_TICK_S = 0.01
_REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_RECORD}
"""Answers after which a record is certainly not in the log."""
_TRANSIENT = {KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
_TRANSIENT |= {KafkaError._TIMED_OUT, KafkaError._RESOLVE, KafkaError._MSG_TIMED_OUT}


class _EpochBumps(logging.Handler):
    """Keeps why a client of librdkafka went on in another producer epoch: the lines of its log."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "epoch bump" in line:
            self.reasons.append(line)


class LoadProducer(threading.Thread):
    """Sends unique values round robin to all partitions, at a constant rate, until stopped.

    ``keys``: how many keys a partition has; 0: none. ``settings`` are librdkafka's.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        history: History,
        *,
        records_per_s: float,
        record_bytes: int,
        keys: int = 0,
        settings: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged = 0
        self.unanswered = 0
        self.failed: Counter[str] = Counter()  # records by the error of their delivery
        self._partitions = partitions
        self._history = history
        self._rate = records_per_s
        self._keys = keys
        self._padding = b"." * record_bytes
        self._stopping = threading.Event()
        self._bumps = _EpochBumps()
        log = logging.getLogger(name)
        log.propagate = False  # a line for each lost connection
        log.setLevel(logging.DEBUG)
        log.addHandler(self._bumps)
        self._client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "enable.idempotence": True,
                "linger.ms": 5,
                # After an outage many records wait to be sent. A batch larger than a segment
                # is refused for good, and librdkafka goes on with another epoch and
                # repeats records in it.
                "batch.size": BATCH_BYTES,
                "message.timeout.ms": int(TIMEOUT_S * 1000),
                "request.timeout.ms": SILENCE_MS,
                "socket.timeout.ms": SILENCE_MS,
                "retry.backoff.ms": 50,
                "log_level": 7,
                "debug": "eos",
                **(settings or {}),
            },
            logger=log,
        )

    def log_in_with(self, user: str, password: str) -> None:
        """Have another password from the next login on."""
        self._client.set_sasl_credentials(user, password)

    def stop(self) -> None:
        """Stop sending; the thread ends when everything is answered."""
        self._stopping.set()

    def run(self) -> None:
        """Produce."""
        started, number = monotonic(), 0
        try:
            while not self._stopping.wait(_TICK_S):
                due = int((monotonic() - started) * self._rate)
                while number < due and not self._stopping.is_set():
                    self._send(number)
                    number += 1
                self._client.poll(0)
        except KafkaException as error:
            self._history.complaints.append(f"{self.name}: {error}")
        self.unanswered = self._client.flush(TIMEOUT_S)
        if self.name not in self._history.repeaters:
            self._history.complaints += (f"{self.name}: {why}" for why in self._bumps.reasons)

    def _send(self, number: int) -> None:
        turn, index = divmod(number, len(self._partitions))
        partition = self._partitions[index]
        key = str(turn % self._keys) if self._keys else None
        value = b"%s-%08d-%s" % (self.name.encode(), number, self._padding)
        send = Send(self.name, number, partition, value)

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                offset = message.offset()
                send.outcome, send.offset = Outcome.ACKNOWLEDGED, -1 if offset is None else offset
                self.acknowledged += 1
                return
            self.failed[error.name()] += 1
            if error.code() in _REFUSALS:
                send.outcome = Outcome.REFUSED
            elif error.code() == KafkaError._AUTHENTICATION:
                self._history.repeaters.add(self.name)
            else:
                self._history.complaints.append(f"{self.name}: {send}: {error}")

        self._history.sends.append(send)
        while True:
            try:
                self._client.produce(
                    *(partition.topic, value, key, partition.partition), on_delivery=on_delivery
                )
            except BufferError:
                self._client.poll(_TICK_S)
            else:
                return


class LoadConsumer(threading.Thread):
    """Reads all partitions from the beginning up to offsets that are given later."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        history: History,
        settings: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._history = history
        self._positions = dict.fromkeys(partitions, 0)
        self._ends: dict[TopicPartition, int] | None = None
        self._deadline = float("inf")
        self._client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                "socket.timeout.ms": SILENCE_MS,
                "log_level": 0,
                **(settings or {}),
            }
        )

    def finish(self, ends: dict[TopicPartition, int], timeout_s: float = TIMEOUT_S) -> None:
        """Read up to these offsets within this time; then the thread ends."""
        self._deadline = monotonic() + timeout_s
        self._ends = ends

    def run(self) -> None:
        """Consume."""
        self._client.assign([Position(t, p, 0) for t, p in self._positions])
        with closing(self._client):
            while not self._is_finished():
                for message in self._client.consume(num_messages=1_000, timeout=0.1):
                    self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                self._history.complaints.append(f"{self.name}: {message.topic()}: {error}")
            return
        topic, number, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert number is not None
        assert offset is not None
        partition = TopicPartition(topic, number)
        self._history.reads.append(Read(self.name, partition, offset, message.value()))
        self._positions[partition] = offset + 1

    def _is_finished(self) -> bool:
        if self._ends is None:
            return False
        is_done = all(self._positions[partition] >= end for partition, end in self._ends.items())
        return is_done or monotonic() > self._deadline


class Load:
    """Producers and consumers of one topic; a context that always stops them.

    ``transactions`` run as long as the producers.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        *,
        producers: int = 2,
        consumers: int = 1,
        records_per_s: float = 1_000,
        record_bytes: int = 100,
        producer_settings: Mapping[str, str | int | float | bool] | None = None,
        consumer_settings: Mapping[str, str | int | float | bool] | None = None,
        transactions: Sequence[TransactionLoad] = (),
    ) -> None:
        self._transactions = transactions
        self.partitions = partitions
        self.history = History()
        self._bootstrap = bootstrap
        self._consumer_settings = consumer_settings
        topic = partitions[0].topic
        self._producers = [
            LoadProducer(
                f"{topic}-producer-{number}",
                bootstrap,
                partitions,
                self.history,
                records_per_s=records_per_s / producers,
                record_bytes=record_bytes,
                settings=producer_settings,
            )
            for number in range(producers)
        ]
        self._consumers = [
            self._new_consumer(f"{topic}-consumer-{number}") for number in range(consumers)
        ]

    def _all_producers(self) -> Iterator[LoadProducer | TransactionLoad]:
        yield from self._producers
        yield from self._transactions

    def _new_consumer(self, name: str) -> LoadConsumer:
        return LoadConsumer(
            name, self._bootstrap, self.partitions, self.history, self._consumer_settings
        )

    def __enter__(self) -> Self:
        for thread in (*self._producers, *self._consumers, *self._transactions):
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop_producers()
        for consumer in self._consumers:
            consumer.finish({})
            consumer.join(TIMEOUT_S)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged records."""
        return sum(producer.acknowledged for producer in self._producers)

    def await_progress(self, records: int = 200, timeout_s: float = TIMEOUT_S) -> None:
        """Wait for this number of further acknowledged records."""
        goal = self.acknowledged + records
        eventually(lambda: self.acknowledged >= goal, f"{records} acknowledged", timeout_s)

    def log_in_producers_with(self, user: str, password: str) -> None:
        """Give all producers another password."""
        for producer in self._all_producers():
            producer.log_in_with(user, password)

    def stop_producers(self) -> None:
        """Stop sending and wait until everything is answered or given up."""
        for producer in self._all_producers():
            producer.stop()
        for transactional in self._transactions:
            transactional.join(3 * TIMEOUT_S)
        for producer in self._producers:
            producer.join(2 * TIMEOUT_S)
            if producer.unanswered:
                self.history.complaints.append(f"{producer.name}: {producer.unanswered} unanswered")

    def finish_consumers(self, ends: dict[TopicPartition, int]) -> None:
        """Let the consumers read to the ends of the logs, and a new one from the beginning."""
        late = self._new_consumer("late")
        late.start()
        for consumer in (*self._consumers, late):
            consumer.finish(ends)
        for consumer in (*self._consumers, late):
            consumer.join(2 * TIMEOUT_S)
