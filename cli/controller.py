"""``controller``: shows the active controller, or deposes it."""

from __future__ import annotations

import time

import click

from regent.cli.output import Output, output_option, print_facts, print_json
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.wording import listed
from regent.core.errors import RegentError
from regent.core.model import HELD_BY_KRAFT
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore

_POLL_S = 0.02


class NoControllerError(RegentError):
    """There is no active controller."""


@click.group()
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
    "--timeout-ms",
    type=click.IntRange(min=0),
    default=30_000,
    show_default=True,
    help="Time to wait for the next controller.",
)
@output_option
@pass_cluster
def move(cluster: Cluster, /, timeout_ms: int, output: str) -> None:
    """Depose the active controller and wait for the next one.

    Deletes /controller, unless another broker has been elected meanwhile. The same broker may be
    elected again; then it loads all metadata again in a new epoch.
    """
    with cluster.admin() as admin:
        old = _active(admin)
        if old.is_of_kraft:  # brokers would be elected while it writes the same znodes
            raise NoControllerError(HELD_BY_KRAFT.format(old.broker_id))
        admin.depose_controller(old)
        new = _await_next(admin, old, timeout_ms)
    if output == Output.JSON:
        print_json({"old": controller_json(old), "new": controller_json(new)})
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
