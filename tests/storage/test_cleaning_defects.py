"""Defects that are planted into the log cleaner on purpose are found by its random histories."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from regent.storage.compaction.batch_cleaning import BatchCleaning
from regent.storage.compaction.log_cleaner import Cleaning
from regent.storage.log.unified_log import UnifiedLog
from tests.storage.test_cleaning_histories import CleaningHistory

pytestmark = pytest.mark.nightly

Patch = AbstractContextManager[Any]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def past_high_watermark() -> Patch:
    """Clean records that are not committed."""
    return patch.object(UnifiedLog, "last_stable_offset", 2**62)


def tombstones_at_once() -> Patch:
    """Drop tombstones in the first cleaning."""
    kept = BatchCleaning._kept

    def without(self: BatchCleaning, *args: Any) -> Any:
        return [record for record in kept(self, *args) if not record[5]]

    return patch.object(BatchCleaning, "_kept", without)


def horizon_of_now() -> Patch:
    """Let tombstones go in the second cleaning, however early it is."""
    init = BatchCleaning.__init__

    def without(self: BatchCleaning, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "delete_retention_ms": 0})

    return patch.object(BatchCleaning, "__init__", without)


def no_empty_batches() -> Patch:
    """Drop the last batch of a live producer."""
    return patch.object(BatchCleaning, "_emptied", nothing)


def partial_map_for_all() -> Patch:
    """Take a full map for one of the whole dirty part."""
    build = Cleaning._build_map

    def built(self: Cleaning) -> None:
        build(self)
        self._offsets.latest_offset = max(self._offsets.latest_offset, self._found.bound - 1)

    return patch.object(Cleaning, "_build_map", built)


DEFECTS: list[tuple[Callable[[], Patch], int]] = [
    (past_high_watermark, 10),
    (tombstones_at_once, 10),
    (horizon_of_now, 20),
    (no_empty_batches, 32),
    (partial_map_for_all, 18),
]
"""Each with the number of steps of histories that find it quickly."""


@pytest.mark.parametrize(
    ("defect", "steps"), DEFECTS, ids=[defect.__name__ for defect, _ in DEFECTS]
)
def test_a_planted_defect_is_found(defect: Callable[[], Patch], steps: int) -> None:
    same = settings(
        max_examples=500,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        print_blob=False,
    )
    with pytest.raises(AssertionError), defect():
        run_state_machine_as_test(CleaningHistory, settings=same)
