"""Reads the journal of a broker's controller in parts: ``events.jsonl.1``, then ``events.jsonl``.

A part ends after a complete line. The next part begins at the position that the last one returned,
also if the file was renamed meanwhile. ``actors/event_journal.py`` explains the lines.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.broker import (
    DescribeEventsRequest,
    DescribeEventsResponse,
    JournalPosition,
)

JOURNAL: Final = "events.jsonl"
PREVIOUS: Final = "events.jsonl.1"
"""The journal before the present one: it was full."""

MAX_PART_BYTES: Final = 1024 * 1024
_MIN_PART_BYTES: Final = 4096
_MAX_LINE_BYTES: Final = 32_000  # of a string of the control protocol
_TIME: Final = re.compile(rb'"ts_ms":\s*([0-9]{1,18})')
_LINEAR_BYTES: Final = 64 * 1024
_CLOCK_STEP_MS: Final = 60_000  # how far a clock may have been set back


class _File(NamedTuple):
    """One file of a journal; ``number`` names it, whatever its name is. ``size`` is in bytes."""

    file: BinaryIO
    number: int
    size: int


def read_part(
    directory: Path, broker_id: BrokerId, request: DescribeEventsRequest
) -> DescribeEventsResponse:
    """Return the lines of a journal after a position, at most ``MAX_PART_BYTES`` of them.

    Without a position, or if that file is gone, begin with the first line, near ``since_ms`` or
    near ``last_bytes`` before the end. Raises ``OSError``.
    """
    budget = min(max(request.max_bytes, _MIN_PART_BYTES), MAX_PART_BYTES)
    with ExitStack() as opened:
        files = _open(directory, opened)
        if not files:
            return DescribeEventsResponse(Errors.NONE, broker_id, (), request.position, True)
        at = next((n for n, file in enumerate(files) if _is_in(file, request.position)), None)
        is_cut = False
        if at is None or request.position is None:
            at, offset, is_cut = _start(files, request)
        else:
            offset = request.position.offset
        lines: list[bytes] = []
        while True:
            offset, budget = _read_lines(files[at], offset, budget, lines)
            if budget <= 0 or at == len(files) - 1:
                break
            at, offset = at + 1, 0  # an incomplete line at the end stays incomplete
        is_end = budget > 0 and at == len(files) - 1
        texts = [_text(line) for line in lines]
        return DescribeEventsResponse(
            Errors.NONE,
            broker_id,
            tuple(text for text in texts if text is not None),
            JournalPosition(files[at].number, offset),
            is_end,
            is_cut,
            texts.count(None),
        )


def _open(directory: Path, opened: ExitStack) -> list[_File]:
    """Open the files that have a complete line; return the older one first.

    It is opened last: between two opens the journal may be renamed, and must not be missed then.
    """
    files: list[_File] = []
    for name in (JOURNAL, PREVIOUS):
        try:
            file = opened.enter_context((directory / name).open("rb"))
        except FileNotFoundError:
            continue
        first = file.readline(_MAX_LINE_BYTES)
        number = zlib.crc32(first)
        is_complete = first.endswith(b"\n") or len(first) == _MAX_LINE_BYTES
        if is_complete and number not in (file.number for file in files):  # renamed just now
            files.insert(0, _File(file, number, file.seek(0, 2)))
    return files


def _is_in(file: _File, position: JournalPosition | None) -> bool:
    return position is not None and (
        position.file_number == file.number and 0 <= position.offset <= file.size
    )


def _start(files: Sequence[_File], request: DescribeEventsRequest) -> tuple[int, int, bool]:
    """Return the number of a file and the offset of a line; and whether ``last_bytes`` chose it."""
    at, offset = 0, 0
    if request.since_ms > 0:
        since_ms = request.since_ms - _CLOCK_STEP_MS
        at = max((n for n, file in enumerate(files) if _first_ms(file) < since_ms), default=0)
        offset = _offset_near(files[at], since_ms)
    if request.last_bytes is None:
        return at, offset, False
    left = max(request.last_bytes, 0)
    for number in range(len(files) - 1, at - 1, -1):
        begin = offset if number == at else 0
        if files[number].size - begin > left:
            return number, _line_after(files[number], files[number].size - left), True
        left -= files[number].size - begin
    return at, offset, False


def _first_ms(file: _File) -> int:
    found = _ms_after(file, 0)
    return 0 if found is None else found


def _offset_near(file: _File, since_ms: int) -> int:
    """Return the offset of a line before the first one of ``since_ms``, but not far before it."""
    low, high = 0, file.size
    while high - low > _LINEAR_BYTES:
        middle = (low + high) // 2
        found = _ms_after(file, _line_after(file, middle))
        if found is not None and found < since_ms:
            low = middle
        else:
            high = middle
    return _line_after(file, low)


def _line_after(file: _File, offset: int) -> int:
    """Return where the next line begins, at ``offset`` or after it."""
    if offset <= 0:
        return 0
    file.file.seek(offset - 1)
    file.file.readline(2 * _MAX_LINE_BYTES)
    return file.file.tell()


def _ms_after(file: _File, offset: int) -> int | None:
    """Return the time of the first line that has one."""
    file.file.seek(offset)
    found = _TIME.search(file.file.read(2 * _MAX_LINE_BYTES))
    return None if found is None else int(found[1])


def _read_lines(file: _File, offset: int, budget: int, lines: list[bytes]) -> tuple[int, int]:
    """Add complete lines; return the offset after them, and how many bytes may still be read.

    That is 0 or less if there is more in the file. The first line is read whatever is left.
    """
    limit = budget if lines else max(budget, _MAX_LINE_BYTES + 1)
    file.file.seek(offset)
    data = file.file.read(min(limit, file.size - offset))
    end = data.rfind(b"\n") + 1
    if not end and len(data) == limit:
        if lines:
            return offset, 0  # the next part begins with it
        end = len(data)  # a line that is too long
    lines += data[:end].removesuffix(b"\n").split(b"\n") if end else ()
    has_more = offset + len(data) < file.size
    return offset + end, 0 if has_more else budget - len(data)


def _text(line: bytes) -> str | None:
    """Return a line as text; None: it is damaged, or too long to be sent."""
    if len(line) > _MAX_LINE_BYTES:
        return None
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None
