"""Records are judged as if each was read alone: in columns, and in pieces cut anywhere."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from itertools import accumulate, cycle, islice
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regent.records import record_validation
from regent.records.record import varint, zigzag
from regent.records.record_validation import RecordWalk, read_each


class Record(NamedTuple):
    """A record without its offset."""

    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: bytes = varint(0)


def sized(data: bytes | None) -> bytes:
    return varint(zigzag(-1)) if data is None else varint(zigzag(len(data))) + data


def encoded(records: list[Record]) -> bytes:
    bodies = [
        b"\0"
        + varint(zigzag(r.timestamp_delta))
        + varint(zigzag(n))
        + sized(r.key)
        + sized(r.value)
        + r.headers
        for n, r in enumerate(records)
    ]
    return b"".join(map(sized, bodies))


def outcome(data: bytes, count: int) -> object:
    """Return what the walk finds, or the error it raises."""
    return outcome_of_pieces([data], count)


def outcome_of_pieces(pieces: Iterable[bytes], count: int) -> object:
    walk = RecordWalk(count)
    try:
        walk.read(pieces)
    except (ValueError, IndexError) as error:
        return type(error), str(error)
    return walk.oldest, walk.newest, walk.has_all_keys


def outcome_one_by_one(data: bytes, count: int) -> object:
    with pytest.MonkeyPatch.context() as patch:
        none = 0, record_validation._GREATEST, record_validation._LEAST
        patch.setattr(record_validation, "_find_alike", lambda *_: none)
        return outcome(data, count)


def run_of(steps: list[int], times: int, first: Record) -> Iterator[Record]:
    """Yield records like ``first``, each with a timestamp one of ``steps`` after the last."""
    deltas = accumulate(islice(cycle(steps), times - 1), initial=first.timestamp_delta)
    return (first._replace(timestamp_delta=delta) for delta in deltas)


ALIKE = [Record(5, b"key", b"a" * 70)] * 300
LONG_RUNS = st.lists(
    st.tuples(
        st.lists(st.integers(-1, 2), min_size=1, max_size=3),  # steps of the timestamps
        st.integers(1, 150),
        st.builds(
            Record,
            st.sampled_from([-1, 0, 1, 63, 64, 9000]),
            st.sampled_from([None, b"", b"k", b"k" * 64]),
            st.sampled_from([None, b"", b"v" * 60, b"v" * 61, b"v" * 8200]),
            st.sampled_from([varint(0), varint(zigzag(1)) + sized(b"h") + sized(b"")]),
        ),
    ),
    min_size=1,
    max_size=5,
)


@given(LONG_RUNS, st.integers(-3, 3), st.none() | st.tuples(st.integers(0), st.integers(0, 255)))
@example([([0], 300, ALIKE[0])], 0, None)
@example([([1], 300, ALIKE[0])], 0, None)
@example([([1, -1, 1], 300, Record(60, b"key", b"a"))], 0, None)
@example([([1, -1, 1], 150, Record(9000, b"key", b"a"))], 0, None)
def test_columns_show_what_reading_each_record_shows(
    runs: list[tuple[list[int], int, Record]], missing: int, changed: tuple[int, int] | None
) -> None:
    records = [record for run in runs for record in run_of(*run)]
    data = bytearray(encoded(records))
    if changed is not None:
        at, byte = changed
        data[at % len(data)] = byte
    count = max(1, len(records) + missing)
    assert outcome(bytes(data), count) == outcome_one_by_one(bytes(data), count)


@given(
    LONG_RUNS,
    st.integers(-3, 3),
    st.none() | st.tuples(st.integers(0), st.integers(0, 255)),
    st.integers(1, 3_000),
    st.integers(1, 200),
)
@example([([0], 300, ALIKE[0])], 0, None, 7, 1)
def test_pieces_show_what_the_whole_shows(
    runs: list[tuple[list[int], int, Record]],
    missing: int,
    changed: tuple[int, int] | None,
    piece_bytes: int,
    long_bytes: int,
) -> None:
    records = [record for run in runs for record in run_of(*run)]
    data = bytearray(encoded(records))
    if changed is not None:
        at, byte = changed
        data[at % len(data)] = byte
    count = max(1, len(records) + missing)
    piece_bytes = max(piece_bytes, len(data) // 200)  # else it takes long
    pieces = [bytes(data[at : at + piece_bytes]) for at in range(0, len(data), piece_bytes)]
    whole = outcome(bytes(data), count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_validation, "_LONG_BYTES", long_bytes)
        cut = outcome_of_pieces(pieces, count)
    if isinstance(whole, tuple) and isinstance(whole[0], type):
        assert isinstance(cut, tuple)
        assert isinstance(cut[0], type)
        return
    assert cut == whole
    read = list(read_each(pieces, count))
    assert cut == (
        min(record.timestamp_delta for record in read),
        max(record.timestamp_delta for record in read),
        all(record.has_key for record in read),
    )


def test_nothing_is_taken_after_the_first_wrong_record() -> None:
    taken = []

    def pieces() -> Iterator[bytes]:
        for number in range(10):
            taken.append(number)
            yield encoded(ALIKE) if number == 0 else bytes(1_000)

    assert outcome_of_pieces(pieces(), 2**31 - 1) == (
        ValueError,
        "record 300 has another offset than 300",
    )
    assert taken == [0, 1]


def test_a_long_record_is_not_kept() -> None:
    size, piece = 64 * 2**20, bytes(2**16)
    head = bytes(3) + b"\x01" + varint(zigzag(size))
    pieces = [varint(zigzag(len(head) + size + 1)) + head, *[piece] * (size // len(piece)), b"\0"]
    walk = RecordWalk(1)
    tracemalloc.start()
    try:
        walk.read(iter(pieces))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (walk.oldest, walk.newest, walk.has_all_keys) == (0, 0, False)
    assert most < 2**20


@pytest.mark.parametrize("at", range(len(encoded(ALIKE[:1])) + 1))
def test_a_change_of_any_byte_of_a_record_in_a_run_is_noticed_as_in_a_single_one(at: int) -> None:
    data = bytearray(encoded(ALIKE))
    offset = len(encoded(ALIKE[:200])) + at
    for byte in (data[offset] ^ 1, data[offset] ^ 2, data[offset] ^ 0x80):
        data[offset] = byte
        assert outcome(bytes(data), len(ALIKE)) == outcome_one_by_one(bytes(data), len(ALIKE))


@pytest.mark.parametrize("steps", [[0], [1], [0, 3, -1]])
def test_most_records_of_a_run_are_not_read_one_by_one(
    steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    find_alike = record_validation._find_alike

    def counted(data: bytes, start: int, stop: int, index: int, count: int) -> tuple[int, int, int]:
        found.append((alike := find_alike(data, start, stop, index, count))[0])
        return alike

    monkeypatch.setattr(record_validation, "_find_alike", counted)
    records = list(run_of(steps, 300, ALIKE[0]))
    deltas = [record.timestamp_delta for record in records]
    assert outcome(encoded(records), len(records)) == (min(deltas), max(deltas), True)
    assert sum(found) > 0.9 * len(records)
