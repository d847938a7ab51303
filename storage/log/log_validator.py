"""Validates batches from producers and from leaders before they are appended.

Mirrors ``kafka.log.LogValidator.validateBatch`` and ``UnifiedLog.analyzeAndValidateRecords``.
Checks headers and CRCs only. Before, ``records.record_validation`` checked each record of a
producer, and that the header matches them.
"""

from __future__ import annotations

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.records import RecordBytes
from regent.core.replica_logs import NO_TIMESTAMP, AppendOrigin
from regent.records.record_batch import BatchHeader, PlacedBatch, batches, check_crc

_COMPRESSIONS = 4


def batches_of_producer(
    records: RecordBytes,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> list[PlacedBatch]:
    """Return the batches of a producer. Raises ``RecordsRefusedError`` if one is invalid."""
    found = []
    for position, header in batches(records):
        if header.size > config.max_message_bytes:
            raise RecordsRefusedError(
                Errors.MESSAGE_TOO_LARGE,
                f"a batch of {header.size} bytes, but max.message.bytes is"
                f" {config.max_message_bytes}",
            )
        check_crc(records, position, header)
        _check_contents(header, origin)
        _check_time(header, config, now_ms)
        found.append((position, header))
    if len(records) > config.segment_bytes:
        raise RecordsRefusedError(
            Errors.RECORD_LIST_TOO_LARGE,
            f"{len(records)} bytes of records, but segment.bytes is {config.segment_bytes}",
        )
    if not found:
        raise RecordsRefusedError(Errors.INVALID_RECORD, "no records")
    return found


def check_leader_epoch(leader_epoch: int | None, expected: int) -> None:
    """Check the epoch in which records were fetched; None: any. Raises ``RecordsRefusedError``."""
    if leader_epoch not in (None, expected):
        raise RecordsRefusedError(
            Errors.FENCED_LEADER_EPOCH, f"fetched in leader epoch {leader_epoch}, not {expected}"
        )


def batches_of_leader(
    records: RecordBytes, log_end_offset: int, *, may_overlap: bool
) -> list[PlacedBatch]:
    """Return batches fetched from a leader, which begin at or after ``log_end_offset``.

    ``may_overlap``: the first one may begin before it. Raises ``RecordsRefusedError`` if a batch
    does not follow the one before, or is corrupt.
    """
    found: list[PlacedBatch] = []
    expected = log_end_offset
    for position, header in batches(records):
        check_crc(records, position, header)
        overlaps = may_overlap and not found and header.last_offset >= expected
        if header.base_offset < expected and not overlaps:
            raise RecordsRefusedError(
                Errors.CORRUPT_MESSAGE,
                f"offsets {header.base_offset} to {header.last_offset} do not follow: the next"
                f" offset is {expected}",
            )
        expected = header.next_offset
        found.append((position, header))
    return found


def _check_contents(header: BatchHeader, origin: AppendOrigin) -> None:
    """Refuse batches that only brokers write, and inconsistent headers."""
    problem, is_of_client = None, origin is AppendOrigin.CLIENT
    if header.is_control and is_of_client:
        problem = "producers must not write control records"
    elif header.is_transactional and header.producer_id < 0:
        problem = "a transactional batch without a producer id"
    elif header.record_count <= 0:
        problem = "a batch without records"
    elif header.last_offset_delta != header.record_count - 1:
        problem = f"{header.record_count} records but offsets up to +{header.last_offset_delta}"
    elif header.base_offset != 0:
        problem = f"a batch that begins at offset {header.base_offset}, not at 0"
    elif header.compression > _COMPRESSIONS:
        problem = f"compression {header.compression} does not exist"
    elif is_of_client and header.producer_id >= 0 and header.base_sequence < 0:
        problem = f"producer {header.producer_id} gives no sequence number"
    if problem is not None:
        raise RecordsRefusedError(Errors.INVALID_RECORD, problem)


def _check_time(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Refuse a producer's LogAppendTime, and a newest record too far from the broker's time.

    The first timestamp of the header need not be that of a record.
    """
    if header.stamps_append_time:
        raise RecordsRefusedError(Errors.INVALID_TIMESTAMP, "producers must not set LogAppendTime")
    if config.stamps_append_time:
        return
    timestamp, past_ms, future_ms = header.max_timestamp, config.max_past_ms, config.max_future_ms
    if timestamp != NO_TIMESTAMP and not -past_ms <= timestamp - now_ms <= future_ms:
        raise RecordsRefusedError(
            Errors.INVALID_TIMESTAMP,
            f"timestamp {timestamp} is not within {past_ms} ms before and {future_ms} ms after"
            f" {now_ms}",
        )
