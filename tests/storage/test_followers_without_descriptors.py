"""Without file descriptors a follower cannot truncate: later it has its leader's records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from regent.core.replication.partition import Role
from regent.storage.log.unified_log import UnifiedLog
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import LAG_MS, A
from tests.support.descriptors import SHORTAGE
from tests.support.disk_logs import Machine, create, fill, log_of, values
from tests.support.memory_logs import MemoryLog

LEADER, FOLLOWER = 1, 2
_MOST_OPENS = 60
_MOST_FETCHES = 20


def lead(leader: RecordBroker, leader_epoch: int, until: int) -> None:
    """Write records in a leader epoch; those of epoch 0 are what ``fill`` writes."""
    leader.apply(LEADER, leader_epoch, isr=(LEADER,))
    while (end := leader.log().log_end_offset) < until:
        leader.produce(b"of the leader" if leader_epoch else b"%04d" % end, acks=1)


def no_epoch_in_common(log: UnifiedLog, leader: RecordBroker) -> None:
    """All records of the follower are its own."""
    fill(log, 10)
    lead(leader, 1, until=20)


def an_epoch_in_which_the_leader_has_more(log: UnifiedLog, leader: RecordBroker) -> None:
    """The last common epoch ends later in the leader's log, beyond the end of the follower's."""
    fill(log, 5)
    fill(log, 5, leader_epoch=1)
    lead(leader, 0, until=12)
    lead(leader, 2, until=20)


def a_log_that_begins_after_the_truncation(log: UnifiedLog, leader: RecordBroker) -> None:
    """Nothing is left of the follower's log: it begins again at the leader's log start offset."""
    fill(log, 10)
    log.advance_log_start_offset(8)
    log.delete_old_segments(0)
    lead(leader, 1, until=20)


def a_leader_that_begins_after_the_end(log: UnifiedLog, leader: RecordBroker) -> None:
    """The follower begins again at an offset after its end."""
    fill(log, 5)
    lead(leader, 0, until=20)
    leader.log().advance_log_start_offset(12)


def a_leader_that_begins_at_the_end(log: UnifiedLog, leader: RecordBroker) -> None:
    """The follower begins again at its end, in the answer that has records."""
    fill(log, 5)
    lead(leader, 0, until=20)
    leader.log().advance_log_start_offset(5)


def fetch(follower: RecordBroker, leader: RecordBroker) -> None:
    """Fetch once, and handle the answer."""
    follower.now_ms += LAG_MS  # nothing backs off
    request = follower.manager.fetch_request(LEADER, follower.now_ms)
    if request is not None:
        answer = leader.serve(request).expire(leader.now_ms)
        follower.take(leader, request, answer)


def check_equal(ours: UnifiedLog, theirs: MemoryLog) -> None:
    """Compare the records of two logs, and their epochs."""
    assert values(ours) == [record.value for record in theirs.records()]
    assert ours.log_start_offset == theirs.log_start_offset
    for epoch in range(4):
        assert ours.end_offset_for_epoch(epoch) == theirs.end_offset_for_epoch(epoch)


@pytest.mark.parametrize("fetches", [1, 2])
@pytest.mark.parametrize(
    "history",
    [
        no_epoch_in_common,
        an_epoch_in_which_the_leader_has_more,
        a_log_that_begins_after_the_truncation,
        a_leader_that_begins_after_the_end,
        a_leader_that_begins_at_the_end,
    ],
)
def test_a_follower_that_could_not_truncate_gets_the_records_of_its_leader(
    tmp_path: Path, history: Callable[[UnifiedLog, RecordBroker], None], fetches: int
):
    for opened in range(_MOST_OPENS):
        machine = Machine(tmp_path / f"{opened}")
        try:
            log, leader = create(machine.start(), topic_id=A), RecordBroker(LEADER)
            history(log, leader)
            follower = RecordBroker(FOLLOWER, logs=cast("Any", machine.logs))
            follower.apply(LEADER, leader.hosted().leader_epoch, isr=(LEADER,))
            with SHORTAGE.after(opened, machine.directories[0]):
                for _ in range(fetches):
                    fetch(follower, leader)
            was_met = SHORTAGE.is_met
            for _ in range(_MOST_FETCHES):
                fetch(follower, leader)
            assert (follower.hosted().role, log.log_end_offset) == (Role.FOLLOWER, 20)
            check_equal(log, leader.log())
            check_equal(log_of(machine.crash()), leader.log())
        finally:
            machine.end()
        if not was_met:
            assert opened > 0
            return
    pytest.fail("it opens more files than expected")
