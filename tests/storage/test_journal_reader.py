"""Parts of a journal: their size, where they begin, and that no line is lost or repeated."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from regent.core.protocol.broker import DescribeEventsRequest, JournalPosition
from regent.storage.journal_reader import JOURNAL, MAX_PART_BYTES, PREVIOUS, read_part
from tests.support.file_races import between_two_opens

LINES = [f'{{"ts_ms":{n * 1_000},"padding":"{"x" * (n % 700)}"}}' for n in range(1, 2_001)]


def write(directory: Path, name: str, lines: list[str], torn: str = "") -> None:
    (directory / name).write_text("".join(f"{line}\n" for line in lines) + torn)


def all_lines(directory: Path, request: DescribeEventsRequest) -> list[str]:
    """Read to the end; every part but the first begins where the last one ended."""
    found: list[str] = []
    for _ in range(10_000):
        part = read_part(directory, 3, request)
        found += part.lines
        request = DescribeEventsRequest(part.position, max_bytes=request.max_bytes)
        if part.is_end:
            return found
    raise AssertionError("the journal has no end")


@pytest.mark.parametrize("max_bytes", [0, 5_000, 10**9])
@pytest.mark.parametrize("torn", ["", '{"ts_ms":'])
def test_the_parts_are_the_whole_journal(tmp_path: Path, max_bytes: int, torn: str) -> None:
    write(tmp_path, PREVIOUS, LINES[:900], torn)
    write(tmp_path, JOURNAL, LINES[900:], torn)
    assert all_lines(tmp_path, DescribeEventsRequest(max_bytes=max_bytes)) == LINES


def test_no_line_is_cut_wherever_the_first_file_ends(tmp_path: Path) -> None:
    for end in range(640, 700):
        write(tmp_path, PREVIOUS, LINES[600:end])
        write(tmp_path, JOURNAL, LINES[end:720])
        assert all_lines(tmp_path, DescribeEventsRequest(max_bytes=0)) == LINES[600:720]


def test_a_line_that_is_longer_than_the_smallest_part_is_whole(tmp_path: Path) -> None:
    long = [f'{{"ts_ms":{n},"padding":"{"x" * 9_000}"}}' for n in range(5)]
    write(tmp_path, JOURNAL, long)
    assert all_lines(tmp_path, DescribeEventsRequest(max_bytes=0)) == long


def test_a_part_is_limited_whatever_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, JOURNAL, LINES * 5)
    part = read_part(tmp_path, 3, DescribeEventsRequest(max_bytes=2**40))
    assert sum(len(line) + 1 for line in part.lines) <= MAX_PART_BYTES
    assert (part.broker_id, part.is_end) == (3, False)


def test_nothing_is_lost_or_repeated_when_the_file_is_renamed_between_two_parts(
    tmp_path: Path,
) -> None:
    random_part = random.Random(5)
    for _ in range(20):
        (tmp_path / PREVIOUS).unlink(missing_ok=True)
        write(tmp_path, JOURNAL, LINES[:1_000])
        first = read_part(tmp_path, 3, DescribeEventsRequest(max_bytes=random_part.randrange(9**6)))
        (tmp_path / JOURNAL).rename(tmp_path / PREVIOUS)
        between = read_part(tmp_path, 3, DescribeEventsRequest(first.position))
        write(tmp_path, JOURNAL, LINES[1_000:])
        rest = all_lines(tmp_path, DescribeEventsRequest(between.position))
        assert [*first.lines, *between.lines, *rest] == LINES


@pytest.mark.parametrize("has_new_file", [False, True])
def test_no_line_is_lost_if_the_file_is_renamed_while_a_part_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_new_file: bool
) -> None:
    def rotate() -> None:
        (tmp_path / JOURNAL).rename(tmp_path / PREVIOUS)
        if has_new_file:
            write(tmp_path, JOURNAL, LINES[1_000:])

    write(tmp_path, PREVIOUS, LINES[:100])
    write(tmp_path, JOURNAL, LINES[100:900])
    first = read_part(tmp_path, 3, DescribeEventsRequest())
    found = list(first.lines)
    write(tmp_path, JOURNAL, LINES[100:1_000])
    between_two_opens(monkeypatch, rotate)
    part = read_part(tmp_path, 3, DescribeEventsRequest(first.position))
    found += part.lines
    if not has_new_file:
        write(tmp_path, JOURNAL, LINES[1_000:])
    assert found + all_lines(tmp_path, DescribeEventsRequest(part.position)) == LINES


@pytest.mark.parametrize("since", [0, 1, 500, 901, 1_700, 2_000, 9_999])
def test_a_part_since_a_time_has_all_later_events_and_few_earlier_ones(
    tmp_path: Path, since: int
) -> None:
    write(tmp_path, PREVIOUS, LINES[:900])
    write(tmp_path, JOURNAL, LINES[900:])
    found = all_lines(tmp_path, DescribeEventsRequest(since_ms=since * 1_000))
    wanted = LINES[max(since - 1, 0) :]
    assert found[len(found) - len(wanted) :] == wanted
    assert len(found) - len(wanted) <= 700


@pytest.mark.parametrize("last_bytes", [0, 1, 1_000, 300_000, 10**9])
def test_the_last_bytes_begin_with_a_complete_line(tmp_path: Path, last_bytes: int) -> None:
    write(tmp_path, PREVIOUS, LINES[:900])
    write(tmp_path, JOURNAL, LINES[900:])
    request = DescribeEventsRequest(last_bytes=last_bytes)
    found = all_lines(tmp_path, request)
    assert found == LINES[len(LINES) - len(found) :]
    assert sum(len(line) + 1 for line in found) <= last_bytes
    assert read_part(tmp_path, 3, request).is_cut is (len(found) < len(LINES))


def test_a_line_that_is_too_long_and_one_that_is_no_text_are_counted(tmp_path: Path) -> None:
    long, damaged = b"y" * 40_000, b"\xff\xfe"
    (tmp_path / JOURNAL).write_bytes(b"".join(line + b"\n" for line in (b"{}", long, damaged)))
    part = read_part(tmp_path, 3, DescribeEventsRequest())
    assert (part.lines, part.unreadable, part.is_end) == (("{}",), 2, True)


def test_a_position_of_another_journal_begins_again(tmp_path: Path) -> None:
    write(tmp_path, JOURNAL, LINES[:3])
    for position in (JournalPosition(1, 2), JournalPosition(1, 10**15), JournalPosition(1, -5)):
        assert read_part(tmp_path, 3, DescribeEventsRequest(position)).lines == tuple(LINES[:3])


def test_without_a_complete_line_there_is_nothing(tmp_path: Path) -> None:
    assert read_part(tmp_path, 3, DescribeEventsRequest()).is_end
    write(tmp_path, JOURNAL, [], torn='{"ts_ms"')
    part = read_part(tmp_path, 3, DescribeEventsRequest())
    assert (part.lines, part.position, part.is_end) == ((), None, True)
