"""Writes of a deposed controller fail, also after changes of the election znodes by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.controller.controller_election import ControllerElection
from regent.core.errors import ControllerMovedError
from regent.core.model import TopicPartition
from regent.core.ports import ControllerEpoch
from regent.zk.client.operations import (
    ANY_VERSION,
    Create,
    Delete,
    MultiResult,
    Operation,
    Refused,
    ZkError,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import ControllerTermsZNode
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)
from tests.support.world import broker_info, leadership
from tests.support.zookeeper_sessions import Ensemble, apply

CONTROLLER, EPOCH = "/controller", "/controller_epoch"
TERMS = ControllerTermsZNode.PATH


class Candidate:
    """A broker that is elected and writes."""

    def __init__(self, zookeeper: ZooKeeper, broker_id: int = 1) -> None:
        self.zookeeper = zookeeper
        self.store = ZkControllerStore(zookeeper)
        self._elector = ControllerElection(broker_info(broker_id), self.store)

    def elect(self) -> ControllerEpoch:
        """Win an election."""
        won = self._elector.elect(now_ms=1)
        assert won is not None
        return won

    def write(self, term: ControllerEpoch) -> None:
        """Write as the controller of a term; raises ``ControllerMovedError``."""
        states = {TopicPartition("t", 0): leadership(1, (1,))}
        self.store.create_partition_states(states, term.zk_version)


@pytest.fixture
def hand(ensemble: Ensemble) -> ZooKeeper:
    return ensemble.open_session().zk


@pytest.fixture
def one(ensemble: Ensemble) -> Candidate:
    return Candidate(ensemble.open_session().zk, 1)


@pytest.fixture
def two(ensemble: Ensemble) -> Candidate:
    return Candidate(ensemble.open_session().zk, 2)


def depose_unnoticed(hand: ZooKeeper) -> None:
    """Give ``/controller_epoch`` the same version for the next controller as for the first."""
    apply(hand, Delete(CONTROLLER, ANY_VERSION), Delete(EPOCH, ANY_VERSION))


def test_a_deposed_controller_whose_version_repeats_writes_nothing(
    hand: ZooKeeper, one: Candidate, two: Candidate
) -> None:
    deposed = one.elect()
    depose_unnoticed(hand)
    present = two.elect()
    assert present.zk_version == deposed.zk_version
    with pytest.raises(ControllerMovedError):
        one.write(deposed)
    two.write(present)


def test_after_an_election_there_is_only_one_term_znode(
    hand: ZooKeeper, one: Candidate, two: Candidate
) -> None:
    for candidate in (one, two, one):
        candidate.elect()
        apply(hand, Delete(CONTROLLER, ANY_VERSION))
    assert hand.children(TERMS) == [f"{one.zookeeper.session_id:x}-3"]


def test_a_controller_whose_term_is_deleted_by_hand_is_elected_again(
    hand: ZooKeeper, one: Candidate
) -> None:
    interrupted = one.elect()
    (term,) = hand.children(TERMS) or ("",)
    apply(
        hand,
        *(
            Delete(path, ANY_VERSION)
            for path in (
                f"{TERMS}/{term}",
                TERMS,
                "/regent",
            )
        ),
    )
    with pytest.raises(ControllerMovedError):
        one.write(interrupted)
    one.write(one.elect())


def test_an_election_deletes_foreign_znodes_among_the_terms(
    hand: ZooKeeper, one: Candidate
) -> None:
    apply(
        hand,
        *map(
            Create,
            (
                "/regent",
                TERMS,
                f"{TERMS}/a",
                f"{TERMS}/a/b",
                f"{TERMS}/c",
            ),
        ),
    )
    one.write(one.elect())
    assert len(hand.children(TERMS) or ()) == 1


# --- during an election ---------------------------------------------------------------------------


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def interrupted(server: FakeZooKeeperServer) -> FakeZooKeeper:
    return FakeZooKeeper(server)


def test_a_controller_that_won_while_the_answer_was_lost_can_be_deposed(
    server: FakeZooKeeperServer, interrupted: FakeZooKeeper
) -> None:
    one, two = Candidate(interrupted, 1), Candidate(FakeZooKeeper(server), 2)
    interrupted.hook = once(Moment.AFTER, lose_connection, path=CONTROLLER)
    deposed = one.elect()
    depose_unnoticed(FakeZooKeeper(server))
    two.elect()
    with pytest.raises(ControllerMovedError):
        one.write(deposed)


def test_a_term_that_begins_after_the_others_were_read_is_ended_too(
    server: FakeZooKeeperServer, interrupted: FakeZooKeeper
) -> None:
    one, two = Candidate(interrupted, 1), Candidate(FakeZooKeeper(server), 2)
    hand = FakeZooKeeper(server)
    server.put(TERMS)
    second_term: list[ControllerEpoch] = []

    def elect_unnoticed() -> None:
        second_term.append(two.elect())
        depose_unnoticed(hand)
        apply(hand, Create(EPOCH, b"0"))  # the version that the candidate has read

    interrupted.hook = once(Moment.BEFORE, elect_unnoticed, path=CONTROLLER)
    one.write(one.elect())
    with pytest.raises(ControllerMovedError):
        two.write(second_term[0])


def test_a_deposed_controller_whose_version_repeats_does_not_raise_the_epoch(
    server: FakeZooKeeperServer, interrupted: FakeZooKeeper
) -> None:
    one, two = Candidate(interrupted, 1), Candidate(FakeZooKeeper(server), 2)
    deposed = one.elect()

    def replace_it() -> None:
        depose_unnoticed(FakeZooKeeper(server))
        two.elect()

    interrupted.hook = once(Moment.BEFORE, replace_it, path=EPOCH)
    with pytest.raises(ControllerMovedError):
        one.store.raise_controller_epoch(1, 42, deposed.zk_version)


def test_the_error_of_a_denied_election_names_the_znode(server: FakeZooKeeperServer) -> None:
    server.put(EPOCH, b"1")
    with pytest.raises(RequestRefusedError, match=f"refused {CONTROLLER}: NO_AUTH"):
        Candidate(Refusing(server)).elect()


class Refusing(FakeZooKeeper):
    """Denies the creation of nodes, as an ACL of the root does."""

    def multi(self, operations: Sequence[Operation]) -> MultiResult:
        """Refuse."""
        return Refused(0, ZkError.NO_AUTH)
