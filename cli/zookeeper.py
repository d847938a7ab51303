"""``zookeeper``: the embedded ZooKeeper alone, in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path

import click

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
from regent.config.private_files import close_directory, keep_files_private
from regent.core.errors import RegentError
from regent.zk.client.login import SECRET_FILE, read_login

_STOP_TIMEOUT_S = 10.0


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path), required=True, help="The data folder.")
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
def zookeeper(data_dir: Path, port: int, host: str, heap_mb: int) -> None:
    """Run the embedded ZooKeeper in the foreground.

    Brokers on other machines need a --host they can connect to. Every client that can connect may
    change everything: open the port to the machines of the cluster only.

    With --data-dir CLUSTER/zookeeper-K it replaces this server of a cluster, even in an ensemble.
    Prints a line that begins with "ready:" when it serves; Ctrl-C ends it.
    """
    try:
        keep_files_private()
        data_dir.mkdir(parents=True, exist_ok=True)
        close_directory(data_dir)
        secret_file = data_dir.absolute().parent / SECRET_FILE
        login = read_login(secret_file) if secret_file.exists() else None
        sys.exit(_run(server_of(data_dir, port, host, heap_mb=heap_mb, login=login), data_dir))
    except OSError as error:
        raise RegentError(f"{data_dir} cannot be used: {error.strerror}") from None


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
