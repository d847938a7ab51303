"""Which markers a cleaning may remove, and which aborted transactions the new index must have."""

from __future__ import annotations

import pytest

from regent.records.end_transaction_marker import ABORT, COMMIT
from regent.records.record_batch import BatchHeader, read_header
from regent.storage.compaction.batch_cleaning import CleanedTransactions
from regent.storage.log.transaction_index import AbortedTransaction
from tests.support.record_batches import batch
from tests.support.transactional_batches import in_transaction, marker

PRODUCER, OTHER = 7, 9


def records(offset: int, producer_id: int = PRODUCER) -> BatchHeader:
    return read_header(
        in_transaction(b"v", producer_id=producer_id, sequence=0, base_offset=offset)
    )


def end(kind: int, offset: int, producer_id: int = PRODUCER) -> BatchHeader:
    return read_header(marker(kind, producer_id=producer_id, base_offset=offset))


def aborted(first: int, last: int, producer_id: int = PRODUCER) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last)


class Cleaning:
    def __init__(self, *aborted: AbortedTransaction) -> None:
        self.indexed: list[AbortedTransaction] = []
        self.transactions = CleanedTransactions(self.indexed.append)
        self.transactions.add(aborted)

    def is_aborted(self, header: BatchHeader) -> bool:
        return self.transactions.is_aborted(header)

    def is_done(self, kind: int | None, header: BatchHeader) -> bool:
        return self.transactions.is_marker_done(header, kind)


@pytest.mark.parametrize("is_left_of_first", [True, False])
@pytest.mark.parametrize("is_left_of_second", [True, False])
def test_an_abort_marker_may_be_removed_when_its_transaction_has_no_batch_in_the_log(
    is_left_of_first: bool, is_left_of_second: bool
):
    """A batch of the producer's transaction before it does not count."""
    first, second = aborted(0, 1), aborted(2, 3)
    cleaning = Cleaning(first, second)
    if is_left_of_first:
        assert cleaning.is_aborted(records(0))
    assert cleaning.is_done(ABORT, end(ABORT, 1)) is not is_left_of_first
    if is_left_of_second:
        assert cleaning.is_aborted(records(2))
    assert cleaning.is_done(ABORT, end(ABORT, 3)) is not is_left_of_second
    left = [(first, is_left_of_first), (second, is_left_of_second)]
    assert cleaning.indexed == [transaction for transaction, is_left in left if is_left]


@pytest.mark.parametrize("is_left_of_first", [True, False])
@pytest.mark.parametrize("is_left_of_second", [True, False])
def test_a_commit_marker_may_be_removed_when_its_transaction_has_no_batch_in_the_log(
    is_left_of_first: bool, is_left_of_second: bool
):
    cleaning = Cleaning()
    if is_left_of_first:
        assert not cleaning.is_aborted(records(0))
    assert cleaning.is_done(COMMIT, end(COMMIT, 1)) is not is_left_of_first
    if is_left_of_second:
        assert not cleaning.is_aborted(records(2))
    assert cleaning.is_done(COMMIT, end(COMMIT, 3)) is not is_left_of_second
    assert cleaning.indexed == []


def test_an_aborted_transaction_between_two_commits_of_a_producer_ends_with_its_marker():
    cleaning = Cleaning(aborted(2, 3))
    assert not cleaning.is_aborted(records(0))
    assert not cleaning.is_done(COMMIT, end(COMMIT, 1))
    assert cleaning.is_aborted(records(2))
    assert not cleaning.is_done(ABORT, end(ABORT, 3))
    assert not cleaning.is_aborted(records(4))
    assert not cleaning.is_done(COMMIT, end(COMMIT, 5))
    assert cleaning.is_done(COMMIT, end(COMMIT, 6))


def test_transactions_of_two_producers_overlap():
    mine, others = aborted(0, 4), aborted(1, 3, OTHER)
    cleaning = Cleaning(others, mine)  # an index has them in the order of their markers
    assert cleaning.is_aborted(records(0))
    assert cleaning.is_aborted(records(1, OTHER))
    assert not cleaning.is_done(ABORT, end(ABORT, 3, OTHER))
    assert cleaning.indexed == [others]
    assert not cleaning.is_aborted(records(4, OTHER)), "its next transaction is not aborted"
    assert not cleaning.is_done(ABORT, end(ABORT, 5))
    assert cleaning.indexed == [others, mine]


def test_a_commit_of_one_producer_leaves_the_other_its_batches():
    cleaning = Cleaning()
    assert not cleaning.is_aborted(records(0))
    assert not cleaning.is_aborted(records(1, OTHER))
    assert not cleaning.is_done(COMMIT, end(COMMIT, 2))
    assert not cleaning.is_done(COMMIT, end(COMMIT, 3, OTHER))


def test_an_aborted_transaction_begins_at_its_first_offset_and_not_before():
    cleaning = Cleaning(aborted(5, 9))
    assert not cleaning.is_aborted(records(4))
    assert cleaning.is_aborted(records(5))


def test_records_outside_of_transactions_are_not_aborted():
    cleaning = Cleaning(aborted(0, 9))
    plain = read_header(batch(b"v", base_offset=3, producer_id=PRODUCER, base_sequence=0))
    assert not cleaning.is_aborted(plain)


def test_a_marker_that_an_earlier_cleaning_emptied_is_done():
    cleaning = Cleaning()
    assert cleaning.is_done(None, end(COMMIT, 1))
    assert not cleaning.is_done(2, end(COMMIT, 3)), "a marker of an unknown kind stays"
