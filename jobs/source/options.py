"""Parses and validates the options of the data source, named as in Spark's Kafka connector.

Spark passes option names in lower case. An invalid option raises ``OptionError`` with a message of
one line, before any connection is made.
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

EARLIEST: Final = -2  # Kafka's numbers, in JSON and on the wire
LATEST: Final = -1

_KAFKA: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_POLL_TIMEOUT: Final = "kafkaConsumer.pollTimeoutMs"
_ONE_OF: Final = ("subscribe", "subscribePattern", "assign")
_READ: Final = (
    *_ONE_OF,
    _SERVERS,
    "logDirs",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "pushDownFilters",
    "includeUncommitted",
    _POLL_TIMEOUT,
)
_WRITE: Final = (_SERVERS, "topic", "stagingLocation", "commitId")
_OF_SPARK: Final = {"checkpointlocation", "queryname"}  # Spark passes its own options too
_FIXED: Final = {
    "auto.offset.reset": "startingOffsets and failOnDataLoss say where to begin",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "enable.auto.offset.store": "Spark's checkpoint keeps the offsets",
    "enable.partition.eof": "the source needs it",
    "acks": "every write waits for all in-sync replicas",
    "enable.idempotence": "every write is idempotent",
    "transactional.id": "the tasks of Spark do not share a transaction",
}


class OptionError(RegentError):
    """An option or a column is invalid; the message names it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The partitions to read: of these topics, of topics that match a regex, or exactly these."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def matches(self, topic: str) -> bool:
        """Return whether the subscription includes an existing topic."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or any(topic == name for name, _ in self.assigned)


@dataclass(frozen=True, slots=True)
class OffsetsOption:
    """The start or end of a read: one offset or time ``everywhere``, or one for each partition.

    An offset may be ``EARLIEST`` or ``LATEST``. A time, in milliseconds since 1970, means the first
    record at or after it. If there is none, it means the end of the log, if ``may_end``.
    """

    name: str
    everywhere: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_everywhere: int | None = None
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    may_end: bool = False

    @property
    def by_partition(self) -> Mapping[TopicPartition, int] | None:
        """Return the offset or time of each partition; None: one value applies to all."""
        if self.everywhere is not None or self.time_everywhere is not None:
            return None
        return self.times or self.offsets

    def times_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the time of each partition; empty if the option gives offsets."""
        if self.time_everywhere is not None:
            return dict.fromkeys(partitions, self.time_everywhere)
        return {partition: self.times[partition] for partition in partitions} if self.times else {}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Validated options of a read. ``kafka`` configures librdkafka; if empty, read ``log_dirs``."""

    kafka: Mapping[str, str]
    log_dirs: tuple[Path, ...]
    subscription: Subscription
    starting: OffsetsOption
    ending: OffsetsOption
    max_offsets_per_trigger: int | None
    min_partitions: int
    fail_on_data_loss: bool
    include_headers: bool
    push_down_filters: bool
    include_uncommitted: bool
    poll_timeout_s: float


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Validated options of a write. ``topic`` None: use the column. ``staging``: exactly once."""

    kafka: Mapping[str, str]
    topic: str | None
    staging: Path | None
    commit_id: str | None


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Check the options of a read. Raises ``OptionError``."""
    given = _Options(options, _READ)
    log_dirs = tuple(Path(name) for name in given.names("logDirs"))
    kafka = given.kafka(is_required=not log_dirs)
    if kafka and log_dirs:
        raise OptionError("set either logDirs or kafka.bootstrap.servers, not both")
    if not log_dirs and given.has("includeUncommitted"):
        raise OptionError(
            "includeUncommitted is for logDirs: brokers return committed records only"
        )
    return ReadOptions(
        kafka=kafka,
        log_dirs=log_dirs,
        subscription=_subscription(given),
        starting=_starting(given, is_stream=is_stream),
        ending=_ending(given, is_stream=is_stream),
        max_offsets_per_trigger=_per_trigger(given, is_stream=is_stream),
        min_partitions=given.number("minPartitions") or 1,
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        push_down_filters=given.flag("pushDownFilters", default=False),
        include_headers=given.flag("includeHeaders", default=False),
        include_uncommitted=given.flag("includeUncommitted", default=False),
        poll_timeout_s=(given.number(_POLL_TIMEOUT) or 120_000) / 1000,
    )


def write_options(options: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Check the options of a write. Raises ``OptionError``."""
    given = _Options(options, _WRITE)
    topic, staging, commit_id = map(given.text, ("topic", "stagingLocation", "commitId"))
    if commit_id is not None and (is_stream or staging is None):
        raise OptionError("commitId is for a batch write with stagingLocation")
    if commit_id is not None and not re.fullmatch(r"[\w.-]{1,200}", commit_id, re.ASCII):
        raise OptionError(f"commitId={commit_id!r}: letters, digits, '.', '_' and '-' only")
    kafka = given.kafka(is_required=True)
    return WriteOptions(kafka, topic, _directory(staging), commit_id)


class _Options:
    """The raw options; looks them up without regard to case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower() for name in known} | _OF_SPARK
        for name in self._values:
            if name not in names and not name.startswith(_KAFKA):
                raise OptionError(f"unknown option {name!r}; known: {', '.join(known)}, kafka.*")

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise OptionError(f"{name} is empty")
        return None if value is None else value.strip()

    def names(self, name: str) -> list[str]:
        return [n.strip() for n in (self.text(name) or "").split(",") if n.strip()]

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and 0 < int(value) < 2**31):
            raise OptionError(f"{name}={value!r} is not a number above 0")
        return int(value)

    def flag(self, name: str, *, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise OptionError(f"{name}={value!r} is neither true nor false")
        return value == "true"

    def table(self, name: str) -> dict[TopicPartition, int]:
        """Return ``{"topic": {"0": 23}}`` by partition."""
        found: dict[TopicPartition, int] = {}
        for topic, numbers in self.json(name).items():
            if not isinstance(numbers, dict):
                raise OptionError(f'{name}: topic {topic}: expected {{"partition": number}}')
            for partition, number in numbers.items():
                key = TopicPartition(topic, _partition(name, partition))
                if isinstance(number, bool) or not isinstance(number, int):
                    raise OptionError(f"{name}: {number!r} of {key} is not a number")
                found[key] = number
        return found

    def json(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name) or "")
        except ValueError as error:
            raise OptionError(f"{name} is not JSON: {error}") from None
        if not isinstance(value, dict) or not value:
            raise OptionError(f"{name}: expected a JSON object of topics")
        return value

    def kafka(self, *, is_required: bool) -> dict[str, str]:
        """Return the configuration of librdkafka: ``kafka.*`` and the bootstrap servers."""
        start = len(_KAFKA)
        settings = {n[start:]: v for n, v in self._values.items() if n.startswith(_KAFKA)}
        for name, reason in _FIXED.items():
            if name in settings:
                raise OptionError(f"kafka.{name} cannot be set: {reason}")
        servers = self.text(_SERVERS)
        if servers is not None:
            settings.setdefault(_SERVERS, servers)
        if is_required and not settings.get(_SERVERS, "").strip():
            raise OptionError("kafka.bootstrap.servers is missing: HOST:PORT,… of some brokers")
        return settings


def _partition(name: str, text: Any) -> int:
    if not re.fullmatch(r"\d{1,9}", str(text), re.ASCII):
        raise OptionError(f"{name}: {text!r} is not a partition")
    return int(text)


def _directory(staging: str | None) -> Path | None:
    if staging is None:
        return None
    scheme, found, path = staging.rpartition("://")
    if found and scheme != "file":
        raise OptionError(f"stagingLocation={staging!r} is not a directory of a file system")
    return Path(path)


def _subscription(given: _Options) -> Subscription:
    if sum(map(given.has, _ONE_OF)) != 1:
        raise OptionError(f"set exactly one of {', '.join(_ONE_OF)}")
    if given.has("subscribe"):
        return Subscription(topics=tuple(sorted(set(given.names("subscribe")))))
    if given.has("subscribePattern"):
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


def _starting(given: _Options, *, is_stream: bool) -> OffsetsOption:
    name, strategy = "startingOffsets", "startingOffsetsByTimestampStrategy"
    otherwise = (given.text(strategy) or "error").lower()
    if otherwise not in ("error", "latest"):
        raise OptionError(f"{strategy}={otherwise!r}: error or latest")
    since = _times(given, "starting", may_end=otherwise == "latest")
    if since is not None:
        return since
    found = _offsets(given, name, default="latest" if is_stream else "earliest")
    if not is_stream and (found.everywhere == LATEST or LATEST in found.offsets.values()):
        raise OptionError(f"{name}: only a stream can start at the latest offset")
    return found


def _ending(given: _Options, *, is_stream: bool) -> OffsetsOption:
    name = "endingOffsets"
    for either in (name, "endingTimestamp", "endingOffsetsByTimestamp"):
        if is_stream and given.has(either):
            raise OptionError(f"{either} is for batch reads: a stream has no end")
    until = _times(given, "ending", may_end=True)
    if until is not None:
        return until
    found = _offsets(given, name, default="latest")
    if found.everywhere == EARLIEST or EARLIEST in found.offsets.values():
        raise OptionError(f"{name}: a read cannot end at the earliest offset")
    return found


def _times(given: _Options, what: str, *, may_end: bool) -> OffsetsOption | None:
    """Return the timestamp option, for all partitions or for each; None: not given."""
    name = f"{what}Timestamp"
    text = given.text(name)
    if text is not None:
        if not (text.isascii() and text.isdigit()):
            raise OptionError(f"{name}={text!r}: expected milliseconds since 1970")
        return OffsetsOption(name, time_everywhere=int(text), may_end=may_end)
    name = f"{what}OffsetsByTimestamp"
    if not given.has(name):
        return None
    times = given.table(name)
    for partition, time_ms in times.items():
        if time_ms < 0:
            raise OptionError(f"{name}: {time_ms} of {partition} is not a time")
    return OffsetsOption(name, times=times, may_end=may_end)


def _offsets(given: _Options, name: str, *, default: str) -> OffsetsOption:
    text = given.text(name) or default
    if text.lower() in ("earliest", "latest"):
        return OffsetsOption(name, EARLIEST if text.lower() == "earliest" else LATEST)
    if not text.startswith("{"):
        raise OptionError(f'{name}={text!r}: earliest, latest or {{"topic": {{"0": 23}}}}')
    table = given.table(name)
    for partition, offset in table.items():
        if offset < EARLIEST:
            raise OptionError(f"{name}: {offset} of {partition} is not an offset")
    return OffsetsOption(name, offsets=table)


def _per_trigger(given: _Options, *, is_stream: bool) -> int | None:
    if not is_stream and given.has("maxOffsetsPerTrigger"):
        raise OptionError("maxOffsetsPerTrigger is for streams: a batch read has one trigger")
    return given.number("maxOffsetsPerTrigger")
