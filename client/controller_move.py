"""Moves the active controller to a broker, or to the one that the brokers elect."""

from __future__ import annotations

import time
from typing import Final

from regent.client.live_brokers import not_registered
from regent.core.errors import Errors, RegentError
from regent.core.model import HELD_BY_KRAFT, BrokerId, BrokerRegistration
from regent.core.protocol.controller import MoveControllerRequest, MoveControllerResponse
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore, control_endpoint

_POLL_S: Final = 0.02
_CLIENT_ID: Final = "regent-cli"


class NoControllerError(RegentError):
    """There is no active controller."""


class NotMovedError(RegentError):
    """The broker that shall be the controller is not."""


def active_controller(admin: ZkAdminStore) -> ActiveController:
    """Return the active controller. Raises ``NoControllerError``."""
    active = admin.read_controller()
    if active is None:
        admin.topics.check_cluster()
        raise NoControllerError("there is no controller at the moment")
    return active


def move_controller(
    admin: ZkAdminStore, broker_id: BrokerId | None, timeout_ms: int
) -> tuple[ActiveController, ActiveController]:
    """Make a broker the controller, None: the one that is elected; return the old and the new one.

    The same broker may be elected again. Raises ``NoControllerError`` and ``NotMovedError``.
    """
    old = active_controller(admin)
    if old.is_of_kraft:  # brokers would be elected while it writes the same znodes
        raise NoControllerError(HELD_BY_KRAFT.format(old.broker_id))
    if broker_id is None:
        admin.depose_controller(old)
        return old, _await_next(admin, old, timeout_ms)
    if broker_id == old.broker_id:
        return old, old
    return old, _move_to(admin, old, broker_id, timeout_ms)


def moved(old: ActiveController, new: ActiveController) -> str:
    """Return what was done, in a sentence."""
    if new == old:
        return f"The controller is {_named(old)} already."
    return f"The controller moved from {_named(old)} to {_named(new)}."


def _move_to(
    admin: ZkAdminStore, old: ActiveController, broker_id: BrokerId, timeout_ms: int
) -> ActiveController:
    """Ask a broker to take the place of the controller; return the new controller."""
    from regent.transport.control.client import RequestError
    from regent.transport.control.remote_ref import actor_at, ask

    registration = admin.read_broker(broker_id)
    if isinstance(registration, BrokerRegistration) and registration.info.is_of_kafka:
        raise NotMovedError(
            f"broker {broker_id} is one of Kafka, which cannot be asked to be the controller:"
            " without --to, any broker may be elected"
        )
    if registration is None:
        raise NotMovedError(not_registered(broker_id, admin.read_brokers()))
    request = MoveControllerRequest(old.controller_epoch, old.epoch_zk_version)
    problem = ""
    try:
        with actor_at(control_endpoint(broker_id, registration), client_id=_CLIENT_ID) as actor:
            timeout_s = timeout_ms / 1000
            answer = ask(actor, request, MoveControllerResponse, timeout_s=timeout_s)
            if answer.error_code is not Errors.NONE:
                problem = answer.message or answer.error_code.name
    except RequestError as error:
        problem = f"it does not answer: {error}"
    new = admin.read_controller()  # an answer may be lost
    is_later = new is not None and new.controller_epoch > old.controller_epoch
    if new is not None and is_later and new.broker_id == broker_id:
        return new
    now = "there is no controller at the moment" if new is None else f"{_named(new)} is"
    raise NotMovedError(
        f"broker {broker_id} is not the controller, {now}: {problem or 'another was elected'}"
    )


def _await_next(admin: ZkAdminStore, old: ActiveController, timeout_ms: int) -> ActiveController:
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        active = admin.read_controller()
        if active is not None and active.controller_epoch > old.controller_epoch:
            return active
        if time.monotonic() >= deadline:
            raise NoControllerError(
                f"{_named(old)} was deposed, but no broker was elected within {timeout_ms} ms"
            )
        time.sleep(_POLL_S)


def _named(controller: ActiveController) -> str:
    return f"broker {controller.broker_id} (epoch {controller.controller_epoch})"
