"""``controller``: shows the active controller, or deposes it."""

from __future__ import annotations

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, output_option, print_facts, print_json
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.controller_move import active_controller, move_controller, moved
from regent.client.wording import listed
from regent.core.model import BrokerId
from regent.zk.stores.admin_store import ActiveController


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
        active = active_controller(admin)
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
        old, new = move_controller(admin, broker_id, timeout_ms)
    if output == Output.JSON:
        print_json({"old": controller_json(old), "new": controller_json(new)})
    else:
        click.echo(moved(old, new))


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
