"""The newest offset of each key in the part of a log that is being cleaned.

Mirrors ``SkimpyOffsetMap``, which has a table of MD5 digests with 24 bytes a key. A table in Python
code would be many times slower than a dict, which takes about 160 bytes a key: with the same memory
a cleaning deals with fewer keys, and a log with more of them needs several cleanings.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from regent.records.record import RecordSpan
from regent.records.record_batch import BatchHeader

BYTES_A_KEY = 160
GOES, TOMBSTONE = 1, 2
_MOST_MARKS = 16 * 1024 * 1024  # a byte each; later batches are decoded again
_MARKS_AT_ONCE = 4096
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
