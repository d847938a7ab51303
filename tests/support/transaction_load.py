"""Transactions of librdkafka during faults, and a check that each is whole.

A transaction writes one record to each partition of a topic. Some are aborted on purpose, others
because of a fault. A producer that cannot go on is replaced by one with the same transactional id.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Position

from regent.core.model import TopicPartition
from regent.testing.waits import eventually, scaled
from tests.support.cluster_security import ClientSettings
from tests.support.histories import Violation

TIMEOUT_S = scaled(60.0)
_CALL_S = 10.0
_PAUSE_S = 0.05
_TRANSACTION_TIMEOUT_MS = 20_000


class End(Enum):
    """How a transaction ended."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Transaction:
    """The values are ``{producer}-{number}``, one in each partition."""

    producer: str
    number: int
    end: End = End.UNKNOWN

    @property
    def value(self) -> bytes:
        """What its records have."""
        return f"{self.producer}-{self.number:06d}".encode()


class TransactionLoad(threading.Thread):
    """Runs transactions one after the other until stopped. ``seed`` decides which are aborted."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        seed: float,
        settings: ClientSettings,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.transactions: list[Transaction] = []
        self.complaints: list[str] = []
        self._settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "socket.timeout.ms": 5_000,
            "retry.backoff.ms": 50,
            "log_level": 0,
            **settings,
        }
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._login = threading.Lock()
        self._client: Producer | None = None
        self._last_error: KafkaException | None = None

    @property
    def committed(self) -> int:
        """The number of committed transactions."""
        return sum(done.end is End.COMMITTED for done in self.transactions)

    def log_in_with(self, user: str, password: str) -> None:
        """Have another password from the next login on."""
        with self._login:
            self._settings["sasl.password"] = password
            if self._client is not None:
                self._client.set_sasl_credentials(user, password)

    def await_progress(self, transactions: int = 3) -> None:
        """Wait for this number of further committed transactions."""
        goal = self.committed + transactions

        def is_over() -> bool:
            if self.committed >= goal or not self.is_alive():
                return True
            raise LookupError(f"{self.transactions[-1:]}, the last error: {self._last_error}")

        eventually(is_over, f"{self.name}: {transactions} transactions", TIMEOUT_S)
        assert self.committed >= goal, f"{self.name} has ended: {self.complaints}"

    def stop(self) -> None:
        """Stop after the current transaction; the thread ends when none is open."""
        self._stopping.set()

    def run(self) -> None:
        """Run transactions."""
        number, deadline = 0, monotonic() + TIMEOUT_S
        while not self._stopping.wait(_PAUSE_S):
            done = Transaction(self.name, number)
            number += 1
            self.transactions.append(done)
            try:
                self._run_one(done)
                deadline = monotonic() + TIMEOUT_S
            except KafkaException as error:
                self._last_error = error
                self._client = None  # the next one ends what this one has left open
                if monotonic() > deadline:
                    self.complaints.append(f"{self.name}: no transaction ended: {error}")
                    return
        try:
            self._client = None
            self._producer()  # ends what is open
        except KafkaException as error:
            self.complaints.append(f"{self.name}: the last transaction stays open: {error}")

    def _producer(self) -> Producer:
        if self._client is None:
            with self._login:  # it learns a new password also while it begins
                client = self._client = Producer(self._settings)
            _repeated(lambda: client.init_transactions(_CALL_S))
        return self._client

    def _run_one(self, done: Transaction) -> None:
        client = self._producer()
        client.begin_transaction()
        try:
            for topic, number in self._partitions:
                client.produce(topic, done.value, partition=number)
            if self._chance.random() < 0.8:
                _repeated(lambda: client.commit_transaction(_CALL_S))
                done.end = End.COMMITTED
                return
            # librdkafka may end a transaction that the coordinator has not begun: a fatal error.
            client.flush(_CALL_S)
        except KafkaException as error:
            if not _error_of(error).txn_requires_abort():
                raise
        _repeated(lambda: client.abort_transaction(_CALL_S))
        done.end = End.ABORTED


def _error_of(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


def _repeated(call: Callable[[], Any]) -> None:
    """Call until it does not ask to be called again; raises ``KafkaException``."""
    deadline = monotonic() + TIMEOUT_S
    while True:
        try:
            call()
        except KafkaException as error:
            if not _error_of(error).retriable() or monotonic() > deadline:
                raise
        else:
            return


def read_committed(
    bootstrap: str, partitions: Sequence[TopicPartition], settings: ClientSettings
) -> dict[TopicPartition, list[bytes]]:
    """Return the values that a reader of committed transactions gets, up to the ends.

    Raises ``AssertionError`` if it does not get there: a transaction is still open.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "nobody",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
            **settings,
        }
    )
    consumer.assign([Position(topic, number, 0) for topic, number in partitions])
    values: dict[TopicPartition, list[bytes]] = {partition: [] for partition in partitions}
    reached: dict[TopicPartition, int] = {}

    def is_read() -> bool:
        for message in consumer.consume(1_000, 0.1):
            topic, number, offset = message.topic(), message.partition(), message.offset()
            error, value = message.error(), message.value()
            if topic is None or number is None:
                continue
            partition = TopicPartition(topic, number)
            if error is None:
                values[partition].append(value or b"")
            elif error.code() == KafkaError._PARTITION_EOF and offset is not None:
                reached[partition] = offset
        return all(
            reached.get(partition, -1) >= consumer.get_watermark_offsets(Position(*partition))[1]
            for partition in partitions
        )

    try:
        eventually(is_read, "all committed transactions are read", TIMEOUT_S)
    finally:
        consumer.close()
    return values


def check_transactions(
    loads: Sequence[TransactionLoad], values: Mapping[TopicPartition, Sequence[bytes]]
) -> Iterator[Violation]:
    """Yield what is wrong with what a reader of committed transactions got."""
    for load in loads:
        yield from (Violation("no complaint", complaint) for complaint in load.complaints)
        if load.is_alive():
            yield Violation("no complaint", f"{load.name} does not end")
    transactions = [done for load in loads for done in load.transactions]
    places = {done.value: (done.producer, done.number) for done in transactions}
    counts = {partition: Counter(found) for partition, found in values.items()}
    for partition, found in values.items():
        last: dict[str, int] = {}
        for value in found:
            producer, number = places.get(value, ("", -1))
            if number < 0:
                yield Violation("only sent records are read", f"{partition}: {value!r}")
            elif number < last.get(producer, -1):
                what = f"{partition}: {value!r} after number {last[producer]}"
                yield Violation("transactions are in sequence", what)
            last[producer] = number
    for done in transactions:
        seen = {count[done.value] for count in counts.values()}
        allowed = {
            End.COMMITTED: ({1},),
            End.ABORTED: ({0},),
            End.UNKNOWN: ({0}, {1}),
        }[done.end]
        if seen not in allowed:
            where = {partition: count[done.value] for partition, count in counts.items()}
            yield Violation("transactions are whole", f"{done} was read {where}")
