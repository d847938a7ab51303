from __future__ import annotations

from regent.core.coordinator.owned_partitions import OwnedPartitions
from regent.core.errors import Errors

LOADING = Errors.COORDINATOR_LOAD_IN_PROGRESS


def test_a_partition_is_owned_when_it_was_read():
    owned = OwnedPartitions()
    assert owned.problem(7) is Errors.NOT_COORDINATOR
    assert owned.on_elected(7, epoch=3, term=3)
    assert owned.problem(7) is LOADING
    assert owned.on_loaded(7, 3, is_read=True)
    assert (owned.problem(7), owned.term(7)) == (Errors.NONE, 3)


def test_a_partition_that_could_not_be_read_is_awaited_until_the_leadership_ends():
    owned = OwnedPartitions()
    owned.on_elected(7, epoch=3, term=3)
    assert not owned.on_loaded(7, 3, is_read=False)
    assert owned.problem(7) is LOADING
    assert owned.is_awaited(7, 3)
    owned.on_resigned(7, 4)
    assert not owned.is_awaited(7, 3)
    assert not owned.on_loaded(7, 3, is_read=True)


def test_a_continued_leadership_is_not_read_again():
    owned = OwnedPartitions()
    owned.on_elected(7, epoch=3, term=3)
    owned.on_loaded(7, 3, is_read=True)
    assert not owned.on_elected(7, epoch=5, term=3)
    assert not owned.on_resigned(7, 4)  # old news
    assert owned.term(7) == 3


def test_a_new_leadership_is_read_even_without_a_message_about_the_end_of_the_former_one():
    owned = OwnedPartitions()
    owned.on_elected(7, epoch=3, term=3)
    owned.on_loaded(7, 3, is_read=True)
    assert owned.on_elected(7, epoch=6, term=6)
    assert owned.problem(7) is LOADING


def test_a_topic_that_is_created_again_has_lower_epochs():
    owned = OwnedPartitions()
    owned.on_elected(7, epoch=3, term=3)
    owned.on_resigned(7, 4)
    assert owned.on_elected(7, epoch=0, term=0)
