"""``zookeeper``: the embedded ZooKeeper alone, in the foreground."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.client.cluster_connection import data_dir_option
from regent.cluster.child_process import describe_exit
from regent.cluster.embedded_zookeeper import (
    HEAP_MB,
    LOOPBACK,
    MIN_HEAP_MB,
    EmbeddedZooKeeper,
    server_of,
)
from regent.cluster.process_supervisor import ProcessSupervisor
from regent.cluster.zookeeper_node import ZooKeeperNode
from regent.config.private_files import close_directory, keep_files_private, write_private
from regent.core.errors import RegentError
from regent.transport.local_users import SAME
from regent.transport.local_users import local_users as users_of
from regent.zk.client.login import SECRET_FILE, log_in, read_login
from regent.zk.client.operations import ConnectionLossError
from regent.zk.stores.tree_acls import open_tree, secure_tree

_STOP_TIMEOUT_S = 10.0
_CLIENT_JAAS = "zookeeper-client.jaas"
_ALLOWS_MD5 = "-Dzookeeper.fips-mode=false"  # ZooKeeper 3.9 asks for it


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@click.option("--data-dir", type=click.Path(path_type=Path), help="The data folder.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=2181,
    show_default=True,
    help="Port for clients; 0 for a free one.",
)
@click.option(
    "--host",
    default=LOOPBACK,
    show_default=True,
    help="Address to listen on for clients; 0.0.0.0 or :: for all.",
)
@click.option(
    "--heap-mb",
    type=click.IntRange(MIN_HEAP_MB),
    default=HEAP_MB,
    show_default=True,
    help="Maximum heap of the server, in MiB; a partition takes 1.8 KB of it.",
)
@click.option(
    "--local-users",
    default=SAME,
    show_default=True,
    help="Which users of this machine may connect to a --host on loopback, beside its own: "
    "same: no other; any: all; or names or ids, separated by commas.",
)
@click.pass_context
def zookeeper(
    context: click.Context,
    data_dir: Path | None,
    port: int,
    host: str,
    heap_mb: int,
    local_users: str,
) -> None:
    """Run the embedded ZooKeeper in the foreground.

    Brokers on other machines need a --host they can connect to. Every client that can connect may
    change everything: open the port to the machines of the cluster only.

    With --data-dir CLUSTER/zookeeper-K it replaces this server of a cluster, even in an ensemble.
    Prints a line that begins with "ready:" when it serves; Ctrl-C ends it.
    """
    if context.invoked_subcommand is not None:
        return
    if data_dir is None:
        raise click.UsageError("name the folder of its data with --data-dir")
    try:
        keep_files_private()
        data_dir.mkdir(parents=True, exist_ok=True)
        close_directory(data_dir)
        secret_file = data_dir.absolute().parent / SECRET_FILE
        login = read_login(secret_file) if secret_file.exists() else None
        users = users_of(local_users)
        server = server_of(data_dir, port, host, heap_mb=heap_mb, login=login, users=users)
        sys.exit(_run(server, data_dir))
    except OSError as error:
        raise RegentError(f"{data_dir} cannot be used: {error.strerror}") from None


@zookeeper.command("client-config")
@data_dir_option
def client_config(data_dir: Path) -> None:
    """Write the JAAS file with which Kafka's tools log in to a local cluster's ZooKeeper."""
    login = read_login(data_dir.absolute() / SECRET_FILE)
    jaas = data_dir.absolute() / _CLIENT_JAAS
    write_private(jaas, login.jaas("Client"))
    options = shlex.join([f"-Djava.security.auth.login.config={jaas}", _ALLOWS_MD5])
    click.echo(f"export KAFKA_OPTS={shlex.quote(options)}")


@zookeeper.command("acl")
@click.argument("how", type=click.Choice(["secure", "open"]))
@click.option("--zookeeper", "address", required=True, help="HOST:PORT[,HOST:PORT…][/chroot].")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    required=True,
    help='File with one line, "user:password", of mode 0600; the brokers need it too.',
)
def acl(how: str, address: str, secret_file: Path) -> None:
    """Secure every znode of a cluster for one login, or open them to everybody.

    Give the login to all brokers first (setting secret_file), then secure the znodes: until then
    brokers with and without it may change them.
    """
    log_in(address, read_login(secret_file))
    try:
        if how == "open":
            open_tree(address)
        else:
            secure_tree(address, again=True)
    except (ConnectionLossError, ValueError) as error:
        raise RegentError(str(error)) from None
    click.echo("The znodes are secured." if how == "secure" else "The znodes are open.")


def _run(server: EmbeddedZooKeeper, data_dir: Path) -> int:
    with ProcessSupervisor() as processes:
        try:
            with processes.interruptible():
                server.start()
        except KeyboardInterrupt:
            server.stop()
            return 0
        node = ZooKeeperNode("zookeeper", server)
        processes.adopt(node)
        click.echo(f"ready: {server.address}")
        sys.stdout.flush()
        processes.wait(lambda: bool(processes.stop_requests) or not processes.is_running(node))
        status = node.poll()
        if status is not None:
            raise RegentError(f"ZooKeeper ended {describe_exit(status)}: see {data_dir}")
        return 0 if processes.end(node, _STOP_TIMEOUT_S) else 1
