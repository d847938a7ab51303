"""The newest offset of each key in the part of a log that is being cleaned.

Mirrors ``SkimpyOffsetMap``, which has a table of MD5 digests with 24 bytes a key. A table in Python
code would be many times slower than a dict, which takes about 160 bytes a key: with the same memory
a cleaning deals with fewer keys, and a log with more of them needs several cleanings.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from regent.storage.record_decoder import DecodedRecord

BYTES_A_KEY = 160
_DIGEST_BYTES = 48  # no shorter key can be taken for the digest of a longer one


class OffsetMap:
    """Holds up to ``max_keys`` keys.

    ``latest_offset``: the newest state of each key is known up to this offset.
    """

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max(1, max_keys)
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

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

    def put_all(self, records: Iterable[DecodedRecord], base_offset: int, start: int) -> bool:
        """Set the offsets of the keys of a batch, from offset ``start`` on.

        Return False before the first record for which there is no room.
        """
        offsets, max_keys = self._offsets, self.max_keys
        for _, _, _, delta, key, _ in records:
            offset = base_offset + delta
            if key is None or offset < start:
                continue
            if len(offsets) >= max_keys:
                return False
            offsets[key if len(key) < _DIGEST_BYTES else _digest(key)] = offset
            self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """Return the newest offset of a key; -1: it is unknown."""
        return self._offsets.get(key if len(key) < _DIGEST_BYTES else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
