"""``console``: a web page on which an operator sees the cluster and its failovers."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path

import click

from regent.cli.output import examples
from regent.client.cluster_connection import (
    Cluster,
    as_named,
    bootstrap_option,
    pass_cluster,
)
from regent.cluster.child_process import when_parent_ends
from regent.cluster.cluster_plan import HOST
from regent.cluster.console_child import LISTENING_FD, address_with, new_token
from regent.config.addresses import listening_socket
from regent.config.command_line import DISTRIBUTION, pip_install
from regent.config.private_files import read_private
from regent.core.errors import RegentError

PORT = 8080
_LIBRARIES = ("starlette", "uvicorn", "jinja2")


class ConsoleError(RegentError):
    """The console cannot be started; the message names the remedy."""


def is_installed() -> bool:
    """Whether the extra of the console is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _LIBRARIES)


@click.command(
    epilog=examples(
        "console",
        "console --zookeeper 192.0.2.1:2181 --port 8081",
        "console --bootstrap-server 192.0.2.1:9092",
    )
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port on 127.0.0.1; 0: any free port.",
)
@click.option(
    "--console-write",
    "may_write",
    is_flag=True,
    help="Let the pages change the cluster; each change is asked about and written down.",
)
@click.option(
    "--reports",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Reports of jobs to show (.html, .json).  [default: reports in the data directory]",
)
@click.option(
    "--plans",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Folder with plans of moves, as `jobs plan --out` writes.  [default: plans in the data"
    " directory]",
)
@bootstrap_option
@click.option(LISTENING_FD, type=int, hidden=True)
@click.option("--token-file", type=click.Path(path_type=Path), hidden=True)
@click.option("--death-pipe-fd", type=int, hidden=True)
@pass_cluster
def console(
    cluster: Cluster,
    /,
    port: int,
    may_write: bool,
    reports: Path | None,
    plans: Path | None,
    listening_fd: int | None,
    token_file: Path | None,
    death_pipe_fd: int | None,
) -> None:
    """Serve a web page that shows the cluster, its partitions and its failovers.

    Prints the address with a token: only a browser that has it is answered, and only one of the
    user who started the command. It listens on 127.0.0.1; from another machine, use `ssh -L`.
    With --bootstrap-server it shows what any client may see; journals and the doctor need a key
    that the brokers allow.
    """
    if not is_installed():
        raise ConsoleError(
            f"the console needs three packages: {pip_install(f'{DISTRIBUTION}[console]')}"
        )
    from regent.console.browser_gate import BrowserGate
    from regent.console.web_server import Console, server_of

    cluster = as_named(cluster)
    address = cluster.zookeeper_address  # a command without a cluster ends here
    if not cluster.bootstrap:
        _check(address)
    with _listening(port, listening_fd) as listening:
        token = new_token() if token_file is None else read_private(token_file, "a token").decode()
        own_port = listening.getsockname()[1]
        served = Console(
            cluster,
            BrowserGate(token, own_port),
            may_write=may_write,
            reports=reports,
            plans=plans,
        )
        server = server_of(served)
        if death_pipe_fd is not None:
            when_parent_ends(death_pipe_fd, lambda: os._exit(0))
        served.collector.start()
        click.echo(f"ready: {address_with(token, own_port)}")
        sys.stdout.flush()
        server.run(sockets=[listening])


def _check(address: str) -> None:
    from regent.zk.client.zookeeper_client import check_address

    try:
        check_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _listening(port: int, descriptor: int | None) -> socket.socket:
    if descriptor is not None:
        return socket.socket(fileno=descriptor)
    try:
        return listening_socket(HOST, port)
    except OSError as error:
        raise ConsoleError(
            f"port {port} on {HOST} cannot be used ({error.strerror}): choose another --port"
        ) from None
