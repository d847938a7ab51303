"""The newest offset of each key in the part of a log that is being cleaned.

Mirrors ``SkimpyOffsetMap``, which has a table of MD5 digests with 24 bytes a key. A table in Python
code would be many times slower than a dict, which takes about 160 bytes a key: with the same memory
a cleaning deals with fewer keys, and a log with more of them needs several cleanings.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from crc32c import crc32c

from regent.records.record import RecordSpan
from regent.records.record_batch import (
    CHECKED_FROM,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    SPECIAL,
    BatchHeader,
    read_header_fields,
)
from regent.storage.log.log_file import BatchOrder

BYTES_A_KEY = 160
GOES, TOMBSTONE = 1, 2
_MOST_MARKS = 16 * 1024 * 1024  # a byte each; later batches are decoded again
_MARKS_AT_ONCE = 4096
_LEAST_BATCH = HEADER_SIZE + 8  # a record has seven bytes at least, and eight if two are its size
_DIGEST_BYTES = 48  # no shorter key can be taken for the digest of a longer one


class OffsetMap:
    """Holds up to ``max_keys`` keys.

    ``latest_offset``: the newest state of each key is known up to this offset. ``keyless`` counts
    the records without a key. It also marks each record of the part that it is made of, so that
    most batches of that part need not be decoded a second time.
    """

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max(1, max_keys)
        self.latest_offset = -1
        self.keyless = 0
        self._start = 0
        self._offsets: dict[bytes, int] = {}
        self._marks = bytearray()  # by offset, from ``_start`` on; 0: a record that stays, or none

    @classmethod
    def of_memory(cls, size: int, load_factor: float) -> OffsetMap:
        """Return a map that takes about ``size`` bytes, filled up to ``load_factor``."""
        return cls(int(size // BYTES_A_KEY * load_factor))

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def utilization(self) -> float:
        """How much of it is used, from 0 to 1."""
        return len(self._offsets) / self.max_keys

    def begin(self, start: int) -> None:
        """Begin with the records from offset ``start`` on."""
        self._start = start
        self.latest_offset = start - 1

    def put_all(self, header: BatchHeader, records: Iterable[RecordSpan]) -> bool:
        """Set the offsets of the keys of the next batch.

        Return False before the first record for which there is no room.
        """
        offsets, max_keys, marks, start = self._offsets, self.max_keys, self._marks, self._start
        base_offset = header.base_offset - start
        if base_offset + header.last_offset_delta >= len(marks) < _MOST_MARKS:
            wanted = base_offset + header.last_offset_delta + _MARKS_AT_ONCE
            marks.extend(bytes(min(wanted, _MOST_MARKS) - len(marks)))
        limit = len(marks)
        for _, _, _, delta, key, value_at in records:
            position = base_offset + delta  # relative to ``start``
            if position < 0:
                continue
            if key is None:
                self.keyless += 1
                if position < limit:
                    marks[position] = GOES
                continue
            if len(offsets) >= max_keys:
                return False
            short = key if len(key) < _DIGEST_BYTES else _digest(key)
            former = offsets.get(short, -1) - start
            if 0 <= former < limit:
                marks[former] = GOES
            if not value_at and position < limit:
                marks[position] = TOMBSTONE
            offsets[short] = self.latest_offset = start + position
        return True

    def put_lone(  # noqa: C901 - one loop, as in ``read_records``
        self, data: bytes, at: int, stop: int, order: BatchOrder
    ) -> int:
        """Set the offsets of the keys of batches of one record, from the place ``at`` on.

        Return the place of the first batch that is special in any way, also damaged or out of
        order, or that does not end at ``stop``: ``put_all`` is for it. A producer that does not
        wait makes a batch of each record; what is done once for a batch is the work then, so there
        is no object for one here.
        """
        offsets, max_keys, marks, start = self._offsets, self.max_keys, self._marks, self._start
        limit = min(start + len(marks), order.end_offset)  # later offsets have no marks yet
        expected, epoch, view = max(order.expected, start), order.epoch, memoryview(data)
        begun = at
        while at + _LEAST_BATCH < stop and len(offsets) < max_keys:
            base, size, leader_epoch, magic, crc, attributes, delta, *_, count = read_header_fields(
                data, at
            )
            end = at + LENGTH_END + size
            if count != 1 or delta or attributes & SPECIAL or magic != MAGIC or end > stop:
                break
            if not expected <= base < limit or leader_epoch < epoch:
                break
            key_at = at + HEADER_SIZE
            size = data[key_at]
            if size > 127:
                key_at += 1
                size += (data[key_at] << 7) - 128
            # attributes, the deltas of timestamp and offset, the size of the key
            if key_at + 1 + (size >> 1) != end or data[key_at + 2] or data[key_at + 3]:
                break
            length = data[key_at + 4]
            key_at += 5
            value_at = key_at + (length >> 1)
            if length & 1 or length >= 2 * _DIGEST_BYTES or value_at >= end:
                break
            if crc32c(view[at + CHECKED_FROM : end]) != crc:
                break
            key = data[key_at:value_at]
            former = offsets.get(key, -1)
            if former >= start:
                marks[former - start] = GOES
            if data[value_at] & 1:
                marks[base - start] = TOMBSTONE
            offsets[key] = base
            expected, epoch, at = base + 1, leader_epoch, end
        if at > begun:
            order.expected, order.epoch, self.latest_offset = expected, epoch, expected - 1
        return at

    def all_marks(self) -> tuple[bytearray, int]:
        """Return the marks of all offsets from the second value on."""
        return self._marks, self._start

    def marks(self, header: BatchHeader) -> bytearray | None:
        """Return the marks of the offsets of a batch; None: it was not compared as a whole."""
        first = header.base_offset - self._start
        end = first + header.last_offset_delta + 1
        if first < 0 or end > len(self._marks) or header.last_offset > self.latest_offset:
            return None
        return self._marks[first:end]

    def get(self, key: bytes) -> int:
        """Return the newest offset of a key; -1: it is unknown."""
        return self._offsets.get(key if len(key) < _DIGEST_BYTES else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
