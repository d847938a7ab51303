"""Records as lines of text: with a separator of key and value, and as JSON.

A JSON line has ``key``, ``value``, ``headers`` and ``timestamp_ms``. Bytes that are no UTF-8 are
in ``key_base64`` or ``value_base64`` instead. ``produce -i json`` reads what ``consume -o json``
writes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

import orjson

from regent.cli.kafka_client import KafkaClientError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
_BASE64: Final = "_base64"


class LineRecord(NamedTuple):
    """A record; without ``timestamp_ms`` it has the time when it is written."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None


# --- reading -------------------------------------------------------------------------------------


def text_records(stream: BinaryIO, separator: str | None) -> Iterator[LineRecord]:
    """Yield a record for each line; the key is before the separator."""
    for line in _lines(stream):
        key, found, value = line.partition(separator.encode()) if separator else (b"", b"", b"")
        yield LineRecord(key, value) if found else LineRecord(None, line)


def json_records(stream: BinaryIO) -> Iterator[LineRecord]:
    """Yield a record for each JSON line; empty lines are skipped."""
    for number, line in enumerate(_lines(stream), 1):
        if not line.strip():
            continue
        try:
            yield parse_record(line)
        except ValueError as error:
            raise KafkaClientError(f"line {number}: {error}") from None


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES):
        if len(line) == MAX_LINE_BYTES:
            raise KafkaClientError(
                f"a line is longer than {MAX_LINE_BYTES} bytes: too large a record"
            )
        yield line.removesuffix(b"\n")


def parse_record(line: bytes) -> LineRecord:
    """Return the record of a JSON line; raises ``ValueError`` of one line.

    Its topic, its partition and its offset are ignored.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError('it is no JSON object such as {"key": "k", "value": "v"}')
    if not {"value", "value" + _BASE64} & fields.keys():
        raise ValueError("it has no value; null is the value of a tombstone")
    headers = fields.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(row, dict) for row in headers):
        raise ValueError('headers are no list such as [{"key": "k", "value": "v"}]')
    timestamp_ms = fields.get("timestamp_ms")
    if timestamp_ms is not None and not is_timestamp(timestamp_ms):
        raise ValueError(f"timestamp_ms {timestamp_ms!r} is not a number from 1, or null")
    return LineRecord(
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        [(_header_key(row), _bytes(row, "value")) for row in headers],
        timestamp_ms,
    )


def is_timestamp(value: object) -> bool:
    """Whether a record can be written with this timestamp: librdkafka takes 0 for "now"."""
    return isinstance(value, int) and 0 < value < 2**63


def _header_key(header: Mapping[str, Any]) -> str:
    key = header.get("key")
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} of a header is no text")
    return key


def _bytes(fields: Mapping[str, Any], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(name + _BASE64)
    if not isinstance(text, str | None) or not isinstance(encoded, str | None):
        raise ValueError(f"its {name} is neither text nor null")
    if encoded is None:
        return None if text is None else text.encode()
    if text is not None:
        raise ValueError(f"it has both {name} and {name}{_BASE64}")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"its {name}{_BASE64} is no base64") from None


# --- writing -------------------------------------------------------------------------------------


def record_fields(record: LineRecord) -> dict[str, object]:
    """Return the fields of a JSON line."""
    return {
        "timestamp_ms": record.timestamp_ms,
        **_field("key", record.key),
        **_field("value", record.value),
        "headers": [{"key": key, **_field("value", value)} for key, value in record.headers],
    }


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {name + _BASE64: base64.b64encode(data or b"").decode()}


def record_text(record: LineRecord, *, with_timestamp: bool, with_headers: bool) -> bytes:
    """Return a record for people: its timestamp and its headers if wanted, its key, its value."""
    parts: list[bytes] = []
    if with_timestamp:
        parts.append(_timestamp(record.timestamp_ms).encode())
    if with_headers:
        named = (key.encode() + b"=" + _shown(value) for key, value in record.headers)
        parts.append(b"[" + b", ".join(named) + b"]")
    key = b"" if record.key is None else record.key + b" = "
    return b"  ".join((*parts, key + _shown(record.value)))


def _shown(data: bytes | None) -> bytes:
    return b"null" if data is None else data


def _timestamp(timestamp_ms: int | None) -> str:
    """Return a time in UTC; a number if it is outside the years that Python knows."""
    try:
        moment = datetime.fromtimestamp((timestamp_ms or 0) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    shown = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "-" if timestamp_ms is None else shown


def printable(data: bytes) -> bytes:
    r"""Return text for a terminal: ``\x1b`` in place of a byte or character that controls it."""
    text = data.decode(errors="backslashreplace")
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown).encode()


def printable_json(data: bytes) -> bytes:
    r"""Return JSON for a terminal: ``\u009b`` in place of a character that controls it."""
    return "".join(c if c.isprintable() else _json_escape(c) for c in data.decode()).encode()


def _json_escape(character: str) -> str:
    return re.sub("....", r"\\u\g<0>", character.encode("utf-16-be").hex())
