"""Defects in what protects brokers from tampered znodes: they test the simulation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeAlias
from unittest.mock import patch

from regent.core.controller.controller import Controller
from regent.core.controller.elector import Elector
from regent.core.controller.events import RegistrationDeleted
from regent.core.controller.responses import ControlResponses
from regent.core.controller.topic_changes import TopicChanges
from regent.core.errors import BadDataError
from regent.core.model import NO_SUSPECTS
from regent.core.replication.control_request_handler import ControlRequestHandler
from regent.zk.client.operations import ANY_VERSION, Delete
from regent.zk.codecs.znodes import BrokerIdZNode
from regent.zk.stores import broker_store, cluster_identity
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.watching_store import WatchingStore

Defect: TypeAlias = Callable[[], Any]


def any_data_are_taken_for_the_clusters() -> Any:
    """Brokers register wherever ZooKeeper's data come from."""
    stack = ExitStack()
    stack.enter_context(patch.object(cluster_identity, "check_cluster", lambda zookeeper, notes: 0))
    stack.enter_context(patch.object(ZkControllerStore, "_cluster_fence", lambda self: []))
    return stack


def older_data_are_accepted() -> Any:
    """Only the cluster id is compared: older data have the same one."""

    def by_id(zookeeper: Any, notes: Any) -> None:
        notes.check_cluster(ZkAdminStore(zookeeper).read_cluster_id())

    return patch.object(cluster_identity, "check_cluster", by_id)


def registrations_deleted_for_good() -> Any:
    """A broker whose registration somebody deletes never registers again."""
    dispatch = Controller._dispatch

    def deaf(self: Controller, event: Any, now_ms: int) -> None:
        if not isinstance(event, RegistrationDeleted):
            dispatch(self, event, now_ms)

    return patch.object(Controller, "_dispatch", deaf)


def dropped_topic_ids_taken_from_hearsay() -> Any:
    """A topic id that a tool dropped is not looked up where it was noted (KAFKA-12835)."""
    return patch.object(ZkControllerStore, "read_noted_topic_id", lambda self, topic: None)


def obeyed_epochs_forgotten() -> Any:
    """A broker that starts obeys any controller, also one that was deposed long ago."""
    init = ControlRequestHandler.__init__

    def from_zero(self: ControlRequestHandler, *arguments: Any) -> None:
        init(self, *arguments)
        self.controller_epoch = 0

    return patch.object(ControlRequestHandler, "__init__", from_zero)


def epochs_set_back_for_good() -> Any:
    """Who is refused for its epoch rules on all the same, and so does the next."""
    stack = ExitStack()
    refused = patch.object(ControlResponses, "is_refused_for_epoch", lambda self, event: False)
    stack.enter_context(refused)
    init = Elector.__init__

    def knowing_nothing(self: Elector, broker_id: int, store: Any, obeyed_epoch: Any) -> None:
        init(self, broker_id, store)

    stack.enter_context(patch.object(Elector, "__init__", knowing_nothing))
    return stack


def epochs_shared_by_controllers() -> Any:
    """Two controllers in one epoch are both obeyed."""
    return patch.object(
        ControlRequestHandler,
        "_is_deposed",
        lambda self, header: header.controller_epoch < self.controller_epoch,
    )


def terms_unchecked() -> Any:
    """Writes are fenced by the version of ``/controller_epoch`` alone, which may come again."""
    fence = WatchingStore._fence
    return patch.object(WatchingStore, "_fence", lambda self, version: fence(self, version)[:1])


def registrations_of_others_overwritten() -> Any:
    """A broker registers in the place of another process that has its id."""
    register = ZkControllerStore.register_broker

    def whoever_is_there(self: ZkControllerStore, info: Any, suspects: Any) -> Any:
        path = BrokerIdZNode.path(info.broker_id)
        node = self._zookeeper.get(path)
        if node is not None and node.stat.ephemeral_owner != self._zookeeper.session_id:
            self._apply([Delete(path, ANY_VERSION)])
        return register(self, info, suspects)

    return patch.object(ZkControllerStore, "register_broker", whoever_is_there)


def garbage_stays_in_registrations() -> Any:
    """A broker does not look at what somebody made of its registration."""
    return patch.object(broker_store, "_is_garbage", lambda node, broker_id: False)


def contested_topics_left_out() -> Any:
    """A topic that others wrote whenever it was to get its id counts as one that never was."""
    set_aside = TopicChanges._set_aside

    def unless_contested(self: TopicChanges, topic: str, error: BadDataError) -> None:
        if not str(error).startswith("it got no id"):
            set_aside(self, topic, error)

    return patch.object(TopicChanges, "_set_aside", unless_contested)


def registrations_made_again_without_suspects() -> Any:
    """A broker that finds its registration lists nothing, and creates it if it has gone since."""
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


TAMPERING_DEFECTS: tuple[Defect, ...] = (
    registrations_of_others_overwritten,
    garbage_stays_in_registrations,
    registrations_made_again_without_suspects,
    any_data_are_taken_for_the_clusters,
    older_data_are_accepted,
    registrations_deleted_for_good,
    dropped_topic_ids_taken_from_hearsay,
    obeyed_epochs_forgotten,
    epochs_set_back_for_good,
    epochs_shared_by_controllers,
    terms_unchecked,
    contested_topics_left_out,
)

SEARCH_TAMPERING_FROM: dict[Defect, int] = {
    terms_unchecked: 830,
    contested_topics_left_out: 6_009_810,
    garbage_stays_in_registrations: 670,
    registrations_made_again_without_suspects: 2310,
    older_data_are_accepted: 452,
    registrations_deleted_for_good: 100,
    obeyed_epochs_forgotten: 90,
}
