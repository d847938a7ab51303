"""``controller``: shows the active controller, or deposes it."""

from __future__ import annotations

import time

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, output_option, print_facts, print_json
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.live_brokers import not_registered
from regent.client.wording import listed
from regent.core.errors import Errors, RegentError
from regent.core.model import HELD_BY_KRAFT, BrokerId, BrokerRegistration
from regent.core.protocol.controller import MoveControllerRequest, MoveControllerResponse
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore, control_endpoint

_POLL_S = 0.02


class NoControllerError(RegentError):
    """There is no active controller."""


class NotMovedError(RegentError):
    """The broker that shall be the controller is not."""


@click.group(cls=HelpfulGroup)
def controller() -> None:
    """Show or move the active controller."""


def controller_json(controller: ActiveController) -> dict[str, object]:
    """Return the JSON object of the controller, for ``-o json``."""
    return {
        "broker_id": controller.broker_id,
        "controller_epoch": controller.controller_epoch,
        "epoch_zk_version": controller.epoch_zk_version,
    }


@controller.command()
@output_option
@pass_cluster
def show(cluster: Cluster, /, output: str) -> None:
    """Show the active controller and its epoch."""
    with cluster.admin() as admin:
        active = _active(admin)
    shown = controller_json(active)
    if output == Output.JSON:
        print_json(shown)
    else:
        print_facts((name.replace("_", " "), value) for name, value in shown.items())


@controller.command()
@click.option(
    "--to",
    "broker_id",
    shell_complete=complete_brokers,
    metavar="ID",
    type=click.IntRange(min=0),
    help="The broker of Regent that shall be the controller.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(min=0),
    default=30_000,
    show_default=True,
    help="Time to wait for the next controller.",
)
@output_option
@pass_cluster
def move(cluster: Cluster, /, broker_id: BrokerId | None, timeout_ms: int, output: str) -> None:
    """Make another broker the controller.

    With --to, that broker takes /controller from the active controller in one transaction, so that
    no other broker can be elected. The active controller may be a broker of Kafka.

    Without --to, deletes /controller, unless another broker has been elected meanwhile, and waits
    for the next controller. The same broker may be elected again; then it loads all metadata again
    in a new epoch. A broker of Kafka is elected only in this way.
    """
    with cluster.admin() as admin:
        old = new = _active(admin)
        if old.is_of_kraft:  # brokers would be elected while it writes the same znodes
            raise NoControllerError(HELD_BY_KRAFT.format(old.broker_id))
        if broker_id is None:
            admin.depose_controller(old)
            new = _await_next(admin, old, timeout_ms)
        elif broker_id != old.broker_id:
            new = _move_to(admin, old, broker_id, timeout_ms)
    if output == Output.JSON:
        print_json({"old": controller_json(old), "new": controller_json(new)})
    elif new == old:
        click.echo(f"The controller is {_named(old)} already.")
    else:
        click.echo(f"The controller moved from {_named(old)} to {_named(new)}.")


@controller.command()
@output_option
@pass_cluster
def try_again(cluster: Cluster, /, output: str) -> None:
    """Make the controller retry quarantined topics and events.

    When a topic or an event has ended two controllers by an unexpected error, the third quarantines
    it, and `status` names it. A change of a topic's znode retries the topic too.
    """
    with cluster.admin() as admin:
        forgotten = admin.forget_failures()
    if output == Output.JSON:
        print_json({"tried_again": forgotten})
    elif forgotten:
        click.echo(f"Tried again: {listed(forgotten)}.")
    else:
        click.echo("No topic or event has ended a controller.")


def _active(admin: ZkAdminStore) -> ActiveController:
    active = admin.read_controller()
    if active is None:
        admin.topics.check_cluster()
        raise NoControllerError("there is no controller at the moment")
    return active


def _move_to(
    admin: ZkAdminStore, old: ActiveController, broker_id: BrokerId, timeout_ms: int
) -> ActiveController:
    """Ask a broker to take the place of the controller; return the new controller."""
    from regent.cli.remote_actors import actor_at
    from regent.transport.control.client import RequestError
    from regent.transport.control.remote_ref import ask

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
        with actor_at(control_endpoint(broker_id, registration)) as actor:
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
