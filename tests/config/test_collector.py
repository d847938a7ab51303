"""Pauses of the garbage collector: of several threads, and with many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from regent.config.collector import collector


@pytest.fixture(autouse=True)
def restored_collector() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()
    gc.freeze()  # as it was since the tests were collected


def test_the_collector_works_again_when_the_last_pause_is_over():
    first, second = collector.paused(), collector.paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_was_disabled_stays_so():
    gc.disable()
    with collector.paused():
        pass
    assert not gc.isenabled()


@pytest.mark.parametrize(("count", "are_frozen"), [(100, False), (100_000, True)])
def test_many_objects_of_a_pause_are_not_looked_at_again(count: int, *, are_frozen: bool):
    before = gc.get_freeze_count()
    with collector.paused():
        kept: list[list[int]] = [[] for _ in range(count)]
    frozen = gc.get_freeze_count()
    assert (frozen >= before + count) is are_frozen
    kept.clear()
    assert gc.get_freeze_count() <= frozen - are_frozen * count
