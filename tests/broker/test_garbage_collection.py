"""The survivors of a long garbage collection are not looked at again."""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Iterator
from math import inf

import pytest

from regent.broker.garbage_collection import limit_pauses


@pytest.fixture(autouse=True)
def restored_collector() -> Iterator[None]:
    """Leave the collector as it was."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.freeze()  # as it was since the tests were collected


@pytest.mark.parametrize("generation", [1, 2])
def test_survivors_of_a_long_collection_are_frozen_and_freed_when_nothing_refers_to_them(
    generation: int,
) -> None:
    limit_pauses(long_s=-1.0)
    before = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1_000)]
    gc.collect(generation)
    frozen = gc.get_freeze_count()
    assert frozen >= before + len(kept)
    kept.clear()
    assert gc.get_freeze_count() <= frozen - 1_000


YOUNGEST = [] if sysconfig.get_config_var("Py_GIL_DISABLED") else [(-1.0, 0)]


@pytest.mark.parametrize(("long_s", "generation"), [(inf, 2), (inf, 0), *YOUNGEST])
def test_nothing_is_frozen_after_a_short_collection_or_one_of_the_youngest(
    long_s: float, generation: int
) -> None:
    limit_pauses(long_s)
    before = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1_000)]
    gc.collect(generation)
    assert gc.get_freeze_count() < before + len(kept)
