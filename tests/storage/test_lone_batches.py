"""Batches of one record are cleaned by loops of their own, with the result of the general code."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.records.compression import LZ4, compressed
from regent.storage.compaction.batch_cleaning import BatchCleaning
from regent.storage.compaction.offset_map import OffsetMap
from tests.support.disk_logs import T0, Machine, create
from tests.support.record_batches import keyed_batch

CONFIG = LogConfig(
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0.0,
    segment_bytes=4_000,
    index_interval_bytes=500,
    delete_retention_ms=1_000,
)
BATCHES = 60
KEY_SIZES = (
    2,
    2,
    2,
    2,
    47,
    48,
    63,
    64,
    200,
)  # also around what is used as it is, and one byte of size
VALUE_SIZES = 0, 10, 55, 60, 200


class Cleaned(NamedTuple):
    """What a cleaning left."""

    segments: Mapping[str, bytes]
    first_dirty: int
    damaged: list[TopicPartition]


@contextmanager
def by_the_general_code() -> Iterator[None]:
    def leaves_all(_: object, __: bytes, at: int, *others: object) -> int:
        return at

    with (
        patch.object(OffsetMap, "put_lone", leaves_all),
        patch.object(BatchCleaning, "clean_lone", leaves_all),
    ):
        yield


def random_batch(dice: random.Random, sequences: dict[int, int], epoch: int) -> bytes:
    def record() -> tuple[bytes | None, bytes | None]:
        key = (b"%02d" % dice.randrange(25)).ljust(dice.choice(KEY_SIZES), b"-")
        value = None if dice.random() < 0.15 else bytes(dice.choice(VALUE_SIZES))
        return None if dice.random() < 0.03 else key, value

    rows = [record() for _ in range(dice.choice((1, 1, 1, 1, 1, 3)))]
    fields: dict[str, Any] = {"timestamp_ms": 1_000, "leader_epoch": epoch}
    if dice.random() < 0.1:
        fields |= {"attributes": LZ4, "compress": lambda data: compressed(LZ4, data)}
    elif dice.random() < 0.3:
        producer_id = dice.randrange(3)
        sequence = sequences.get(producer_id, 0)
        sequences[producer_id] = sequence + len(rows)
        fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
    return keyed_batch(*rows, **fields)


def damage(path: Path, dice: random.Random) -> None:
    """Change a byte of a segment; often one that no CRC covers."""
    data = bytearray(path.read_bytes())
    at, size = 0, 0
    for _ in range(dice.randrange(1, 15)):
        following = at + size
        if following + 61 > len(data):
            break
        at, size = following, 12 + int.from_bytes(data[following + 8 : following + 12])
    position = at + dice.choice((*range(8), 15, 15, 16, *range(17, 75)))
    data[min(position, len(data) - 1)] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


def cleaned(directory: Path, seed: int, *, is_damaged: bool) -> list[Cleaned]:
    """Clean a random log three times; return what each time left."""
    dice, sequences = random.Random(seed), dict[int, int]()
    machine = Machine(directory, defaults=CONFIG)
    logs = machine.start()
    most_keys = dice.choice((5, 20, 1_000))
    logs.cleaner.new_map = lambda: OffsetMap(most_keys)  # type: ignore[method-assign]
    log = create(logs)
    found, epoch = [], 0
    for _ in range(3):
        for _ in range(BATCHES):
            epoch += dice.random() < 0.02
            log.append_as_leader(bytearray(random_batch(dice, sequences, epoch)), epoch)
        with log.exclusively() as contents:
            contents.roll(contents.log_end_offset, 0)
        log.flush()
        segments = sorted(log.path.glob("*.log"))[:-1]
        if is_damaged:
            damage(dice.choice(segments), dice)
        logs.checkpoint_high_watermarks({T0: log.log_end_offset})
        logs.cleaner.clean_all()
        left = {path.name: path.read_bytes() for path in sorted(log.path.glob("*.log"))}
        found.append(Cleaned(left, log.first_dirty, list(machine.damaged)))
        machine.clock.now_ms += 1_001
        if machine.damaged:
            break
    machine.end()
    return found


@pytest.mark.parametrize("is_damaged", [False, True])
def test_batches_of_one_record_are_cleaned_as_by_the_general_code(
    tmp_path: Path, is_damaged: bool
) -> None:
    for seed in range(40 if is_damaged else 10):
        with by_the_general_code():
            expected = cleaned(tmp_path / f"{seed}-general", seed, is_damaged=is_damaged)
        found = cleaned(tmp_path / f"{seed}-lone", seed, is_damaged=is_damaged)
        assert found == expected, seed
