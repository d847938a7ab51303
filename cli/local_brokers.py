"""Brokers of a local cluster: starting them again, and their process ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.waiting import Waiting
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, data_dir_option, local_cluster, pass_cluster
from regent.client.wording import listed
from regent.cluster.supervisor_socket import start_brokers
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.model import BrokerId

CONTROLLER: Final = "controller"
_START_TIMEOUT_S: Final = 600.0  # a broker may have to recover its logs first


class NoSuchBrokerError(RegentError):
    """The cluster on this machine has no such broker."""


def bring_back(data_dir: Path, broker_ids: Sequence[BrokerId]) -> list[dict[str, Any]]:
    """Ask the running ``cluster`` of a folder to start brokers again; no ids: all that do not run.

    Returns their entries in ``cluster.json``. Raises ``RegentError``.
    """
    local_cluster(data_dir)
    with Waiting() as waiting:
        waiting.say("starting " + (f"broker {listed(broker_ids)}" if broker_ids else "brokers"))
        return start_brokers(data_dir, tuple(broker_ids) or None, _START_TIMEOUT_S)


def print_started(started: Sequence[dict[str, Any]]) -> None:
    """Print the brokers that serve again."""
    for broker in started:
        click.echo(
            f"Broker {broker['id']} serves on {broker['host']}:{broker['port']}"
            f" as process {broker['pid']}."
        )


@click.command(epilog=examples("brokers start", "brokers start 2"))
@click.argument(
    "broker_ids",
    metavar="[ID]...",
    type=click.IntRange(min=0),
    nargs=-1,
    shell_complete=complete_brokers,
)
@data_dir_option
@output_option
def start(broker_ids: tuple[BrokerId, ...], data_dir: Path, output: str) -> None:
    """Start brokers again that died or were shut down; without an ID, all of them.

    The cluster that runs on the data directory starts them as its children, with their former
    ports, configuration and data. Ctrl-C ends them with the cluster.
    """
    started = bring_back(data_dir, broker_ids)
    if output == Output.JSON:
        print_json(started)
    elif started:
        print_started(started)
    else:
        note(f"the processes of all brokers run; `{program()} status` says whether they serve")


@click.command(epilog=examples("brokers pid 2", "brokers pid controller"))
@click.argument("broker", metavar=f"ID|{CONTROLLER}", shell_complete=complete_brokers)
@pass_cluster
def pid(cluster: Cluster, /, broker: str) -> None:
    """Print the process id of a broker on this machine, or of the active controller.

    To see a failover: kill -9 $(regent brokers pid controller)
    """
    broker_id = _controller(cluster) if broker == CONTROLLER else _id(broker)
    file = cluster.file
    known = {} if file is None else file.brokers
    if broker_id not in known:
        ids = listed(list(known)) or "none"
        raise NoSuchBrokerError(f"broker {broker_id} was not started on this machine; known: {ids}")
    if known[broker_id].ended:
        raise NoSuchBrokerError(f"broker {broker_id} does not run: it {known[broker_id].ended}")
    click.echo(known[broker_id].pid)


def _controller(cluster: Cluster) -> BrokerId:
    with cluster.admin() as admin:
        controller = admin.read_controller()
        if controller is None:
            admin.topics.check_cluster()
            raise NoSuchBrokerError("there is no controller at the moment")
    return controller.broker_id


def _id(text: str) -> BrokerId:
    if not text.isdecimal():
        raise click.UsageError(f"{text!r} is neither a broker's id nor {CONTROLLER!r}")
    return int(text)
