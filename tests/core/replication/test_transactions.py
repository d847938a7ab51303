"""Transactions of partitions: what readers of committed records get, and who may write."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from regent.core.errors import Errors, ShortageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import (
    ConsumedPartition,
    ConsumerPosition,
    OffsetQuery,
    ProducedPartition,
)
from regent.core.records import RecordBytes
from regent.core.replica_logs import LATEST_TIMESTAMP, MAX_TIMESTAMP, NOT_VERIFIED
from tests.core.replication.record_stage import TWO_IN_SYNC, Pending, RecordBroker, consumed
from tests.core.replication.stage import T0
from tests.support.record_batches import batch
from tests.support.transactional_batches import ABORT, COMMIT, in_transaction, marker

EPOCH = 5
ONE, TWO = 4_001, 4_002


@pytest.fixture
def leader() -> RecordBroker:
    """Leads t-0, which broker 2 follows."""
    leader = RecordBroker()
    leader.apply(1, EPOCH)
    return leader


@pytest.fixture
def follower() -> RecordBroker:
    follower = RecordBroker(2)
    follower.apply(1, EPOCH)
    return follower


def send(leader: RecordBroker, producer_id: int, sequence: int, *values: bytes) -> None:
    """Append a batch of a transaction."""
    data = in_transaction(*values, producer_id=producer_id, sequence=sequence)
    asked = leader.produce_to({T0: data}, acks=1)
    assert asked.answer[T0].error_code is Errors.NONE


def end(
    leader: RecordBroker, producer_id: int, kind: int, producer_epoch: int = 0
) -> Pending[Mapping[TopicPartition, ProducedPartition]]:
    """Append a marker."""
    data = marker(kind, producer_id=producer_id, producer_epoch=producer_epoch)
    return Pending(
        leader.manager, lambda r: leader.manager.append_markers({T0: data}, leader.now_ms, r)
    )


def committed(
    leader: RecordBroker, offset: int = 0, *, waits: bool = False
) -> Pending[Mapping[TopicPartition, ConsumedPartition]]:
    """Fetch as a reader of committed records."""
    return leader.consume(
        {T0: ConsumerPosition(offset, 2**20)}, waits=waits, is_read_committed=True
    )


def latest(leader: RecordBroker, *, is_read_committed: bool, timestamp_ms: int) -> int:
    query = OffsetQuery(timestamp_ms, is_read_committed=is_read_committed)
    return leader.manager.list_offsets({T0: query})[T0].offset


# --- reading --------------------------------------------------------------------------------------


def test_readers_of_committed_records_stop_before_an_open_transaction(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    leader.produce(b"a", acks=1)
    send(leader, ONE, 0, b"b")
    leader.produce(b"c", acks=1)
    follower.follow(leader, times=2)

    answer = committed(leader).answer[T0]
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
    assert consumed(answer) == [b"a"]
    others = leader.consume({T0: 0}).answer[T0]
    assert (others.high_watermark, others.last_stable_offset) == (3, 1)
    assert consumed(others) == [b"a", b"b", b"c"]
    assert [
        latest(leader, is_read_committed=is_rc, timestamp_ms=LATEST_TIMESTAMP)
        for is_rc in (False, True)
    ] == [3, 1]
    assert latest(leader, is_read_committed=True, timestamp_ms=MAX_TIMESTAMP) == 0


@pytest.mark.parametrize(("kind", "told"), [(COMMIT, []), (ABORT, [(ONE, 0)])])
def test_a_waiting_fetch_gets_the_records_when_the_marker_is_committed(
    leader: RecordBroker, follower: RecordBroker, kind: int, told: list[tuple[int, int]]
) -> None:
    send(leader, ONE, 0, b"a")
    follower.follow(leader, times=2)
    reading = committed(leader, waits=True)
    ending = end(leader, ONE, kind)
    follower.follow(leader)
    assert (reading.is_waiting, ending.is_waiting) == (True, True)  # another may lack the marker
    follower.follow(leader)
    assert (reading.is_waiting, ending.is_waiting) == (False, False)
    answer = reading.answer[T0]
    assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
    assert [tuple(each) for each in answer.aborted] == told
    assert leader.consume({T0: 0}).answer[T0].aborted == ()


def test_a_follower_reads_everything_and_knows_the_transactions_when_it_leads(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    send(leader, ONE, 0, b"a")
    send(leader, TWO, 0, b"b")
    end(leader, ONE, ABORT)
    follower.follow(leader, times=3)
    assert follower.log().log_end_offset == 3
    assert follower.hosted().last_stable_offset == 1

    follower.apply(2, EPOCH + 1, isr=(2,))
    answer = committed(follower).answer[T0]
    assert (answer.last_stable_offset, answer.aborted[0]) == (1, (ONE, 0))
    plain = batch(b"c", producer_id=TWO, producer_epoch=0, base_sequence=1)
    asked = follower.produce_to({T0: plain}, acks=1)
    assert asked.answer[T0].error_code is Errors.INVALID_TXN_STATE


def test_the_stable_offset_is_not_below_the_log_start(leader: RecordBroker) -> None:
    leader.apply(1, EPOCH + 1, isr=(1,), replicas=(1,))
    send(leader, ONE, 0, b"a")
    leader.produce(b"b", b"c")
    assert leader.hosted().last_stable_offset == 0
    leader.log().advance_log_start_offset(2)
    assert leader.hosted().last_stable_offset == 2


# --- markers --------------------------------------------------------------------------------------


def test_a_marker_waits_for_all_replicas_in_sync(
    leader: RecordBroker, follower: RecordBroker
) -> None:
    send(leader, ONE, 0, b"a")
    ending = end(leader, ONE, COMMIT)
    assert ending.is_waiting
    assert ending.expire()[T0].error_code is Errors.REQUEST_TIMED_OUT
    again = end(leader, ONE, COMMIT)
    follower.follow(leader, times=2)
    assert again.answer[T0].error_code is Errors.NONE


def test_a_marker_needs_enough_replicas_in_sync() -> None:
    leader = RecordBroker(config=TWO_IN_SYNC)
    leader.apply(1, EPOCH, isr=(1,))
    assert end(leader, ONE, COMMIT).answer[T0].error_code is Errors.NOT_ENOUGH_REPLICAS


def test_a_refused_marker_does_not_hold_up_its_producer() -> None:
    """A client's batch that was refused for now is awaited first; a marker is none."""
    leader = RecordBroker(config=TWO_IN_SYNC)
    leader.apply(1, EPOCH, isr=(1,))
    end(leader, ONE, COMMIT)
    leader.apply(1, EPOCH + 1, isr=(1, 2))
    send(leader, ONE, 0, b"a")
    send(leader, ONE, 1, b"b")


def test_only_the_leader_takes_markers(follower: RecordBroker) -> None:
    assert end(follower, ONE, COMMIT).answer[T0].error_code is Errors.NOT_LEADER_OR_FOLLOWER


def test_a_marker_of_a_former_epoch_is_refused(leader: RecordBroker) -> None:
    end(leader, ONE, ABORT, producer_epoch=2)
    refused = end(leader, ONE, ABORT, producer_epoch=1)
    assert refused.answer[T0].error_code is Errors.INVALID_PRODUCER_EPOCH


def test_a_coordinator_writes_batches_of_transactions_in_its_term(leader: RecordBroker) -> None:
    data = in_transaction(b"offsets", producer_id=ONE, sequence=0)
    for _ in range(2):
        written: Pending[Mapping[TopicPartition, ProducedPartition]] = Pending(
            leader.manager,
            lambda r: leader.manager.append_in_term(T0, EPOCH, 1, data, leader.now_ms, r),
        )
        assert written.answer[T0].error_code is Errors.NONE
    assert leader.log().log_end_offset == 2
    assert leader.log().first_unstable_offset(2) == 0


# --- verification ---------------------------------------------------------------------------------


def test_a_batch_is_refused_if_its_transaction_ended_during_the_verification(
    leader: RecordBroker,
) -> None:
    data = in_transaction(b"a", producer_id=ONE, sequence=0)

    def append(guards: Mapping[TopicPartition, int]) -> Errors:
        return leader.produce_to({T0: data}, acks=1, guards=guards).answer[T0].error_code

    guards = leader.manager.begin_verifications({T0: data})
    assert guards[T0] > 0
    end(leader, ONE, ABORT)
    assert append(guards) is Errors.INVALID_TXN_STATE
    assert append(leader.manager.begin_verifications({T0: data})) is Errors.NONE
    assert leader.manager.begin_verifications({T0: data}) == {T0: 0}


def test_a_batch_of_a_coordinator_is_refused_if_its_transaction_ended_during_the_verification(
    leader: RecordBroker,
) -> None:
    data = in_transaction(b"offsets", producer_id=ONE, sequence=-1)

    def append(guard: int) -> Errors:
        written: Pending[Mapping[TopicPartition, ProducedPartition]] = Pending(
            leader.manager,
            lambda r: leader.manager.append_in_term(T0, EPOCH, 1, data, leader.now_ms, r, guard),
        )
        return written.answer[T0].error_code

    guard = leader.manager.begin_verifications({T0: data})[T0]
    end(leader, ONE, ABORT)
    assert append(guard) is Errors.INVALID_TXN_STATE
    assert append(leader.manager.begin_verifications({T0: data})[T0]) is Errors.NONE
    assert append(leader.manager.begin_verifications({T0: data})[T0]) is Errors.NONE


def test_a_batch_that_was_not_verified_is_refused_if_a_leadership_begins_meanwhile(
    follower: RecordBroker,
) -> None:
    data = in_transaction(b"a", producer_id=ONE, sequence=0)
    guards = follower.manager.begin_verifications({T0: data})
    assert guards == {T0: NOT_VERIFIED}, "it is led elsewhere"
    follower.apply(2, EPOCH + 1)
    end(follower, ONE, ABORT)
    as_client = follower.produce_to({T0: data}, acks=1, guards=guards)
    as_coordinator: Pending[Mapping[TopicPartition, ProducedPartition]] = Pending(
        follower.manager,
        lambda r: follower.manager.append_in_term(
            T0, EPOCH + 1, 1, data, follower.now_ms, r, guards[T0]
        ),
    )
    for produced in (as_client.answer[T0], as_coordinator.answer[T0]):
        assert produced.error_code is Errors.NOT_LEADER_OR_FOLLOWER
    guards = follower.manager.begin_verifications({T0: data})
    produced = follower.produce_to({T0: data}, acks=1, guards=guards).answer[T0]
    assert produced.error_code is Errors.NONE, "the producer repeats it, and it is verified"


def test_a_batch_is_refused_that_was_not_verified_for_a_lack_of_descriptors(
    leader: RecordBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = in_transaction(b"a", producer_id=ONE, sequence=0)

    def lack(_records: RecordBytes) -> int:
        raise ShortageError("no descriptor is free")

    with monkeypatch.context() as patched:
        patched.setattr(leader.log(), "begin_verification", lack)
        guards = leader.manager.begin_verifications({T0: data})
    produced = leader.produce_to({T0: data}, acks=1, guards=guards).answer[T0]
    assert produced.error_code is Errors.NOT_LEADER_OR_FOLLOWER
    assert leader.values() == []
