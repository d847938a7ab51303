"""ACLs in ZooKeeper, the fake one and a real one: written, followed by other brokers, damaged."""

from __future__ import annotations

import threading

import pytest

from regent.core.errors import Errors, UnreadableError
from regent.core.security.acl_cache import CHANGE_EXPIRATION_MS, MAX_AGE_S, AclCache
from regent.core.security.acls import (
    AccessControlEntry,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    Resource,
    ResourcePattern,
    ResourceType,
)
from regent.core.security.authorizer import AclAuthorizer, AuthorizerSettings
from regent.core.security.session import KafkaPrincipal, Session
from regent.zk.client.operations import ANY_VERSION, Delete, SetData
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.znodes import ResourceZNode
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)
from tests.support.zookeeper_sessions import Ensemble, WatchingSession, apply

ALLOW = AclPermissionType.ALLOW
READ, WRITE = AclOperation.READ, AclOperation.WRITE
T = ResourcePattern(ResourceType.TOPIC, "t", PatternType.LITERAL)
PRE = ResourcePattern(ResourceType.TOPIC, "pre", PatternType.PREFIXED)
ALICE = AccessControlEntry("User:alice", "*", READ, ALLOW)
BOB = AccessControlEntry("User:bob", "*", READ, ALLOW)
EVERYTHING = AclBindingFilter(
    ResourceType.ANY, None, PatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
DAMAGED = b'{"version":1,"acls":[{"principal":"User:alice"}]}'


class OneBroker:
    """What a broker knows of the ACLs; ``now_s`` is its clock."""

    def __init__(
        self, zookeeper: ZooKeeper, super_users: str = "", *, everyone: bool = False
    ) -> None:
        settings = AuthorizerSettings.of(super_users, allow_everyone_if_no_acl_found=everyone)
        self.now_s = 0.0
        self.authorizer = AclAuthorizer(settings, lambda: self.now_s)
        self.acls = AclCache(
            ZkAclStore(zookeeper), self.authorizer, threading.Lock(), lambda: self.now_s
        )
        self.acls.start()

    def may(self, user: str, topic: str) -> bool:
        session = Session("10.0.0.1", KafkaPrincipal("User", user))
        return self.authorizer.authorize(session, READ, Resource(ResourceType.TOPIC, topic))

    def create(self, pattern: ResourcePattern, *entries: AccessControlEntry) -> None:
        outcomes = self.acls.create([AclBinding(pattern, entry) for entry in entries])
        assert [error.error_code for error in outcomes] == [Errors.NONE] * len(entries)


@pytest.fixture
def session(ensemble: Ensemble) -> WatchingSession:
    return ensemble.open_session()


@pytest.fixture
def broker(session: WatchingSession) -> OneBroker:
    return OneBroker(session.zk)


@pytest.fixture
def other(ensemble: Ensemble, broker: OneBroker) -> OneBroker:
    del broker  # it has created the paths
    return OneBroker(ensemble.open_session().zk)


# --- on the fake and a real ZooKeeper -------------------------------------------------------------


def test_other_brokers_follow_what_is_created_and_deleted(
    broker: OneBroker, other: OneBroker
) -> None:
    broker.create(T, ALICE)
    broker.create(PRE, BOB)
    assert broker.may("alice", "t")  # at once
    assert broker.may("bob", "prefix")
    other.acls.catch_up(sync=True)
    assert (other.may("alice", "t"), other.may("bob", "prefix")) == (True, True)
    assert (other.may("bob", "t"), other.may("alice", "prefix")) == (False, False)
    ((found,),) = other.acls.delete([EVERYTHING._replace(principal="User:alice")])
    assert found == (AclBinding(T, ALICE), (Errors.NONE, ""))
    broker.acls.catch_up(sync=True)
    assert (broker.may("alice", "t"), broker.may("bob", "prefix")) == (False, True)


def test_a_change_fires_the_watch_of_the_other_kind_of_patterns_not(
    session: WatchingSession, broker: OneBroker, other: OneBroker
) -> None:
    session.events()
    other.create(PRE, BOB)
    paths = {event.path for event in session.events()}
    assert paths == {"/kafka-acl-extended-changes"}


def test_the_znode_of_a_resource_without_entries_is_deleted(
    session: WatchingSession, broker: OneBroker
) -> None:
    broker.create(T, ALICE, BOB)
    broker.acls.delete([EVERYTHING._replace(principal="User:bob")])
    node = session.zk.get("/kafka-acl/Topic/t")
    assert node is not None
    assert ResourceZNode.decode(node.data) == {ALICE}
    broker.acls.delete([EVERYTHING])
    assert session.zk.get("/kafka-acl/Topic/t") is None
    assert broker.acls.find(EVERYTHING) == []


def test_an_entry_that_exists_is_created_again_without_a_notification(
    session: WatchingSession, broker: OneBroker
) -> None:
    broker.create(T, ALICE)
    broker.create(T, ALICE)
    assert session.zk.children("/kafka-acl-changes") == ["acl_changes_0000000000"]
    assert broker.acls.find(EVERYTHING) == [AclBinding(T, ALICE)]


def test_what_another_broker_created_is_deleted_before_this_one_knows_it(
    broker: OneBroker, other: OneBroker
) -> None:
    other.create(T, ALICE)
    named = EVERYTHING._replace(resource_type=ResourceType.TOPIC, name="t")
    assert broker.acls.delete([named]) == [[(AclBinding(T, ALICE), (Errors.NONE, ""))]]


def test_entries_that_two_brokers_create_are_both_kept(broker: OneBroker, other: OneBroker) -> None:
    broker.create(T, ALICE)
    other.create(T, BOB)
    broker.acls.catch_up(sync=True)
    assert {entry for _, entry in broker.acls.find(EVERYTHING)} == {ALICE, BOB}


def test_damaged_acls_deny_their_resource_to_all_but_super_users(
    session: WatchingSession, broker: OneBroker
) -> None:
    broker.create(T, ALICE)
    apply(session.zk, SetData("/kafka-acl/Topic/t", DAMAGED, ANY_VERSION))
    open_to_all = OneBroker(session.zk, "User:root", everyone=True)
    assert not open_to_all.may("alice", "t")
    assert open_to_all.may("alice", "u")
    assert open_to_all.may("root", "t")
    (outcome,) = open_to_all.acls.create([AclBinding(T, BOB)])
    assert outcome.error_code is Errors.UNKNOWN_SERVER_ERROR
    assert "/kafka-acl/Topic/t" in outcome.message


def test_acls_that_may_not_be_read_deny_their_resource(
    ensemble: Ensemble, session: WatchingSession, broker: OneBroker
) -> None:
    broker.create(T, ALICE)
    ensemble.deny("/kafka-acl/Topic/t")
    fresh = OneBroker(session.zk, everyone=True)
    assert (fresh.may("alice", "t"), fresh.may("alice", "u")) == (False, True)


def test_a_broker_does_not_start_if_the_list_of_acls_may_not_be_read(
    ensemble: Ensemble, session: WatchingSession, broker: OneBroker
) -> None:
    ensemble.deny("/kafka-acl/Topic")
    with pytest.raises(UnreadableError, match="/kafka-acl/Topic"):
        OneBroker(session.zk)


# --- on the fake one ------------------------------------------------------------------------------


@pytest.fixture
def known(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper) -> OneBroker:
    del server
    return OneBroker(zookeeper)


def test_types_that_are_unknown_are_left_out(server: FakeZooKeeperServer, known: OneBroker) -> None:
    server.put("/kafka-acl/Elephant")
    server.put("/kafka-acl/Elephant/x", b"{}")
    server.put("/kafka-acl/TOPIC", b"")
    known.acls.distrust()
    known.acls.catch_up()
    assert known.acls.find(EVERYTHING) == []


def test_all_acls_are_read_again_when_notifications_were_missed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, known: OneBroker
) -> None:
    server.put("/kafka-acl/Topic/u", ResourceZNode.encode({BOB}))  # its notification is gone
    other = OneBroker(zookeeper)
    for number in range(3):
        other.create(T._replace(name=f"t{number}"), ALICE)
    server.remove("/kafka-acl-changes/acl_changes_0000000000")
    assert not known.may("bob", "u")
    known.acls.catch_up()
    assert known.may("bob", "u")
    assert known.may("alice", "t0")


@pytest.mark.parametrize("data", [b"nonsense", b"Elephant:x"])
def test_a_notification_that_cannot_be_decoded_makes_all_acls_be_read(
    server: FakeZooKeeperServer, known: OneBroker, data: bytes
) -> None:
    server.put("/kafka-acl/Topic/u", ResourceZNode.encode({BOB}))
    server.put("/kafka-acl-changes/acl_changes_", data, is_sequential=True)
    known.acls.catch_up()
    assert known.may("bob", "u")


def test_acls_that_nobody_told_of_are_found_after_a_time(
    server: FakeZooKeeperServer, known: OneBroker
) -> None:
    server.put("/kafka-acl/Topic/u", ResourceZNode.encode({BOB}))
    known.now_s = MAX_AGE_S
    known.acls.catch_up()
    assert not known.may("bob", "u")
    known.now_s = MAX_AGE_S + 1
    known.acls.catch_up()
    assert known.may("bob", "u")


def test_notifications_that_begin_again_are_all_read(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, known: OneBroker
) -> None:
    for _ in range(2):
        known.create(T, ALICE)
        known.acls.delete([EVERYTHING])
    known.acls.catch_up()
    for name in server.children_of("/kafka-acl-changes"):
        server.remove(f"/kafka-acl-changes/{name}")
    server.remove("/kafka-acl-changes")
    server.put("/kafka-acl-changes")
    OneBroker(zookeeper).create(T, BOB)  # its number is lower than the last one
    known.acls.catch_up()
    assert known.may("bob", "t")


def test_if_acls_may_not_be_read_any_more_those_before_stay(
    server: FakeZooKeeperServer, known: OneBroker
) -> None:
    known.create(T, ALICE)
    server.deny("/kafka-acl-changes")
    server.put("/kafka-acl/Topic/t", ResourceZNode.encode({BOB}))
    known.acls.catch_up()
    assert known.may("alice", "t")
    server.allow("/kafka-acl-changes")
    known.acls.catch_up()  # all are read
    assert (known.may("alice", "t"), known.may("bob", "t")) == (False, True)


def test_old_notifications_are_deleted() -> None:
    now_ms = [0]
    server = FakeZooKeeperServer(now_ms=lambda: now_ms[0])
    known = OneBroker(FakeZooKeeper(server))
    known.create(T, ALICE)
    known.create(PRE, ALICE)
    now_ms[0] = CHANGE_EXPIRATION_MS + 1
    known.create(T, BOB)
    known.acls.catch_up()
    assert server.children_of("/kafka-acl-changes") == ["acl_changes_0000000001"]
    assert server.children_of("/kafka-acl-extended-changes") == ["acl_changes_0000000000"]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_what_was_deleted_is_told_also_after_a_lost_answer(
    zookeeper: FakeZooKeeper, known: OneBroker, moment: Moment
) -> None:
    known.create(T, ALICE)
    zookeeper.hook = once(moment, lose_connection)
    assert known.acls.delete([EVERYTHING]) == [[(AclBinding(T, ALICE), (Errors.NONE, ""))]]
    assert known.acls.find(EVERYTHING) == []


def test_a_concurrent_change_of_the_same_resource_is_kept(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, known: OneBroker
) -> None:
    theirs = ResourceZNode.encode({BOB})
    zookeeper.hook = once(Moment.BEFORE, lambda: server.put("/kafka-acl/Topic/t", theirs))
    known.create(T, ALICE)
    assert {entry for _, entry in known.acls.find(EVERYTHING)} == {ALICE, BOB}


def test_a_resource_that_another_client_deletes_meanwhile_gets_its_new_entry(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, known: OneBroker
) -> None:
    known.create(T, BOB)
    zookeeper.hook = once(
        Moment.BEFORE, lambda: apply(FakeZooKeeper(server), Delete("/kafka-acl/Topic/t", 0))
    )
    known.create(T, ALICE)
    assert [entry for _, entry in known.acls.find(EVERYTHING)] == [ALICE]


@pytest.mark.parametrize(
    ("pattern", "entry"),
    [
        (T._replace(name=""), ALICE),
        (T._replace(name="a/b"), ALICE),
        (T._replace(name=".."), ALICE),
        (T._replace(name="a\0"), ALICE),
        (T._replace(resource_type=ResourceType.CLUSTER), ALICE),
        (T._replace(resource_type=ResourceType.ANY), ALICE),
        (T._replace(pattern_type=PatternType.MATCH), ALICE),
        (T._replace(pattern_type=PatternType.ANY), ALICE),
        (T, ALICE._replace(operation=AclOperation.ANY)),
        (T, ALICE._replace(permission_type=AclPermissionType.ANY)),
        (T, ALICE._replace(principal="alice")),
        (T, ALICE._replace(host="")),
    ],
)
def test_an_acl_that_means_nothing_is_not_created(
    known: OneBroker, pattern: ResourcePattern, entry: AccessControlEntry
) -> None:
    wrong, right = known.acls.create([AclBinding(pattern, entry), AclBinding(T, BOB)])
    assert (wrong.error_code, right.error_code) == (Errors.INVALID_REQUEST, Errors.NONE)
    assert wrong.message
    assert known.acls.find(EVERYTHING) == [AclBinding(T, BOB)]


def test_damaged_acls_are_counted_and_in_the_log_once(
    session: WatchingSession, caplog: pytest.LogCaptureFixture
) -> None:
    broker = OneBroker(session.zk, everyone=True)
    broker.create(T, ALICE)
    assert broker.acls.damaged == 0
    node = session.zk.get("/kafka-acl/Topic/t")
    assert node is not None
    session.zk.multi([SetData("/kafka-acl/Topic/t", DAMAGED, node.stat.version)])
    for _ in range(3):
        broker.acls.distrust()
        broker.acls.catch_up()
        assert not broker.may("alice", "t")
        assert not broker.may("bob", "t")
    assert broker.acls.damaged == 1
    (line,) = [record for record in caplog.messages if "/kafka-acl/Topic/t" in record]
    assert "denied to all but super users" in line
