"""Defects in the protection against tampered znodes: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from regent.core.controller.brokers.responses import ControlResponses
from regent.core.controller.controller import Controller
from regent.core.controller.controller_election import ControllerElection
from regent.core.controller.events import RegistrationDeleted
from regent.core.controller.topics.topic_changes import TopicChanges
from regent.core.errors import BadDataError
from regent.core.model import NO_SUSPECTS, BrokerInfo
from regent.core.replication.control_request_fence import ControlRequestFence
from regent.zk.client.operations import ANY_VERSION, Delete
from regent.zk.stores import broker_store, cluster_identity, fenced_writes
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.znode_store import WatchingStore
from regent.zk.znodes import BrokerIdZNode


def cluster_id_unchecked() -> Any:
    """Brokers register in ZooKeeper without a check of the cluster id."""
    stack = ExitStack()
    stack.enter_context(patch.object(cluster_identity, "check_cluster", lambda zookeeper, notes: 0))
    stack.enter_context(patch.object(ZkControllerStore, "_cluster_fence", lambda self: []))
    return stack


def older_data_are_accepted() -> Any:
    """Only the cluster id is compared, which older data have too."""

    def by_id(zookeeper: Any, notes: Any) -> None:
        notes.check_cluster(ZkAdminStore(zookeeper).read_cluster_id())

    return patch.object(cluster_identity, "check_cluster", by_id)


def registrations_deleted_for_good() -> Any:
    """A broker whose registration is deleted by hand never registers again."""
    dispatch = Controller._dispatch

    def deaf(self: Controller, event: Any, now_ms: int) -> None:
        if not isinstance(event, RegistrationDeleted):
            dispatch(self, event, now_ms)

    return patch.object(Controller, "_dispatch", deaf)


def stored_topic_ids_unread() -> Any:
    """The controller does not read the stored id of a topic that a tool rewrote (KAFKA-12835)."""
    return patch.object(ZkControllerStore, "read_noted_topic_id", lambda self, topic: None)


def controller_epochs_forgotten() -> Any:
    """A broker that restarts accepts requests of any controller, even of a deposed one."""
    init = ControlRequestFence.__init__

    def from_zero(self: ControlRequestFence, *arguments: Any) -> None:
        init(self, *arguments)
        self.controller_epoch = 0

    return patch.object(ControlRequestFence, "__init__", from_zero)


def refused_epochs_kept() -> Any:
    """A controller whose epoch is refused stays active with it, and so does the next one."""
    stack = ExitStack()
    refused = patch.object(ControlResponses, "accepted_epoch", lambda self, event: None)
    stack.enter_context(refused)
    init = ControllerElection.__init__

    def knowing_nothing(
        self: ControllerElection, broker_info: BrokerInfo, store: Any, accepted_epoch: Any
    ) -> None:
        init(self, broker_info, store)

    stack.enter_context(patch.object(ControllerElection, "__init__", knowing_nothing))
    return stack


def epochs_shared_by_controllers() -> Any:
    """A broker accepts requests of two controllers in one epoch."""
    return patch.object(
        ControlRequestFence,
        "is_deposed",
        lambda self, header: header.controller_epoch < self.controller_epoch,
    )


def terms_unchecked() -> Any:
    """Writes are fenced only by the version of ``/controller_epoch``, which may repeat."""
    fence = WatchingStore._fence
    return patch.object(WatchingStore, "_fence", lambda self, version: fence(self, version)[:1])


def registrations_of_others_overwritten() -> Any:
    """A broker overwrites the registration of another process with its id."""
    register = ZkControllerStore.register_broker

    def over_the_present_one(self: ZkControllerStore, info: Any, suspects: Any) -> Any:
        path = BrokerIdZNode.path(info.broker_id)
        node = self._zookeeper.get(path)
        if node is not None and node.stat.ephemeral_owner != self._zookeeper.session_id:
            fenced_writes.apply(self._zookeeper, [Delete(path, ANY_VERSION)])
        return register(self, info, suspects)

    return patch.object(ZkControllerStore, "register_broker", over_the_present_one)


def undecodable_registrations_stay() -> Any:
    """A broker does not check its registration for changes by others."""
    return patch.object(broker_store, "_is_undecodable", lambda node, broker_id: False)


def contested_topics_left_out() -> Any:
    """A topic that was rewritten during each attempt to add its id counts as unreadable."""
    quarantine = TopicChanges._quarantine_topic

    def unless_contested(self: TopicChanges, topic: str, error: BadDataError) -> None:
        if not str(error).startswith("it got no id"):
            quarantine(self, topic, error)

    return patch.object(TopicChanges, "_quarantine_topic", unless_contested)


def registrations_made_again_without_suspects() -> Any:
    """A broker that finds its registration removed creates it without suspect replicas."""
    stack = ExitStack()
    is_registered = ZkControllerStore._is_registered
    list_suspects = ZkControllerStore._list_suspects

    def unless_registered(
        self: ZkControllerStore, broker_id: int, session_id: int, suspects: Any, generation: int
    ) -> Any:
        is_listed = generation == 0 and suspects and is_registered(self, broker_id, session_id)
        listed = NO_SUSPECTS if is_listed else suspects
        return list_suspects(self, broker_id, session_id, listed, generation)

    stack.enter_context(patch.object(ZkControllerStore, "_is_registered", lambda *_: False))
    stack.enter_context(patch.object(ZkControllerStore, "_list_suspects", unless_registered))
    return stack


SEARCH_FROM: dict[Callable[[], Any], int] = {
    older_data_are_accepted: 456,
    registrations_deleted_for_good: 176,
    stored_topic_ids_unread: 2,
    controller_epochs_forgotten: 76,
    refused_epochs_kept: 81,
    epochs_shared_by_controllers: 1036,
    terms_unchecked: 1133,
    registrations_of_others_overwritten: 4,
    undecodable_registrations_stay: 837,
    contested_topics_left_out: 102_000_036,
    registrations_made_again_without_suspects: 2310,
}
