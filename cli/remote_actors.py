"""References to the actors of brokers, for commands."""

from __future__ import annotations

from contextlib import AbstractContextManager

from regent.cli.waiting import Explained
from regent.client.controller_ref import ControllerRef
from regent.transport.control import remote_ref
from regent.transport.control.remote_ref import RemoteActorRef
from regent.zk.stores.admin_store import ZkAdminStore

CLIENT_ID = "regent-cli"


def actor_at(endpoint: str) -> AbstractContextManager[RemoteActorRef]:
    """Return a reference to the actor at a control endpoint, for a ``with`` block."""
    return remote_ref.actor_at(endpoint, client_id=CLIENT_ID)


def controller_of(admin: ZkAdminStore) -> ControllerRef:
    """Return a reference to the active controller of a cluster; it says what it waits for."""
    reasons: list[str] = []
    explained = Explained("waiting for the controller", lambda: reasons[-1:])

    def on_wait(reason: str) -> None:
        reasons.append(reason)
        explained.check()

    return ControllerRef(admin.read_controller_endpoint, client_id=CLIENT_ID, on_wait=on_wait)
