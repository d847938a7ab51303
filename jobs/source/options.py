"""The options of the data source, named and meant as in Spark's Kafka connector, where it has them.

Spark passes the names in lower case. An invalid option raises ``OptionError`` with a message of one
line, before any connection is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from regent.core.errors import RegentError
from regent.core.model import TopicPartition

CONNECTOR: Final = "Spark's Kafka connector (org.apache.spark:spark-sql-kafka-0-10_2.13)"
EARLIEST: Final = -2  # Kafka's numbers, in JSON and on the wire
LATEST: Final = -1

_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_TRANSACTION: Final = "transactional.id"
_ONE_OF: Final = ("subscribe", "subscribePattern", "assign")
_READ: Final = (
    *_ONE_OF,
    "logDirs",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "includeHeaders",
    "includeUncommitted",
)
BATCH_NUMBER: Final = "batchNumber"  # only write_once sets it
_WRITE: Final = ("topic", BATCH_NUMBER)
_FIXED: Final = {
    "auto.offset.reset": "startingOffsets and failOnDataLoss say where to begin",
    "enable.auto.commit": "a read has no position to keep",
    "enable.auto.offset.store": "a read has no position to keep",
    "enable.partition.eof": "the source needs it",
    "acks": "every write waits for all in-sync replicas",
    "enable.idempotence": "every write is idempotent",
}


class OptionError(RegentError):
    """An option or a column is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: of these topics, of topics that match a regex, or exactly these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def select(self, there: Iterable[TopicPartition], place: str) -> list[TopicPartition]:
        """Return the partitions to read of those in a place, sorted.

        Raises ``OptionError`` if a topic or partition that is named is not there.
        """
        existing = set(there)
        for partition in self.assigned:
            if partition not in existing:
                raise OptionError(f"there is no partition {partition} in {place}")
        found = {partition.topic for partition in existing}
        for topic in self.topics:
            if topic not in found:
                raise OptionError(f"there is no topic {topic} in {place}")
        if self.pattern is not None:
            chosen = {topic for topic in found if re.fullmatch(self.pattern, topic)}
        else:
            chosen = set(self.topics)
        return list(self.assigned) or sorted(p for p in existing if p.topic in chosen)


@dataclass(frozen=True, slots=True)
class OffsetsOption:
    """The start or end of a read: ``EARLIEST`` or ``LATEST`` everywhere, or by partition.

    ``by_partition`` has offsets; these may be ``EARLIEST`` or ``LATEST``, too.
    """

    name: str
    everywhere: int = EARLIEST
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Validated options of a read. ``kafka`` configures librdkafka; if empty, read ``log_dirs``.

    With ``since_ms`` it begins with the first records since that time, not at ``starting``.
    """

    kafka: Mapping[str, str]
    log_dirs: tuple[Path, ...]
    subscription: Subscription
    starting: OffsetsOption
    since_ms: int | None
    ending: OffsetsOption
    fail_on_data_loss: bool
    include_headers: bool
    include_uncommitted: bool


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Validated options of a write. ``topic`` None: use the column.

    ``batch`` is the number of a batch that is written exactly once; None: at least once.
    """

    kafka: Mapping[str, str]
    topic: str | None
    batch: int | None = None


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read. Raises ``OptionError``."""
    given = _Options(options, _READ)
    log_dirs = tuple(Path(name) for name in given.names("logDirs"))
    kafka = given.kafka(is_required=not log_dirs)
    if kafka and log_dirs:
        raise OptionError("set either logDirs or kafka.bootstrap.servers, not both")
    if not log_dirs and given.text("includeUncommitted") is not None:
        raise OptionError("includeUncommitted is for logDirs: for brokers, kafka.isolation.level")
    return ReadOptions(
        kafka=kafka,
        log_dirs=log_dirs,
        subscription=_subscription(given),
        starting=_offsets(given, "startingOffsets", default=EARLIEST, refused=LATEST),
        since_ms=given.number("startingTimestamp"),
        ending=_offsets(given, "endingOffsets", default=LATEST, refused=EARLIEST),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        include_uncommitted=given.flag("includeUncommitted", default=False),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write. Raises ``OptionError``."""
    given = _Options(options, _WRITE)
    kafka, topic = given.kafka(is_required=True), given.text("topic")
    batch = given.number(BATCH_NUMBER)
    if batch is None and _TRANSACTION in kafka:
        raise OptionError(f"kafka.{_TRANSACTION}: only write_once writes in a transaction")
    if batch is not None and topic is None:
        raise OptionError("topic is missing: write_once writes into one topic")
    if batch is not None and not kafka.get(_TRANSACTION, "").strip():
        raise OptionError(f"kafka.{_TRANSACTION} is missing: a name that stays with the query")
    return WriteOptions(kafka, topic, batch)


class _Options:
    """The raw options; looks them up without regard to case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known}
        for name in self._values:
            if name not in names and not name.startswith(_KAFKA):
                text = f"regent has no option {name!r}; it has {', '.join(known)}, kafka.*"
                raise OptionError(f"{text}; {CONNECTOR} has more")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty")
        return None if value is None else value.strip()

    def names(self, name: str) -> list[str]:
        return [n.strip() for n in (self.text(name) or "").split(",") if n.strip()]

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name}={value!r} is neither true nor false")
        return value == "true"

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is not None and not (text.isascii() and text.isdigit()):
            raise OptionError(f"{name}={text!r} is not a number from 0 on")
        return None if text is None else int(text)

    def json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name) or "")
        except ValueError as error:
            raise OptionError(f"{name} is not JSON: {error}") from None
        if not isinstance(value, dict) or not value:
            raise OptionError(f"{name}: expected a JSON object of topics")
        return value

    def kafka(self, *, is_required: bool) -> dict[str, str]:
        """Return the configuration of librdkafka: the options ``kafka.*``."""
        start = len(_KAFKA)
        settings = {n[start:]: v for n, v in self._values.items() if n.startswith(_KAFKA)}
        for name, reason in _FIXED.items():
            if name in settings:
                raise OptionError(f"kafka.{name} cannot be set: {reason}")
        if is_required and not settings.get(_SERVERS, "").strip():
            raise OptionError(f"kafka.{_SERVERS} is missing: HOST:PORT,… of some brokers")
        return settings


def _subscription(given: _Options) -> Subscription:
    named = [name for name in _ONE_OF if given.text(name) is not None]
    if len(named) != 1:
        raise OptionError(f"set exactly one of {', '.join(_ONE_OF)}")
    if named == ["subscribe"]:
        return Subscription(topics=tuple(sorted(set(given.names("subscribe")))))
    if named == ["subscribePattern"]:
        pattern = given.text("subscribePattern") or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(f"subscribePattern={pattern!r}: {error}") from None
        return Subscription(pattern=pattern)
    assigned: set[TopicPartition] = set()
    for topic, numbers in given.json("assign").items():
        if not isinstance(numbers, list) or not numbers:
            raise OptionError(f"assign: topic {topic}: expected a list of partitions")
        assigned |= {TopicPartition(topic, _partition("assign", n)) for n in numbers}
    return Subscription(assigned=tuple(sorted(assigned)))


def _partition(name: str, text: Any) -> int:
    if not re.fullmatch(r"\d{1,9}", str(text), re.ASCII):
        raise OptionError(f"{name}: {text!r} is not a partition")
    return int(text)


def _offsets(given: _Options, name: str, *, default: int, refused: int) -> OffsetsOption:
    words = {"earliest": EARLIEST, "latest": LATEST}
    text = given.text(name)
    if text is None:
        return OffsetsOption(name, default)
    if text.lower() in words:
        option = OffsetsOption(name, words[text.lower()])
    elif text.startswith("{"):
        option = OffsetsOption(name, by_partition=_offset_table(given, name))
    else:
        raise OptionError(f'{name}={text!r}: earliest, latest or {{"topic": {{"0": 23}}}}')
    if refused in (option.by_partition.values() or (option.everywhere,)):
        word = "end at the earliest" if refused == EARLIEST else "begin at the latest"
        raise OptionError(f"{name}: a batch read cannot {word} offset")
    return option


def _offset_table(given: _Options, name: str) -> dict[TopicPartition, int]:
    """Return ``{"topic": {"0": 23}}`` by partition."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in given.json(name).items():
        if not isinstance(numbers, dict):
            raise OptionError(f'{name}: topic {topic}: expected {{"partition": offset}}')
        for partition, offset in numbers.items():
            key = TopicPartition(topic, _partition(name, partition))
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < EARLIEST:
                raise OptionError(f"{name}: {offset!r} of {key} is not an offset")
            found[key] = offset
    return found
