"""Reads through the Kafka protocol, with librdkafka, from any Kafka cluster.

librdkafka follows changes of leaders. While a partition has no leader, no records arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

import pyarrow as pa
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPosition
from confluent_kafka.admin import AdminClient, OffsetSpec

from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.jobs.source.arrow_rows import message_batch
from regent.jobs.source.offset_range import OffsetRange, report_data_loss
from regent.jobs.source.options import OptionError, Subscription

T = TypeVar("T")

_ROWS: Final = 10_000  # in a record batch for Spark
_POLL_S: Final = 0.1  # how long such a batch may take to fill
_REQUEST_S: Final = 10.0
_FIRST_REQUEST_S: Final = 1.0  # short, because the leader may be dead
_PATIENCE_S: Final = 30.0  # time for the election of another leader
_NEW_TOPIC_S: Final = 2.0  # time until every broker knows it
_PAUSE_S: Final = 0.2
_NO_OFFSET: Final = -1
_EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_UNKNOWN: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_GONE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
_CONSUMER: Final = {
    "group.id": "regent-data-source",  # librdkafka requires it; it is not used
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 32 * 1024,
}
_FIXED: Final = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "log_level": 0,  # problems are reported as errors
}


class BrokersError(RegentError):
    """The brokers did not answer in time; the message ends with their last error."""


class KafkaPort:
    """Implements ``record_store.RecordStore``."""

    def __init__(
        self, settings: Mapping[str, str], *, fail_on_data_loss: bool, poll_timeout_s: float
    ) -> None:
        """Make no connection yet; ``settings`` are librdkafka's."""
        self._settings = dict(settings)
        self._fail_on_data_loss = fail_on_data_loss
        self._poll_timeout_s = poll_timeout_s
        self._admin_client: AdminClient | None = None
        self._metadata_client: Consumer | None = None
        self._trouble: KafkaError | None = None

    def close(self) -> None:
        """Close the connections."""
        self._admin_client = None
        if self._metadata_client is not None:
            self._metadata_client.close()
            self._metadata_client = None

    # --- partitions and offsets ---

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions that a subscription matches; see ``RecordStore``."""
        if subscription.pattern is not None:
            topics = self._retried(lambda: self._metadata.list_topics(timeout=_REQUEST_S).topics)
            return sorted(
                TopicPartition(name, number)
                for name, topic in topics.items()
                if subscription.matches(name)
                for number in topic.partitions
            )
        assigned = subscription.assigned
        names = subscription.topics or sorted({topic for topic, _ in assigned})
        deadline = time.monotonic() + _NEW_TOPIC_S
        counts = self._retried(lambda: self._partition_counts(names, deadline))
        for topic, number in assigned:
            if number >= counts[topic]:
                there = f"topic {topic} has {counts[topic]} partitions"
                raise OptionError(f"{there}: there is no partition {number}")
        return list(assigned) or [
            TopicPartition(name, number) for name in names for number in range(counts[name])
        ]

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each log."""
        return self._offsets(dict.fromkeys(partitions, _EARLIEST))

    def latest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark of each partition."""
        return self._offsets(dict.fromkeys(partitions, _LATEST))

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record since a time."""
        specs = {p: OffsetSpec.for_timestamp(time_ms) for p, time_ms in times.items()}
        found = self._offsets(specs)
        return {p: None if offset == _NO_OFFSET else offset for p, offset in found.items()}

    def without_old(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges from their first record that is young enough."""
        times = {r.partition: r.since_ms for r in ranges if r.since_ms >= 0}
        first = self.at_times(times) if times else {}
        young = []
        for wanted in ranges:
            start = first.get(wanted.partition, wanted.start)
            start = wanted.end if start is None else min(start, wanted.end)
            young.append(replace(wanted, start=max(wanted.start, start)))
        return young

    @property
    def _admin(self) -> AdminClient:
        if self._admin_client is None:
            self._admin_client = AdminClient({**self._settings, "log_level": 0})
        return self._admin_client

    @property
    def _metadata(self) -> Consumer:
        # An admin client that names a topic may make brokers create it.
        if self._metadata_client is None:
            self._metadata_client = Consumer({**_CONSUMER, **self._settings, "log_level": 0})
        return self._metadata_client

    def _partition_counts(self, names: Sequence[str], deadline: float) -> dict[str, int]:
        """Return the partition count of each topic; raise if one is unknown at the deadline."""
        only = {"topic": names[0]} if len(names) == 1 else {}
        topics = self._metadata.list_topics(**only, timeout=_REQUEST_S).topics
        counts = {}
        for name in names:
            error = topics[name].error if name in topics else KafkaError(_UNKNOWN[0])
            is_unknown = error is not None and error.code() in _UNKNOWN
            if is_unknown and time.monotonic() >= deadline:
                raise OptionError(f"there is no topic {name}")
            if error is not None:
                raise KafkaException(error)
            counts[name] = len(topics[name].partitions)
        return counts

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        missing, found = dict(specs), dict[TopicPartition, int]()
        patience_s = _FIRST_REQUEST_S

        def ask() -> dict[TopicPartition, int]:
            nonlocal patience_s
            if missing:
                requested = {KafkaPosition(*p): spec for p, spec in missing.items()}
                futures = self._admin.list_offsets(requested, request_timeout=patience_s)
                problem: KafkaException | None = None
                for position, future in futures.items():
                    try:
                        offset = future.result().offset
                    except KafkaException as error:
                        problem = error
                        continue
                    if offset == OFFSET_INVALID:
                        problem = KafkaException(KafkaError(KafkaError._TIMED_OUT))
                        continue
                    partition = TopicPartition(position.topic, position.partition)
                    found[partition] = offset
                    del missing[partition]
                if problem is not None:
                    # The same client would ask the former leader for minutes.
                    self._admin_client = None
                    patience_s = min(2 * patience_s, _REQUEST_S)
                    raise problem
            return found

        return self._retried(ask)

    def _retried(self, ask: Callable[[], T]) -> T:
        """Return the answer to a request; retry while a partition gets another leader."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except KafkaException as error:
                problem = error.args[0]
            if time.monotonic() > deadline:
                servers = self._settings["bootstrap.servers"]
                raise BrokersError(f"the brokers at {servers} did not answer: {problem.str()}")
            time.sleep(_PAUSE_S)

    # --- records ---

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range; see ``RecordStore``."""
        position = wanted.start
        with self._consumer(wanted.partition, position) as consumer:
            deadline = time.monotonic() + self._poll_timeout_s
            while position < wanted.end:
                polled = consumer.consume(min(_ROWS, wanted.end - position), _POLL_S)
                problems = [message for message in polled if message.error() is not None]
                messages = [m for m in polled if m.error() is None] if problems else polled
                if messages:
                    deadline = time.monotonic() + self._poll_timeout_s
                    position = (messages[-1].offset() or 0) + 1
                    if position > wanted.end:
                        messages = [m for m in messages if (m.offset() or 0) < wanted.end]
                    if messages:
                        yield message_batch(messages, wanted.partition, schema)
                for problem in problems:
                    position = self._after(problem, consumer, wanted, position)
                if time.monotonic() > deadline:
                    self._give_up(wanted, position)
                    return

    def _after(
        self, problem: Message, consumer: Consumer, wanted: OffsetRange, position: int
    ) -> int:
        """Return the offset to continue at after an event that is not a record."""
        error = problem.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            # After the last record there may be offsets without records: markers, or compacted
            # ones.
            return max(position, problem.offset() or 0)
        if error.code() in _GONE:
            return self._behind_a_gap(consumer, wanted, position)
        if error.code() in _UNKNOWN:
            report_data_loss(
                f"{wanted.partition}: the topic is gone", is_error=self._fail_on_data_loss
            )
            return wanted.end
        if error.fatal() or not error.retriable():
            self._trouble = error
        return position

    def _behind_a_gap(self, consumer: Consumer, wanted: OffsetRange, position: int) -> int:
        """Return the next offset with a record when there is none at ``position``."""
        end = wanted.end
        earliest = self.earliest([wanted.partition])[wanted.partition]
        until = min(earliest, end) if earliest > position else end
        report_data_loss(
            f"{wanted.partition}: offsets {position} to {until - 1} are gone",
            is_error=self._fail_on_data_loss,
        )
        if until < end:
            consumer.assign([KafkaPosition(*wanted.partition, until)])  # it stopped at this offset
        return until

    def _give_up(self, wanted: OffsetRange, position: int) -> None:
        end = self.latest([wanted.partition])[wanted.partition]
        where = f"{wanted.partition}: offsets {position} to {wanted.end - 1}"
        if end < wanted.end:
            text = f"{where} are gone, the log ends at {end}"
            report_data_loss(text, is_error=self._fail_on_data_loss)
            return
        trouble = f": {self._trouble.str()}" if self._trouble is not None else ""
        raise BrokersError(f"{where} did not arrive within {self._poll_timeout_s:g} s{trouble}")

    @contextmanager
    def _consumer(self, topic_partition: TopicPartition, offset: int) -> Iterator[Consumer]:
        consumer = Consumer(
            {**_CONSUMER, **self._settings, **_FIXED, "error_cb": self._note_trouble}
        )
        try:
            consumer.assign([KafkaPosition(*topic_partition, offset)])
            yield consumer
        finally:
            consumer.close()

    def _note_trouble(self, error: KafkaError) -> None:
        self._trouble = error
