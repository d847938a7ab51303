"""The authorizer of a broker by its settings, over a fake ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from regent.actors.scheduler import Scheduler
from regent.broker.broker_authorizer import BrokerAuthorizer
from regent.config.settings_file import load_settings
from regent.config.tables.authorizer import ACL_AUTHORIZER
from regent.core.errors import RegentError
from regent.core.security.acls import (
    CLUSTER,
    AccessControlEntry,
    AclOperation,
    AclPermissionType,
    Resource,
    ResourceType,
)
from regent.core.security.authorizer import ALLOW_ALL
from regent.core.security.session import KafkaPrincipal, Session
from regent.testing.waits import eventually
from regent.zk.client.operations import Create, WatchEvent
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.znodes import (
    AclChangeNotificationSequenceZNode,
    ResourceZNode,
)
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

READ = AclOperation.READ
T = Resource(ResourceType.TOPIC, "t")
ROOT, ALICE = (Session("10.0.0.1", KafkaPrincipal("User", name)) for name in ("root", "alice"))
OF_ALICE = AccessControlEntry("User:alice", "*", READ, AclPermissionType.ALLOW)


def authorizer(**settings: Any) -> BrokerAuthorizer:
    return BrokerAuthorizer(load_settings(None, {"authorizer": settings}).authorizer)


class Started:
    """A broker's authorizer that follows a ZooKeeper."""

    def __init__(self, undo: ExitStack, **settings: Any) -> None:
        self.server = FakeZooKeeperServer()
        self.made = authorizer(authorizer_class_name=ACL_AUTHORIZER, **settings)

        def on_watch(event: WatchEvent) -> None:
            self.made.on_watch(event.path)

        self.zookeeper = FakeZooKeeper(self.server, on_watch=on_watch)
        scheduler = Scheduler("scheduler")
        undo.callback(scheduler.shutdown)
        self.made.start(self.zookeeper, 0, scheduler, undo)

    def may(self, session: Session) -> bool:
        return self.made.for_clients.authorize(session, READ, T)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_without_authorizer_class_name_everything_is_allowed():
    made = authorizer()
    assert made.for_clients is made.for_brokers is ALLOW_ALL


def test_before_the_acls_were_read_only_super_users_may_do_something():
    made = authorizer(
        authorizer_class_name=ACL_AUTHORIZER,
        super_users="User:root",
        allow_everyone_if_no_acl_found=True,
    )
    assert made.for_clients.authorize(ROOT, READ, T)
    assert not made.for_clients.authorize(ALICE, READ, T)
    assert made.for_brokers.authorize(ALICE, AclOperation.CLUSTER_ACTION, CLUSTER)


def test_allow_everyone_if_no_acl_found_opens_what_has_no_acl(undo: ExitStack):
    assert not Started(undo).may(ALICE)
    assert Started(undo, allow_everyone_if_no_acl_found=True).may(ALICE)


def test_super_users_need_no_acl(undo: ExitStack):
    started = Started(undo, super_users="User:root; User:CN=broker,O=us")
    assert (started.may(ROOT), started.may(ALICE)) == (True, False)


@pytest.mark.parametrize(
    ("name", "value"), [("super_users", "root"), ("authorizer_class_name", "com.example.Mine")]
)
def test_settings_that_mean_nothing_are_refused_at_the_start(name: str, value: str):
    with pytest.raises(RegentError, match=name):
        authorizer(**{name: value})


def test_a_broker_follows_the_acls_that_tools_write(undo: ExitStack):
    started = Started(undo)
    change = AclChangeNotificationSequenceZNode
    tool = FakeZooKeeper(started.server)
    tool.multi([Create("/kafka-acl/Topic/t", ResourceZNode.encode({OF_ALICE}))])
    tool.multi([Create(change.PATH_PREFIX, b"Topic:t", sequential=True)])
    eventually(lambda: started.may(ALICE), "the ACL counts")


def test_in_a_new_session_all_acls_are_read(undo: ExitStack):
    started = Started(undo)
    started.server.put("/kafka-acl/Topic/t", ResourceZNode.encode({OF_ALICE}))  # nobody is told
    assert not started.may(ALICE)
    started.made.on_session()
    eventually(lambda: started.may(ALICE), "the ACL counts")


def test_a_broker_does_not_start_if_acls_may_not_be_read(undo: ExitStack):
    server = FakeZooKeeperServer()
    ZkAclStore(FakeZooKeeper(server)).create_paths()
    server.deny("/kafka-acl")
    scheduler = Scheduler("scheduler")
    undo.callback(scheduler.shutdown)
    made = authorizer(authorizer_class_name=ACL_AUTHORIZER)
    with pytest.raises(RegentError, match="/kafka-acl"):
        made.start(FakeZooKeeper(server), 0, scheduler, undo)
