"""Arithmetic of offset ranges and limits."""

import random

import pytest

from regent.core.model import TopicPartition
from regent.jobs.source.offset_range import DataLossError, OffsetRange, existing_range, split
from regent.jobs.source.offsets import check_names, from_json, limited, to_json
from regent.jobs.source.options import EARLIEST, OffsetsOption, OptionError

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_of_ranges_cover_them_once(seed: int):
    chance = random.Random(seed)
    ranges = [
        OffsetRange(TopicPartition("t", number), start, start + chance.choice((0, 1, 7, 1000)))
        for number, start in enumerate(chance.choices(range(100), k=chance.randrange(1, 6)))
    ]
    wanted = chance.choice((1, 3, 10, 40))
    pieces = split(ranges, wanted)
    offsets = [(p.partition, offset) for p in pieces for offset in range(p.start, p.end)]
    assert offsets == [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    assert all(piece.size for piece in pieces)
    assert len(pieces) <= max(2 * wanted, len(ranges))


def test_a_large_partition_is_cut_more_often_than_a_small_one():
    pieces = split([OffsetRange(A0, 0, 900), OffsetRange(A1, 50, 150)], 10)
    assert [piece.partition for piece in pieces] == [A0] * 9 + [A1]


@pytest.mark.parametrize("seed", range(20))
def test_a_limit_is_shared_in_proportion_with_a_minimum(seed: int):
    chance = random.Random(seed)
    partitions = [TopicPartition("t", n) for n in range(chance.randrange(1, 8))]
    start = {p: chance.randrange(100) for p in partitions if chance.random() > 0.2}
    latest = {p: start.get(p, 0) + chance.choice((0, 1, 10, 5000)) for p in partitions}
    limit = chance.choice((1, 10, 1000))
    ends = limited(start, latest, limit)
    taken = {p: end - start.get(p, 0) for p, end in ends.items()}
    new = {p: end - start.get(p, 0) for p, end in latest.items()}
    assert all((0 < taken[p] <= new[p]) if new[p] else taken[p] == 0 for p in partitions)
    assert sum(taken.values()) <= limit + len(partitions)
    if sum(new.values()) <= limit:
        assert ends == latest


def test_missing_offsets_are_an_error_or_left_out():
    wanted = OffsetRange(A0, 5, 20)
    assert existing_range(wanted, 0, 20, fail_on_data_loss=True) == wanted
    with pytest.raises(DataLossError, match=r"a-0: offsets 5 to 9 are gone.*failOnDataLoss=false"):
        existing_range(wanted, 10, 30, fail_on_data_loss=True)
    with pytest.raises(DataLossError, match="a-0: offsets 15 to 20 do not exist"):
        existing_range(wanted, 0, 15, fail_on_data_loss=True)
    assert existing_range(wanted, 10, 15, fail_on_data_loss=False) == OffsetRange(A0, 10, 15)
    assert existing_range(wanted, 40, 50, fail_on_data_loss=False).size == 0


def test_offsets_survive_a_checkpoint_and_have_one_form():
    offsets = {TopicPartition("b", 10): 1, B0: 5, A1: 2, TopicPartition("b", 9): 0}
    document = to_json(offsets)
    assert list(document["b"]) == ["0", "9", "10"]
    assert list(document) == ["a", "b"]
    assert from_json(document) == offsets


def test_given_offsets_must_cover_all_partitions():
    check_names(OffsetsOption("startingOffsets", EARLIEST), [A0])
    option = OffsetsOption("startingOffsets", offsets={A0: 1, A1: 2})
    check_names(option, [A1, A0])
    with pytest.raises(OptionError, match="startingOffsets must name every partition: b-0 is miss"):
        check_names(option, [A0, A1, B0])
    with pytest.raises(OptionError, match="startingOffsets names a-1, which is not read"):
        check_names(option, [A0])
