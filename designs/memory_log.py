"""The log of a replica, in memory, with its high watermark and a checkpoint of it.

The designs before leader epochs (KIP-101) truncate a log to the checkpointed high watermark when
its replica starts or begins to follow. Kafka did so until 0.11; records that were committed can be
lost by it.
"""

from __future__ import annotations

from collections.abc import Sequence


class MemoryLog:
    """Records by offset, from 0; the high watermark is the first offset that is not committed."""

    def __init__(self) -> None:
        self.records: list[str] = []
        self.high_watermark = 0
        self.checkpoint = 0
        """The high watermark that survives the end of the process."""

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return len(self.records)

    def append(self, records: Sequence[str]) -> int:
        """Append records; return the offset behind the last one."""
        self.records.extend(records)
        return self.log_end_offset

    def read(self, offset: int) -> list[str]:
        """Return the records from ``offset`` on."""
        return self.records[offset:]

    def commit(self, high_watermark: int) -> None:
        """Raise the high watermark, as far as the log goes."""
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end_offset))

    def write_checkpoint(self) -> None:
        """Remember the high watermark."""
        self.checkpoint = self.high_watermark

    def recover(self) -> None:
        """Start again from the checkpoint. What is behind it stays, until the replica follows."""
        self.high_watermark = self.checkpoint

    def truncate_to_high_watermark(self) -> None:
        """Drop what is not known to be committed."""
        del self.records[self.high_watermark :]
