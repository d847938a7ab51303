"""One segment: appended batches are read by offset, by size and by time."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import StorageError
from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.records.record_batch import batches
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from tests.support.record_batches import batch, offsets_of

NOW_MS = 1_700_000_000_000
TIMESTAMP_MS = 1_600_000_000_000
EVERYTHING = 2**63 - 1
CONFIG = replace(DEFAULT_LOG_CONFIG, index_interval_bytes=300)
FILES = OpenFiles()
NAME = "00000000000000000100"


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """An empty segment of the offsets from 100 on."""
    return LogSegment.create(tmp_path, 100, CONFIG, NOW_MS, FILES)


def append(segment: LogSegment, *parts: bytes) -> None:
    data = b"".join(parts)
    segment.append(data, list(batches(data)))


def fill(segment: LogSegment, count: int, *, each: int = 2, size: int = 20) -> None:
    """Append batches of ``each`` records; batch i is 10 ms younger than the one before."""
    for i in range(count):
        offset = segment.next_offset
        append(
            segment,
            batch(*[b"x" * size] * each, base_offset=offset, timestamp_ms=TIMESTAMP_MS + 10 * i),
        )


def reopened(segment: LogSegment) -> LogSegment:
    segment.close()
    return LogSegment.open(segment.directory, segment.base_offset, segment.config, NOW_MS, FILES)


def read(
    segment: LogSegment,
    offset: int,
    max_bytes: int = 2**30,
    limit: int = EVERYTHING,
    *,
    at_least_one: bool = True,
) -> list[int] | None:
    """Return the offsets of a read; checked and unchecked reads must agree."""
    found: list[bytes | None] = []
    for check_to in (None, segment.next_offset, None):
        records = segment.read(
            offset, max_bytes, limit, at_least_one=at_least_one, check_to=check_to
        )
        found.append(None if records is None else bytes(records.read()))
        assert records is None or len(records.read()) == records.size
    assert found[0] == found[1] == found[2]
    return None if found[0] is None else offsets_of(found[0])


# --- appending and reading ------------------------------------------------------------------------


def test_a_new_segment_is_empty(segment: LogSegment) -> None:
    assert (segment.size, segment.next_offset, segment.largest) == (0, 100, (-1, -1))
    assert read(segment, 100) is None
    assert list(segment.headers()) == []
    names = sorted(path.name for path in segment.directory.iterdir())
    assert names == [f"{NAME}.log"]


def test_appended_batches_are_in_the_file_unchanged(segment: LogSegment) -> None:
    data = batch(b"a", b"b", base_offset=100) + batch(b"c", base_offset=102)
    append(segment, data)
    assert segment.path.read_bytes() == data
    assert (segment.size, segment.next_offset) == (len(data), 103)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_read_begins_with_the_batch_of_the_offset(
    segment: LogSegment, *, is_reopened: bool
) -> None:
    fill(segment, 50)
    segment = reopened(segment) if is_reopened else segment
    for offset in range(100, 200):
        found = read(segment, offset)
        assert found == list(range(offset - offset % 2, 200))
    assert read(segment, 200) is None


def test_a_read_returns_whole_batches_that_fit(segment: LogSegment) -> None:
    fill(segment, 50)
    size = segment.size // 50
    assert read(segment, 110, 3 * size) == list(range(110, 116))
    assert read(segment, 110, 4 * size - 1) == list(range(110, 116))
    assert read(segment, 110, 1) == [110, 111]
    assert read(segment, 110, 1, at_least_one=False) == []
    assert read(segment, 110, size, at_least_one=False) == [110, 111]


def test_a_read_ends_before_its_limit(segment: LogSegment) -> None:
    fill(segment, 50)
    assert read(segment, 110, limit=120) == list(range(110, 120))
    assert read(segment, 110, limit=121) == list(range(110, 120))  # not half a batch
    assert read(segment, 110, limit=111) == []
    assert read(segment, 110, limit=110) == []
    assert read(segment, 110, limit=50) == []


@settings(deadline=None)
@given(data=st.data())
def test_any_read_returns_the_same_as_a_walk_over_all_batches(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    config = replace(DEFAULT_LOG_CONFIG, index_interval_bytes=data.draw(st.integers(0, 2_000)))
    segment = LogSegment.create(tmp_path_factory.mktemp("log"), 100, config, NOW_MS, FILES)
    for counts in data.draw(st.lists(st.lists(st.integers(1, 9), min_size=1), min_size=1)):
        offset, parts = segment.next_offset, []
        for count in counts:
            parts.append(batch(*[b"xyz" * count] * count, base_offset=offset))
            offset += count
        append(segment, *parts)
    headers = list(segment.headers())
    for _ in range(10):
        start = data.draw(st.integers(100, segment.next_offset - 1))
        max_bytes = data.draw(st.integers(0, segment.size + 10))
        limit = data.draw(st.integers(start, segment.next_offset + 1))
        expected: list[int] = []
        room = max_bytes
        for header in headers:
            if header.last_offset < start:
                continue
            room -= header.size
            if header.next_offset > limit or (room < 0 and expected):
                break
            expected += range(header.base_offset, header.next_offset)
            if room < 0:
                break
        assert read(segment, start, max_bytes, limit) == expected


def test_consecutive_reads_miss_nothing(segment: LogSegment) -> None:
    fill(segment, 60)
    for step in (1, 300, 1_000):
        offset = 100
        while offset < segment.next_offset:
            found = read(segment, offset, step, limit=210)
            if not found:
                break
            assert found == list(range(offset, found[-1] + 1))
            offset = found[-1] + 1
        assert offset == 210


def test_the_next_read_after_the_last_one_finds_its_position_without_the_file(
    segment: LogSegment,
) -> None:
    fill(segment, 2)
    assert read(segment, 100) == [100, 101, 102, 103]
    end = segment.size
    fill(segment, 2)
    appended = segment.path.read_bytes()[end:]
    segment.path.write_bytes(bytes(segment.size))
    rest = segment.read(104, len(appended), EVERYTHING, at_least_one=False)
    assert rest is not None
    assert (rest.size, rest.read()) == (len(appended), bytes(len(appended)))


def test_records_are_read_lazily(segment: LogSegment) -> None:
    fill(segment, 3)
    records = segment.read(102, 2**30, EVERYTHING, at_least_one=True)
    assert records is not None
    where = records.file_range
    assert where is not None
    assert where.position == segment.size // 3
    assert os.pread(where.file.fileno(), records.size, where.position) == records.read()


def test_headers_begin_with_the_batch_of_the_offset(segment: LogSegment) -> None:
    fill(segment, 50)
    assert [header.base_offset for header in islice(segment.headers(131), 2)] == [130, 132]
    assert len(list(segment.headers())) == 50


def test_batches_larger_than_one_read_are_found(segment: LogSegment) -> None:
    fill(segment, 20, each=1, size=20_000)
    assert read(segment, 117) == [117, 118, 119]
    assert read(reopened(segment), 117, limit=119) == [117, 118]


# --- time -----------------------------------------------------------------------------------------


def test_the_greatest_timestamp_is_known(segment: LogSegment) -> None:
    for offset, timestamp in enumerate((5, 9, 7, 9), start=100):
        append(segment, batch(b"", base_offset=offset, timestamp_ms=timestamp))
    assert segment.largest == (9, 101)
    assert reopened(segment).largest == (9, 101)
    assert segment.largest_timestamp == 9


def test_records_without_a_time_are_as_old_as_their_file(segment: LogSegment) -> None:
    append(segment, batch(b"", base_offset=100, timestamp_ms=-1))
    os.utime(segment.path, (1_234.5, 1_234.5))
    assert segment.largest_timestamp == 1_234_500


@pytest.mark.parametrize("is_reopened", [False, True])
def test_the_first_batch_young_enough_is_found(segment: LogSegment, *, is_reopened: bool) -> None:
    fill(segment, 50)
    segment = reopened(segment) if is_reopened else segment
    for i in range(50):
        for time in (TIMESTAMP_MS + 10 * i, TIMESTAMP_MS + 10 * i - 9):
            found = segment.find_timestamp(time, 0)
            assert found is not None
            assert found.base_offset == 100 + 2 * i
    assert segment.find_timestamp(TIMESTAMP_MS + 491, 0) is None


def test_the_search_for_a_time_begins_at_an_offset(segment: LogSegment) -> None:
    fill(segment, 50)
    found = segment.find_timestamp(TIMESTAMP_MS, 131)
    assert found is not None
    assert found.base_offset == 130


def test_retention_does_not_load_the_indexes(segment: LogSegment) -> None:
    fill(segment, 50)
    segment.close()
    time_index = segment.directory / f"{NAME}.timeindex"
    before = len(os.listdir("/proc/self/fd"))
    assert LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES).largest_timestamp == (
        TIMESTAMP_MS + 490
    )
    assert len(os.listdir("/proc/self/fd")) == before
    for damage in (b"", b"\0" * 24, b"\0" * 7, b"\xff" * 12, None):
        if damage is None:
            time_index.unlink()
        else:
            time_index.write_bytes(damage)
        one = LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)
        assert one.largest_timestamp == TIMESTAMP_MS + 490


# --- rolling --------------------------------------------------------------------------------------


def rolls(
    segment: LogSegment, incoming: int = 100, offset: int = 200, now_ms: int = NOW_MS
) -> bool:
    return segment.should_roll(incoming, offset, TIMESTAMP_MS, now_ms)


def test_a_segment_rolls_when_it_would_get_too_large(segment: LogSegment) -> None:
    segment.config = replace(CONFIG, segment_bytes=1_000)
    assert not rolls(segment, incoming=2_000)  # an empty one accepts any size
    fill(segment, 1)
    assert not rolls(segment, incoming=1_000 - segment.size)
    assert rolls(segment, incoming=1_001 - segment.size)


def test_a_segment_rolls_when_its_first_record_is_old(segment: LogSegment) -> None:
    segment.config = replace(CONFIG, segment_ms=5_000)
    fill(segment, 2)
    for one in (segment, reopened(segment)):
        assert not one.should_roll(10, 200, TIMESTAMP_MS + 5_000, NOW_MS + 10**9)
        assert one.should_roll(10, 200, TIMESTAMP_MS + 5_001, NOW_MS)


def test_a_segment_of_records_without_a_time_rolls_when_it_is_old(segment: LogSegment) -> None:
    segment.config = replace(CONFIG, segment_ms=5_000)
    append(segment, batch(b"", base_offset=100, timestamp_ms=-1))
    assert not rolls(segment, now_ms=NOW_MS + 5_000)
    assert rolls(segment, now_ms=NOW_MS + 5_001)


def test_a_segment_rolls_when_an_index_is_full(segment: LogSegment) -> None:
    segment.config = replace(CONFIG, segment_index_bytes=24)
    while not rolls(segment):
        fill(segment, 1)
    segment.close()
    assert (segment.directory / f"{NAME}.timeindex").stat().st_size <= 24 + 12


def test_a_segment_rolls_when_an_offset_is_too_far_away(segment: LogSegment) -> None:
    far = 100 + 2**31 - 1
    assert segment.can_hold(far)
    assert not segment.can_hold(far + 1)
    assert not segment.can_hold(99)
    assert not rolls(segment, offset=far)
    assert rolls(segment, offset=far + 1)
    append(segment, batch(b"", base_offset=far))
    assert read(reopened(segment), 100) == [far]


# --- truncating -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("offset", [100, 101, 102, 149, 150, 198, 199])
def test_batches_from_an_offset_on_are_removed_as_a_whole(
    segment: LogSegment, offset: int, *, is_reopened: bool
) -> None:
    fill(segment, 50)
    size, end = segment.size // 50, offset - offset % 2
    segment = reopened(segment) if is_reopened else segment
    assert segment.truncate_to(offset) == (200 - end) // 2 * size
    for one in (segment, reopened(segment)):
        assert one.next_offset == end
        assert one.size == one.path.stat().st_size == (end - 100) // 2 * size
        assert read(one, 100) == (list(range(100, end)) or None)
        time = TIMESTAMP_MS + 10 * ((end - 100) // 2 - 1)
        assert one.largest == ((time, end - 1) if end > 100 else (-1, -1))


def test_an_offset_beyond_the_end_truncates_nothing(segment: LogSegment) -> None:
    fill(segment, 2)
    assert segment.truncate_to(104) == 0
    assert segment.truncate_to(2**62) == 0
    assert segment.next_offset == 104


def test_other_records_are_appended_after_a_truncation(segment: LogSegment) -> None:
    fill(segment, 50)
    read(segment, 100, limit=120)
    segment.truncate_to(115)
    append(segment, batch(*[b"other"] * 7, base_offset=114, leader_epoch=3))
    assert read(segment, 113, limit=121) == list(range(112, 121))
    assert read(segment, 120) == list(range(114, 121))
    assert read(reopened(segment), 113) == list(range(112, 121))


# --- files ----------------------------------------------------------------------------------------


def test_opening_reads_nothing(segment: LogSegment) -> None:
    fill(segment, 50)
    segment.close()
    segment.path.rename(segment.path.with_suffix(".elsewhere"))
    with pytest.raises(StorageError, match=NAME):
        LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)
    segment.path.with_suffix(".elsewhere").rename(segment.path)
    before = len(os.listdir("/proc/self/fd"))
    one = LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)
    assert one.size == segment.size
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("damage", [b"", b"\0" * 16, b"\0" * 7, bytes(range(1, 25))])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_damaged_index_is_rebuilt(segment: LogSegment, kind: str, damage: bytes) -> None:
    fill(segment, 50)
    segment.close()
    files = [segment.directory / f"{NAME}.{name}" for name in ("index", "timeindex")]
    contents = [file.read_bytes() for file in files]
    (segment.directory / f"{NAME}.{kind}").write_bytes(damage)
    one = LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)
    assert read(one, 151) == list(range(150, 200))
    assert one.largest == (TIMESTAMP_MS + 490, 199)
    one.close()
    assert [file.read_bytes() for file in files] == contents


def test_missing_indexes_are_rebuilt(segment: LogSegment) -> None:
    fill(segment, 50)
    segment.close()
    for kind in ("index", "timeindex"):
        (segment.directory / f"{NAME}.{kind}").unlink()
    assert read(LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES), 151) == list(
        range(150, 200)
    )


def test_an_index_with_a_wrong_position_is_rebuilt(segment: LogSegment) -> None:
    fill(segment, 50)
    segment.close()
    index = segment.directory / f"{NAME}.index"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1  # the position of the last entry
    index.write_bytes(data)
    assert read(LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES), 151) == list(
        range(150, 200)
    )
    data[-1] ^= 1
    data[-5] ^= 1  # its offset
    index.write_bytes(data)
    assert read(LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES), 151) == list(
        range(150, 200)
    )


def test_a_wrong_entry_is_found_when_it_is_used(segment: LogSegment) -> None:
    fill(segment, 50)
    segment.close()
    index = segment.directory / f"{NAME}.index"
    whole = index.read_bytes()
    for byte in range(len(whole)):
        index.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
        one = LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)
        for offset in range(100, 200, 2):
            assert read(one, offset, limit=offset + 6) == list(range(offset, min(offset + 6, 200)))
            headers = one.headers(offset)
            assert next(headers).base_offset == offset


def test_an_index_that_is_behind_is_completed(segment: LogSegment) -> None:
    fill(segment, 25)
    segment.seal()
    fill(segment, 25)
    one = LogSegment.open(segment.directory, 100, CONFIG, NOW_MS, FILES)  # as after a kill
    assert one.next_offset == 200
    assert read(one, 190) == list(range(190, 200))
    segment.close()
    complete = (segment.directory / f"{NAME}.index").read_bytes()
    one.close()
    assert (segment.directory / f"{NAME}.index").read_bytes() == complete


def test_records_of_a_deleted_segment_stay_readable(segment: LogSegment) -> None:
    fill(segment, 2)
    records = segment.read(100, 2**30, EVERYTHING, at_least_one=True)
    assert records is not None
    before = len(os.listdir("/proc/self/fd"))
    segment.rename_suffix(".deleted")
    assert [path.name for path in segment.directory.iterdir()] == [f"{NAME}.log.deleted"]
    segment.delete()
    assert list(segment.directory.iterdir()) == []
    assert offsets_of(records.read()) == [100, 101, 102, 103]
    del records
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_an_unused_segment_holds_no_file(segment: LogSegment) -> None:
    fill(segment, 50)
    size = segment.size
    before = len(os.listdir("/proc/self/fd"))
    segment.close_idle()
    assert len(os.listdir("/proc/self/fd")) == before  # it was in use until now
    segment.close_idle()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert read(segment, 151) == list(range(150, 200))
    assert (segment.size, segment.next_offset) == (size, 200)
    segment.flush()
    fill(segment, 1)
    assert read(segment, 199) == [198, 199, 200, 201]


def test_a_segment_whose_directory_moved_is_read_there(segment: LogSegment, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    one = LogSegment.create(directory, 100, CONFIG, NOW_MS, FILES)
    fill(one, 2)
    one = reopened(one)
    moved = tmp_path / "log.moved"
    directory.rename(moved)
    one.directory = moved
    assert read(one, 100) == [100, 101, 102, 103]
    one.close()


def test_truncated_records_cannot_be_read(segment: LogSegment) -> None:
    fill(segment, 2)
    records = segment.read(100, 2**30, EVERYTHING, at_least_one=True)
    assert records is not None
    segment.truncate_to(102)
    with pytest.raises(StorageError, match="truncated below 230"):
        records.read()


# --- a disk that is full, or fails ----------------------------------------------------------------


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit the files of this process to 1,000 bytes, including the output of the tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_partial_batch(segment: LogSegment) -> None:
    fill(segment, 4)
    size = segment.size
    with full_disk(), pytest.raises(StorageError, match=f"{NAME}.log"):
        fill(segment, 1, size=500)
    assert segment.path.stat().st_size == segment.size == size
    assert segment.next_offset == 108
    fill(segment, 1)
    assert read(segment, 100) == list(range(100, 110))


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.log").symlink_to("/dev/full")
    segment = LogSegment.create(tmp_path, 100, CONFIG, NOW_MS, FILES)
    with pytest.raises(StorageError, match=f"{NAME}.log: No space left on device"):
        fill(segment, 1)
    assert (segment.size, segment.next_offset) == (0, 100)


def test_errors_of_the_file_system_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"missing/{NAME}.log: No such file"):
        LogSegment.create(tmp_path / "missing", 100, CONFIG, NOW_MS, FILES)
