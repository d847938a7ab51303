"""The records of a partition, as the console shows them, and a record that it writes.

A page shows few records, and a search looks at a limited number of records, bytes and seconds: the
topic of another team must not fill the memory of the console.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as Position

from regent.client.cluster_connection import Cluster, client_settings
from regent.config.moments import parse_moment
from regent.console.form_numbers import MAX_OFFSET, MAX_PARTITION, number_in
from regent.console.reports import indented_json
from regent.core.errors import RegentError
from regent.core.model import TopicPartition

STARTS: Final = ("end", "beginning", "offset", "time")
FORMS: Final = ("text", "JSON", "hex")

SHOWN: Final = 50
LOOKED_AT: Final = 20_000
_LOOKED_AT_BYTES: Final = 64 * 1024 * 1024
_LOOK_S: Final = 8.0
_ANSWER_S: Final = 5.0
_POLL_S: Final = 0.2
_CUT: Final = {"text": 4_000, "JSON": 4_000, "hex": 1_024}  # bytes of a value that are shown
_CUT_KEY: Final = 400
_CLIENT_ID: Final = "regent-console"


class RecordsError(RegentError):
    """Records cannot be read or written; the message says why."""


class RecordQuery(NamedTuple):
    """What to show: ``start`` is one of ``STARTS``, ``at`` its offset or time.

    ``search``: only records whose key, value or headers have this text. ``is_committed``: without
    those of transactions that are open or were aborted.
    """

    topic_partition: TopicPartition
    start: str = "end"
    at: str = ""
    form: str = "text"
    search: str = ""
    is_committed: bool = True


class ShownBytes(NamedTuple):
    """Bytes as text; ``size`` is that of all of them, ``is_cut``: the text has only the first."""

    text: str
    size: int
    is_cut: bool


class ShownRecord(NamedTuple):
    """A record; its key and value are None if they are null."""

    offset: int
    timestamp_ms: int | None
    key: ShownBytes | None
    value: ShownBytes | None
    headers: tuple[tuple[str, ShownBytes | None], ...]


class FoundRecords(NamedTuple):
    """Records by offset. ``first`` and ``end`` are the offsets of the log.

    The records from ``begin`` up to ``next`` were looked at; ``why``: why not all that were asked
    for, empty: they were.
    """

    records: tuple[ShownRecord, ...]
    first: int
    end: int
    begin: int
    next: int
    why: str = ""


def read_records(cluster: Cluster, query: RecordQuery) -> FoundRecords:
    """Read a partition. Raises ``RegentError``."""
    settings = {
        **client_settings(cluster, _CLIENT_ID),
        "group.id": _CLIENT_ID,  # librdkafka requires one; nothing is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed" if query.is_committed else "read_uncommitted",
    }
    with _told(f"partition {query.topic_partition}"):
        consumer = Consumer(settings)
        try:
            return _read(consumer, query)
        finally:
            consumer.close()


def _read(consumer: Consumer, query: RecordQuery) -> FoundRecords:
    position = Position(*query.topic_partition)
    first, end = consumer.get_watermark_offsets(position, _ANSWER_S)
    begin = _begin(consumer, query, first, end)
    position.offset = begin
    consumer.assign([position])
    is_last = query.start == "end"  # then the last records are shown, else the first ones
    found: deque[Message] = deque(maxlen=SHOWN if is_last else None)
    until, looked, size, following, why = time.monotonic() + _LOOK_S, 0, 0, begin, ""
    while following < end and (is_last or len(found) < SHOWN):
        if why := _limit(looked, size, until):
            break
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                following = max(following, message.offset() or 0)
                break  # what follows is of open transactions
            if not error.retriable():
                raise KafkaException(error)
            continue
        offset = message.offset()
        assert offset is not None
        if offset >= end:
            break
        looked, size, following = looked + 1, size + len(message), offset + 1
        if not query.search or _has(message, query.search.encode()):
            found.append(message)
    return FoundRecords(
        tuple(_shown(message, query.form) for message in found), first, end, begin, following, why
    )


def _limit(looked: int, size: int, until: float) -> str:
    if looked >= LOOKED_AT:
        return f"a page looks at {LOOKED_AT:,} records at most"
    if size >= _LOOKED_AT_BYTES:
        return f"a page looks at {_LOOKED_AT_BYTES // 1024 // 1024} MB at most"
    return f"a page looks for {_LOOK_S:g} s at most" if time.monotonic() >= until else ""


def _begin(consumer: Consumer, query: RecordQuery, first: int, end: int) -> int:
    """Return where reading begins: inside of the log, or at its end."""
    if query.start == "offset":
        offset = number_in(query.at, MAX_OFFSET)
        if offset is None:
            raise RecordsError(f"{query.at!r} is not an offset: give a number from 0")
        return min(max(offset, first), end)
    if query.start == "time":
        try:
            since_ms = parse_moment(query.at)
        except ValueError as error:
            raise RecordsError(str(error)) from None
        asked = [Position(*query.topic_partition, since_ms)]
        (found,) = consumer.offsets_for_times(asked, _ANSWER_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset if found.offset >= 0 else end
    if query.start == "end":
        return max(first, end - (LOOKED_AT if query.search else SHOWN))
    return first


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Let an error of librdkafka name what was asked for."""
    try:
        yield
    except KafkaException as error:
        raise RecordsError(f"{name}: {error.args[0].str()}") from None


def _has(message: Message, wanted: bytes) -> bool:
    headers: Any = message.headers() or ()
    parts = [message.key(), message.value(), *(part for h in headers for part in h)]
    return any(wanted in _bytes(part) for part in parts if part is not None)


def _bytes(part: object) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


def _shown(message: Message, form: str) -> ShownRecord:
    kind, timestamp_ms = message.timestamp()
    headers: Any = message.headers() or ()
    offset = message.offset()
    assert offset is not None
    return ShownRecord(
        offset,
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        shown_bytes(message.key(), form if form == "hex" else "text", _CUT_KEY),
        shown_bytes(message.value(), form, _CUT[form]),
        tuple((key, shown_bytes(value, "text", _CUT_KEY)) for key, value in headers),
    )


def shown_bytes(data: str | bytes | None, form: str, limit: int) -> ShownBytes | None:
    """Return bytes in a form of ``FORMS``, at most ``limit`` of them.

    What ``indented_json`` does not take is text.
    """
    if data is None:
        return None
    data = _bytes(data)
    part, is_cut = data[:limit], len(data) > limit
    if form == "hex":
        return ShownBytes(_hex(part), len(data), is_cut)
    if form == "JSON" and not is_cut:
        pretty = indented_json(data)
        if pretty is not None:
            return ShownBytes(pretty, len(data), is_cut=False)
    text = part.decode(errors="backslashreplace")
    shown = (
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )
    return ShownBytes("".join(shown), len(data), is_cut)


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):47}  {text}")
    return "\n".join(lines)


def write_record(cluster: Cluster, fields: Mapping[str, str]) -> tuple[TopicPartition, int]:
    """Write a record with ``key``, ``value`` and a line ``name=value`` for each of its ``headers``.

    An empty key is none; without ``partition`` its key chooses it. Return where it is. Raises
    ``RegentError``.
    """
    topic, text = fields.get("target", ""), fields.get("partition", "").strip()
    number = number_in(text, MAX_PARTITION)
    if text and number is None:
        raise RecordsError(f"{text!r} is not the number of a partition")
    headers: list[tuple[str, str | bytes | None]] = []
    for line in fields.get("headers", "").splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            raise RecordsError(f"the header {line!r} is not NAME=VALUE")
        headers.append((name, value.encode()))
    delivered: list[tuple[KafkaError | None, Message]] = []
    errors: list[KafkaError] = []
    with _told(f"topic {topic}"):
        producer = Producer(
            {
                **client_settings(cluster, _CLIENT_ID),
                "enable.idempotence": True,
                "message.timeout.ms": round(_ANSWER_S * 1000),
                "error_cb": errors.append,  # without one, a fatal error ends the flush
            }
        )
        producer.produce(
            topic,
            fields.get("value", "").replace("\r\n", "\n").encode(),  # browsers send CRLF
            fields.get("key", "").encode() or None,
            -1 if number is None else number,
            on_delivery=lambda *found: delivered.append(found),
            headers=headers,
        )
        producer.flush(2 * _ANSWER_S)
        if fatal := next((error for error in errors if error.fatal()), None):
            raise KafkaException(fatal)
        if not delivered:
            raise RecordsError(f"topic {topic}: no broker has acknowledged the record")
        error, message = delivered[0]
        if error is not None:
            raise KafkaException(error)
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return TopicPartition(topic, partition), offset
