"""``controller``: who rules, and making somebody else rule."""

from __future__ import annotations

import time

import click

from regent.admin.wording import listed
from regent.cli.find_cluster import Cluster, pass_cluster
from regent.cli.output import Output, output_option, print_facts, print_json
from regent.core.errors import RegentError
from regent.zk.stores.admin_store import RulingController, ZkAdminStore

_POLL_S = 0.02


class NoControllerError(RegentError):
    """Nobody rules."""


@click.group()
def controller() -> None:
    """Show who rules, or move it."""


def controller_json(controller: RulingController) -> dict[str, object]:
    """Return the object that stands for the controller in JSON answers."""
    return {
        "broker_id": controller.broker_id,
        "controller_epoch": controller.controller_epoch,
        "epoch_zk_version": controller.epoch_zk_version,
    }


@controller.command()
@output_option
@pass_cluster
def show(cluster: Cluster, /, output: str) -> None:
    """Show which broker rules, and its epoch."""
    with cluster.admin() as admin:
        ruling = _ruling(admin)
    shown = controller_json(ruling)
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
    help="How long to wait for the next one.",
)
@output_option
@pass_cluster
def move(cluster: Cluster, /, timeout_ms: int, output: str) -> None:
    """Depose the controller and wait for the next one.

    /controller is deleted, unless another broker has been elected since it was
    read. The same broker may be elected again, with a new epoch and everything loaded afresh.
    """
    with cluster.admin() as admin:
        old = _ruling(admin)
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
    """Have the controller try again what it has set aside.

    A topic or event that ended two controllers by an unexpected error is left alone by the third;
    status names it. A topic is tried again by itself when its znode changes.
    """
    with cluster.admin() as admin:
        forgotten = admin.forget_failures()
    if output == Output.JSON:
        print_json({"tried_again": forgotten})
    elif forgotten:
        click.echo(f"Tried again: {listed(forgotten)}.")
    else:
        click.echo("Nothing has ended a controller.")


def _ruling(admin: ZkAdminStore) -> RulingController:
    ruling = admin.read_controller()
    if ruling is None:
        raise NoControllerError("there is no controller at the moment")
    return ruling


def _await_next(admin: ZkAdminStore, old: RulingController, timeout_ms: int) -> RulingController:
    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        ruling = admin.read_controller()
        if ruling is not None and ruling.controller_epoch > old.controller_epoch:
            return ruling
        if time.monotonic() >= deadline:
            raise NoControllerError(
                f"{_named(old)} was deposed, but nobody was elected in {timeout_ms} ms"
            )
        time.sleep(_POLL_S)


def _named(controller: RulingController) -> str:
    return f"broker {controller.broker_id} (epoch {controller.controller_epoch})"
