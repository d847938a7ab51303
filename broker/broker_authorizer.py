"""The authorizer of a broker, and what keeps its ACLs as they are in ZooKeeper."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

from regent.actors.config_listener import Following
from regent.actors.scheduler import RepeatingTimer, Scheduler
from regent.config.tables.authorizer import AuthorizerConfig
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.security.acl_cache import AclCache
from regent.core.security.authorizer import (
    ALLOW_ALL,
    AclAuthorizer,
    Authorizer,
    AuthorizerSettings,
    PlaintextBrokers,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.znodes import AclChangesZNode, ExtendedAclChangesZNode

_STOP_TIMEOUT_S = 2.0
_LOOK_MS = 60_000  # whether the ACLs are too old
_WATCHED = (AclChangesZNode.PATH, ExtendedAclChangesZNode.PATH)


class BrokerAuthorizer:
    """Denies all but super users until ``start``; without an authorizer it allows everything."""

    def __init__(self, config: AuthorizerConfig) -> None:
        """Raises ``RegentError`` for users that are no principals."""
        self.for_clients: Authorizer = ALLOW_ALL
        self.for_brokers: Authorizer = ALLOW_ALL
        """Decides on the listener of brokers."""
        self.acls: AclCache | None = None
        """None: there is no authorizer, or it has not started."""
        self._listener: Following | None = None
        self._authorizer: AclAuthorizer | None = None
        if config.authorizer_class_name:
            everyone = config.allow_everyone_if_no_acl_found
            try:
                settings = AuthorizerSettings.of(
                    config.super_users, allow_everyone_if_no_acl_found=everyone
                )
            except ValueError as error:
                raise RegentError(f"super_users: {error}") from None
            self._authorizer = AclAuthorizer(settings, time.monotonic)
            self.for_clients = self._authorizer
            self.for_brokers = PlaintextBrokers(self._authorizer)

    def start(
        self, zookeeper: ZooKeeper, broker_id: BrokerId, scheduler: Scheduler, undo: ExitStack
    ) -> None:
        """Read all ACLs and follow them; ``undo`` ends that.

        Raises ``RegentError`` if they cannot be read.
        """
        if self._authorizer is None:
            return
        store, lock = ZkAclStore(zookeeper), threading.Lock()
        acls = AclCache(store, self._authorizer, lock, time.monotonic)
        acls.start()
        self.acls = acls
        self._listener = Following(f"acl-listener-{broker_id}", acls)
        undo.callback(self._listener.close)
        undo.callback(RepeatingTimer(scheduler, _LOOK_MS, self._look).cancel)
        self._look()  # a watch may have fired already

    def on_watch(self, path: str) -> bool:
        """Read what changed if a watch of these is of ACLs; return whether it is."""
        if path in _WATCHED:
            self._look()
        return path in _WATCHED

    def on_session(self) -> None:
        """Read all again: the watches of the last session have ended with it."""
        if self.acls is not None:
            self.acls.distrust()
            self._look()

    def _look(self) -> None:
        if self._listener is not None:
            self._listener.look()
