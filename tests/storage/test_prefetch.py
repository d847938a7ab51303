"""Parts of segments are read from the disk into memory before a reader needs them."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.records.record_batch import batches
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.prefetch import SMALL_BYTES
from regent.storage.log.unified_log import UnifiedLog
from regent.testing.waits import eventually
from tests.support.disk_logs import send
from tests.support.record_batches import batch

NOW_MS = 1_700_000_000_000
VALUE = b"v" * 10_000
BATCHES = 30
LIMIT = 2**63 - 1


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """A sealed segment of 300 kB, one record a batch."""
    segment = LogSegment.create(tmp_path, 0, LogConfig(), NOW_MS, OpenFiles())
    data = b"".join(batch(VALUE, base_offset=offset) for offset in range(BATCHES))
    segment.append(data, list(batches(data)))
    segment.seal()
    segment.flush()
    return segment


def is_in_memory(segment: LogSegment, position: int = 0) -> bool:
    """Whether the page of a position and the last one are in memory.

    Unlike ``is_cached``, this does not make the kernel begin to read the file.
    """
    pages = (ctypes.c_ubyte * -(-segment.size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    with segment.path.open("rb") as file:
        access = mmap.PROT_READ | mmap.PROT_WRITE  # of a private copy
        mapped = mmap.mmap(file.fileno(), segment.size, mmap.MAP_PRIVATE, access)
    first = ctypes.c_char.from_buffer(mapped)
    failed = libc.mincore(ctypes.byref(first), ctypes.c_size_t(segment.size), pages)
    del first
    mapped.close()
    assert not failed, os.strerror(ctypes.get_errno())
    return bool(pages[position // mmap.PAGESIZE] & 1 and pages[-1] & 1)


def forget(segment: LogSegment) -> None:
    """Let the kernel drop the segment from its page cache: it keeps pages that are not written."""
    fd = os.open(segment.path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    if is_in_memory(segment):
        pytest.skip("the file system of the temporary directory keeps files in memory")


def test_records_that_were_just_appended_are_in_memory(segment: LogSegment):
    assert segment.prefetch(0, 2**30) is None


def test_records_that_are_only_on_the_disk_are_read_into_memory(segment: LogSegment):
    forget(segment)
    work = segment.prefetch(0, 2**30)
    assert work is not None
    work()
    eventually(lambda: is_in_memory(segment), "all is read")
    assert segment.prefetch(0, 2**30) is None


def test_a_little_at_the_end_needs_no_prefetch(segment: LogSegment):
    forget(segment)
    assert segment.prefetch(BATCHES - 2, 2**30) is None


def test_a_small_segment_needs_no_prefetch(tmp_path: Path):
    segment = LogSegment.create(tmp_path, 0, LogConfig(), NOW_MS, OpenFiles())
    assert segment.prefetch(0, 2**30) is None
    data = batch(b"v" * (SMALL_BYTES // 2))
    segment.append(data, list(batches(data)))
    segment.close()
    assert segment.prefetch(0, 2**30) is None


def test_a_segment_without_its_indexes_in_memory_is_prefetched_with_them(segment: LogSegment):
    segment.close()
    forget(segment)
    work = segment.prefetch(1, 2**30)
    assert work is not None
    work()
    eventually(lambda: is_in_memory(segment, len(VALUE)), "the second batch and the rest are read")
    records = segment.read(1, 2**30, LIMIT, at_least_one=True)
    assert records is not None
    assert records.size > 20 * len(VALUE)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_prefetch_of_a_segment_that_was_deleted_meanwhile_does_nothing(
    segment: LogSegment, is_closed: bool
):
    if is_closed:
        segment.close()
    forget(segment)
    work = segment.prefetch(0, 2**30)
    assert work is not None
    segment.delete()
    work()


def test_a_prefetch_of_a_segment_that_was_truncated_meanwhile_ends(segment: LogSegment):
    forget(segment)
    work = segment.prefetch(0, 2**30)
    assert work is not None
    segment.truncate_to(1)
    work()


def test_a_prefetch_with_a_damaged_index_does_nothing(segment: LogSegment):
    segment.close()
    segment.path.with_suffix(".index").write_bytes(b"123")
    work = segment.prefetch(0, 2**30)
    assert work is not None
    work()


def test_a_prefetch_of_a_missing_segment_fails_as_a_read_and_the_log_stays_usable(
    disk_log: UnifiedLog,
):
    disk_log.configure(LogConfig(segment_bytes=SMALL_BYTES + 1000))
    for _ in range(2):
        send(disk_log, b"v" * SMALL_BYTES)
    first, _ = sorted(disk_log.path.glob("*.log"))
    first.unlink()
    for _ in range(2):
        disk_log.delete_old_segments(0)  # closes files that are not used
    with pytest.raises(DamagedRecordsError, match="the file is gone"):
        disk_log.prefetch(0, 2**30)
    assert disk_log.is_usable
