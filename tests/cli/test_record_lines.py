"""Records as lines of text, and back."""

from __future__ import annotations

import io

import orjson
import pytest

from regent.cli.kafka_client import KafkaClientError
from regent.cli.record_lines import (
    LineRecord,
    json_records,
    parse_record,
    printable,
    printable_json,
    record_fields,
    record_text,
    text_records,
)


@pytest.mark.parametrize(
    ("separator", "records"),
    [
        (None, [(None, b"a:1"), (None, b""), (None, b"b::2"), (None, b"c")]),
        (":", [(b"a", b"1"), (None, b""), (b"b", b":2"), (None, b"c")]),
        ("::", [(None, b"a:1"), (None, b""), (b"b", b"2"), (None, b"c")]),
    ],
)
def test_a_line_is_a_record_with_its_key_before_the_separator(
    separator: str | None, records: list[tuple[bytes | None, bytes]]
) -> None:
    found = text_records(io.BytesIO(b"a:1\n\nb::2\nc"), separator)
    assert [(record.key, record.value) for record in found] == records


@pytest.mark.parametrize(
    "record",
    [
        LineRecord(None, None, [], None),
        LineRecord(b"", b"", [], 1),
        LineRecord("ключ\n".encode(), b"tab\t\x00\x1b[31m", [("h", b""), ("h", None)], 1_234),
        LineRecord(b"\xff\xfe", b"\x80", [("binary", b"\x00\xff"), ("text", b"x")], 2**63 - 1),
    ],
)
def test_printed_json_can_be_read_again(record: LineRecord) -> None:
    line = orjson.dumps({"topic": "t", "partition": 7, "offset": 3, **record_fields(record)})
    assert parse_record(line) == record
    assert parse_record(printable_json(line)) == record
    assert list(json_records(io.BytesIO(line + b"\n\n" + line))) == [record, record]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "it is no JSON: "),
        ("[1]", "it is no JSON object such as"),
        ('{"key": "k"}', "it has no value; null is the value of a tombstone"),
        ('{"value": 1}', "its value is neither text nor null"),
        ('{"value": "a", "value_base64": "YQ=="}', "it has both value and value_base64"),
        ('{"value_base64": "ü"}', "its value_base64 is no base64"),
        ('{"value": null, "headers": {"a": "b"}}', "headers are no list such as"),
        ('{"value": null, "headers": [{"value": "b"}]}', "the key None of a header is no text"),
        ('{"value": null, "timestamp_ms": 0}', "timestamp_ms 0 is not a number from 1, or null"),
        ('{"value": null, "timestamp_ms": "x"}', "timestamp_ms 'x' is not a number"),
    ],
)
def test_a_line_that_is_no_record_is_named_with_the_reason(line: str, problem: str) -> None:
    lines = b'{"value": "good"}\n' + line.encode()
    with pytest.raises(KafkaClientError) as refused:
        list(json_records(io.BytesIO(lines)))
    assert str(refused.value).startswith(f"line 2: {problem}")


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regent.cli.record_lines.MAX_LINE_BYTES", 10)
    with pytest.raises(KafkaClientError, match="a line is longer than 10 bytes"):
        list(text_records(io.BytesIO(b"short\n" + 20 * b"x"), None))


@pytest.mark.parametrize(
    ("record", "plain", "whole"),
    [
        (LineRecord(b"k", b"v", [], 0), b"k = v", b"1970-01-01T00:00:00.000Z  []  k = v"),
        (
            LineRecord(None, None, [("a", b"1"), ("b", None)], 1_700_000_000_123),
            b"null",
            b"2023-11-14T22:13:20.123Z  [a=1, b=null]  null",
        ),
        (LineRecord(b"", b"\xff", [], None), b" = \xff", b"-  []   = \xff"),
        (LineRecord(None, b"v", [], 2**62), b"v", b"4611686018427387904  []  v"),
    ],
)
def test_a_record_in_text_keeps_its_bytes(record: LineRecord, plain: bytes, whole: bytes) -> None:
    assert record_text(record, with_timestamp=False, with_headers=False) == plain
    assert record_text(record, with_timestamp=True, with_headers=True) == whole


def test_control_characters_of_terminals_are_escaped() -> None:
    assert printable(b"\x1b[31mred\x07\r\n\t\x00") == rb"\x1b[31mred\x07\r\n\t\x00"
    assert printable("grün 日本 \u009b \u202e".encode()) == "grün 日本 \\x9b \\u202e".encode()
    assert printable(b"\xff") == rb"\xff"
    assert printable_json('{"a":"\u009b\x7f🎉\U000e0001"}'.encode()) == (
        '{"a":"\\u009b\\u007f🎉\\udb40\\udc01"}'.encode()
    )
