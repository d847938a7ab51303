"""Options become ranges of offsets that exist."""

import pytest

from regent.core.model import TopicPartition
from regent.jobs.source.offsets import LogBounds, OffsetRange
from regent.jobs.source.options import (
    EARLIEST,
    LATEST,
    DataLossError,
    OptionError,
    ReadOptions,
    Subscription,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_missing_offsets_are_an_error_or_omitted():
    wanted = OffsetRange(A0, 5, 20)

    def existing(earliest: int, latest: int, *, strict: bool = True) -> OffsetRange:
        bounds = LogBounds({A0: earliest}, {A0: latest})
        options = ReadOptions({}, Subscription(), fail_on_data_loss=strict)
        return bounds.existing(wanted, options.report_data_loss)

    assert existing(0, 20) == wanted
    with pytest.raises(DataLossError, match=r"a-0: offsets 5 to 9 are gone.*failOnDataLoss=false"):
        existing(10, 30)
    with pytest.raises(DataLossError, match="a-0: offsets 15 to 20 do not exist"):
        existing(0, 15)
    assert existing(10, 15, strict=False) == OffsetRange(A0, 10, 15)
    nothing = existing(40, 50, strict=False)
    assert nothing.start == nothing.end


def test_words_and_numbers_become_offsets():
    bounds = LogBounds({A0: 3, A1: 0}, {A0: 9, A1: 7})
    assert bounds.resolve("endingOffsets", LATEST) == {A0: 9, A1: 7}
    assert bounds.resolve("startingOffsets", {A0: EARLIEST, A1: 5}) == {A0: 3, A1: 5}


def test_given_offsets_must_cover_all_partitions():
    def resolve(*partitions: TopicPartition) -> object:
        bounds = LogBounds(*(dict.fromkeys(partitions, 0) for _ in range(2)))
        return bounds.resolve("startingOffsets", {A0: 1, A1: 2})

    assert resolve(A1, A0) == {A0: 1, A1: 2}
    with pytest.raises(OptionError, match="startingOffsets must name every partition: b-0 is miss"):
        resolve(A0, A1, B0)
    with pytest.raises(OptionError, match="startingOffsets names a-1, which is not read"):
        resolve(A0)
