"""Thousands of conditional writes: which are refused, and the number of transactions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.errors import ControllerMovedError, SessionExpiredError
from regent.core.ports import WriteError
from regent.zk.client.operations import (
    Check,
    Create,
    Delete,
    MultiResult,
    Operation,
    Refused,
    SetData,
    ZkError,
    ZnodeStat,
)
from regent.zk.client.requests import MAX_REQUEST_BYTES, Multi, RequestRefusedError
from regent.zk.stores.fenced_writes import (
    BYTES_BESIDE_DATA,
    BYTES_OF_FENCE,
    MAX_OPERATIONS,
    Outcome,
    Write,
    WriteRefused,
    write_fenced,
    write_unfenced,
)
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

EPOCH = "/controller_epoch"
FENCE = Check(EPOCH, 0)


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put(EPOCH, b"1")
    server.put("/n")
    server.transactions.clear()
    return server


def creates(count: int) -> list[Write]:
    return [[Create(f"/n/{number}")] for number in range(count)]


def created(server: FakeZooKeeperServer) -> set[int]:
    prefix = "/n/"
    return {int(p.removeprefix(prefix)) for p in server.snapshot() if p.startswith(prefix)}


def sizes(server: FakeZooKeeperServer) -> list[int]:
    """Return the number of writes in each transaction, without the fence."""
    return [
        len([op for op in transaction.operations if op != FENCE])
        for transaction in server.transactions
        if transaction.session_id
    ]


def refused(outcomes: list[Outcome]) -> dict[int, WriteRefused]:
    return {n: o for n, o in enumerate(outcomes) if isinstance(o, WriteRefused)}


# --- outcomes -------------------------------------------------------------------------------------


def test_each_write_has_the_results_of_its_own_operations(zookeeper: FakeZooKeeper) -> None:
    outcomes = write_fenced(
        zookeeper,
        [
            [Create("/n/a"), Create("/n/a/b", b"x")],
            [SetData("/n/a/b", b"y", 0)],
            [Delete("/n/a/b", 1), Delete("/n/a", 0), Create("/n/c")],
        ],
        fence=[FENCE],
    )
    assert outcomes[0] == ("/n/a", "/n/a/b")
    assert len(outcomes[1]) == 1  # type: ignore[arg-type]
    stat = outcomes[1][0]  # type: ignore[index]
    assert isinstance(stat, ZnodeStat)
    assert stat.version == 1
    assert outcomes[2] == (None, None, "/n/c")


def test_nothing_to_write_costs_nothing(zookeeper: FakeZooKeeper) -> None:
    calls: list[Call] = []
    zookeeper.hook = calls.append
    assert write_fenced(zookeeper, [], [FENCE]) == []
    assert calls == []


def test_every_transaction_begins_with_the_fence(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put("/n/7")
    write_fenced(zookeeper, creates(MAX_OPERATIONS + 10), [FENCE])
    mine = [t for t in server.transactions if t.session_id]
    assert len(mine) == 2
    assert all(transaction.operations[0] == FENCE for transaction in mine)
    assert all(FENCE not in transaction.operations[1:] for transaction in mine)


# --- refused writes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        ([SetData("/n", b"", 7)], WriteRefused(WriteError.BAD_VERSION, 0)),
        ([SetData("/x", b"", 0)], WriteRefused(WriteError.NO_NODE, 0)),
        ([Create("/n")], WriteRefused(WriteError.NODE_EXISTS, 0)),
        ([Create("/n/new"), Create("/x/y")], WriteRefused(WriteError.NO_NODE, 1)),
        (
            [Create("/n/a"), Create("/n/b"), Delete("/n", 3)],
            WriteRefused(WriteError.BAD_VERSION, 2),
        ),
    ],
)
def test_a_refused_write_names_the_reason_and_the_operation(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, write: Write, expected: WriteRefused
) -> None:
    writes = [[Create("/n/1")], write, [Create("/n/2")]]
    outcomes = write_fenced(zookeeper, writes, [FENCE])
    assert outcomes == [("/n/1",), expected, ("/n/2",)]
    assert created(server) == {1, 2}, "of the refused one nothing was applied"


def test_one_refused_write_is_taken_out_and_the_others_applied_together(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put("/n/7")
    outcomes = write_fenced(zookeeper, creates(100), [FENCE])
    assert refused(outcomes) == {7: WriteRefused(WriteError.NODE_EXISTS, 0)}
    assert sizes(server) == [99]


@pytest.mark.parametrize("offenders", [{0, 1}, {0, 99}, {98, 99}, {3, 50, 51}, set(range(100))])
def test_with_several_refused_writes_all_others_succeed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, offenders: set[int]
) -> None:
    for number in offenders:
        server.put(f"/n/{number}")
    outcomes = write_fenced(zookeeper, creates(100), [FENCE])
    assert set(refused(outcomes)) == offenders
    assert sizes(server) == [1] * (100 - len(offenders)), "each in a multi of its own"
    assert [outcomes[n] for n in range(100) if n not in offenders] == [
        (f"/n/{n}",) for n in range(100) if n not in offenders
    ]


def test_many_refused_writes_cost_few_calls(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    calls: list[Call] = []
    for number in range(0, 1000, 3):
        server.put(f"/n/{number}")
    zookeeper.hook = lambda call: calls.append(call) if call.moment is Moment.BEFORE else None
    write_fenced(zookeeper, creates(1000), [FENCE])
    assert [call.method for call in calls] == ["multi_many"] * 3


def test_a_refused_write_in_one_multi_does_not_affect_another(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    for number in (3, 4):
        server.put(f"/n/{number}")
    outcomes = write_fenced(zookeeper, creates(2 * MAX_OPERATIONS), [FENCE])
    assert set(refused(outcomes)) == {3, 4}
    assert sizes(server)[0] == MAX_OPERATIONS


def test_writes_that_depend_on_earlier_ones_are_applied_in_sequence(
    zookeeper: FakeZooKeeper,
) -> None:
    outcomes = write_fenced(
        zookeeper, [[Create("/n/a")], [Create("/n/a")], [Create("/n/a/b")]], [FENCE]
    )
    assert outcomes == [("/n/a",), WriteRefused(WriteError.NODE_EXISTS, 0), ("/n/a/b",)]


def test_only_the_write_below_an_ephemeral_node_is_refused(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    below = [Create("/n/a", ephemeral=True), Create("/n/a/b")]
    outcomes = write_fenced(zookeeper, [below, [Create("/n/1")]], [FENCE])
    assert outcomes == [WriteRefused(WriteError.NOT_ALLOWED, 1), ("/n/1",)]
    assert created(server) == {1}


def test_only_the_write_that_is_too_large_for_zookeeper_is_refused(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    huge = [SetData("/n", b"x" * (server.max_request_bytes - BYTES_OF_FENCE), 0)]
    outcomes = write_fenced(zookeeper, [[Create("/n/1")], huge, [Create("/n/2")]], [FENCE])
    assert outcomes == [("/n/1",), WriteRefused(WriteError.TOO_LARGE, 0), ("/n/2",)]
    assert created(server) == {1, 2}


def test_the_largest_write_fits_into_a_request() -> None:
    beside = BYTES_OF_FENCE + BYTES_BESIDE_DATA + len("/n")
    largest = SetData("/n", b"x" * (MAX_REQUEST_BYTES - beside), 0)
    Multi([FENCE, largest], chroot="/chroot")  # raises otherwise


class Refusing(FakeZooKeeper):
    """Refuses every multi with an unknown error code."""

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """Refuse."""
        return [Refused(1, ZkError.OTHER) for _ in batches]


def test_an_unexpected_error_names_the_operation(
    server: FakeZooKeeperServer,
) -> None:
    with pytest.raises(RequestRefusedError, match="Create /n/1: OTHER"):
        write_fenced(Refusing(server), creates(2)[1:], [FENCE])


# --- the fence ------------------------------------------------------------------------------------


def test_after_another_election_nothing_is_applied(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put(EPOCH, b"2")
    with pytest.raises(ControllerMovedError):
        write_fenced(zookeeper, creates(3), fence=[FENCE])
    assert created(server) == set()


def test_an_election_between_two_transactions_stops_the_second(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    zookeeper.hook = once(Moment.BETWEEN, lambda: server.put(EPOCH, b"2"))
    with pytest.raises(ControllerMovedError):
        write_fenced(zookeeper, creates(2 * MAX_OPERATIONS), [FENCE])
    assert created(server) == set(range(MAX_OPERATIONS))


def test_an_epoch_that_was_deleted_stops_everything(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    FakeZooKeeper(server).multi([Delete(EPOCH, 0)])
    with pytest.raises(ControllerMovedError):
        write_fenced(zookeeper, creates(3), [FENCE])


def test_administration_writes_without_a_fence(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put(EPOCH, b"2")
    server.put("/n/1")
    outcomes = write_unfenced(zookeeper, creates(3))
    assert outcomes == [("/n/0",), WriteRefused(WriteError.NODE_EXISTS, 0), ("/n/2",)]
    assert not [op for t in server.transactions for op in t.operations if isinstance(op, Check)]


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expected"),
    [(999, [999]), (1000, [1000]), (1001, [1000, 1]), (5000, [1000] * 5)],
)
def test_a_transaction_has_at_most_a_thousand_operations(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, count: int, expected: list[int]
) -> None:
    assert MAX_OPERATIONS == 1000
    outcomes = write_fenced(zookeeper, creates(count), [FENCE])
    assert sizes(server) == expected
    assert refused(outcomes) == {}
    assert created(server) == set(range(count))


def test_the_operations_of_one_write_are_in_one_transaction(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    writes = [[Create(f"/n/{n}"), Create(f"/n/{n}/state"), Create(f"/n/{n}/x")] for n in range(334)]
    assert refused(write_fenced(zookeeper, writes, [FENCE])) == {}
    assert sizes(server) == [999, 3]


def test_a_transaction_is_at_most_half_of_zookeepers_limit(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.max_request_bytes = 10_000
    half = b"x" * (5_000 // 2 - 200)
    writes: list[Write] = [[Create(f"/n/{n}", half)] for n in range(5)]
    writes.insert(2, [Create("/n/big", b"x" * 5_000)])
    assert refused(write_fenced(zookeeper, writes, [FENCE])) == {}
    assert sizes(server) == [2, 1, 2, 1]


# --- connections that break -----------------------------------------------------------------------


def test_writes_that_never_arrived_are_sent_again(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    zookeeper.hook = once(Moment.BEFORE, lose_connection)
    assert write_fenced(zookeeper, creates(3), [FENCE]) == [("/n/0",), ("/n/1",), ("/n/2",)]
    assert sizes(server) == [3]


def test_writes_with_a_lost_answer_look_refused_and_the_caller_must_read(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    zookeeper.hook = once(Moment.AFTER, lose_connection)
    outcomes = write_fenced(zookeeper, creates(3), [FENCE])
    assert outcomes == [WriteRefused(WriteError.NODE_EXISTS, 0)] * 3
    assert created(server) == {0, 1, 2}


def test_the_end_of_the_session_ends_the_writes(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    zookeeper.hook = lambda _: zookeeper.close()
    with pytest.raises(SessionExpiredError):
        write_fenced(zookeeper, creates(3), [FENCE])
    assert created(server) == set()
