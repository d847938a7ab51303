"""``zookeeper``: the embedded ZooKeeper alone, in the foreground."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import orjson

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import announce, examples, note
from regent.client.cluster_connection import Cluster, data_dir_option, pass_cluster
from regent.client.json_files import decode_file
from regent.client.wording import counted
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
from regent.config.private_files import (
    close_directory,
    keep_files_private,
    read_private,
    write_private,
)
from regent.core.errors import BadDataError, RegentError
from regent.transport.local_users import SAME
from regent.transport.local_users import local_users as users_of
from regent.zk.client.login import SECRET_FILE, log_in, read_login
from regent.zk.client.operations import ConnectionLossError
from regent.zk.stores.settings_store import check_settings
from regent.zk.stores.tree_acls import check_root, create_chroot, open_tree, secure_tree
from regent.zk.stores.tree_store import check_tree
from regent.zk.stores.znode_store import NoClusterError

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

    Name the chroot if the brokers have one. Znodes of other applications stay as they are.

    Give the login to all brokers first (setting secret_file), then secure the znodes: until then
    brokers with and without it may change them.
    """
    log_in(address, read_login(secret_file))
    try:
        check_root(address)
        if how == "open":
            open_tree(address)
        else:
            secure_tree(address, again=True)
    except NoClusterError as error:
        raise RegentError(f"no cluster at {address}: {error}") from None
    except (ConnectionLossError, ValueError) as error:
        raise RegentError(str(error)) from None
    click.echo("The znodes are secured." if how == "secure" else "The znodes are open.")


@zookeeper.command(
    epilog=examples("zookeeper backup settings.json", "zookeeper backup tree.json --whole-tree")
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--whole-tree", is_flag=True, help="Write everything, topics and tokens too.")
@pass_cluster
def backup(cluster: Cluster, /, file: Path, *, whole_tree: bool) -> None:
    """Write the settings of a cluster beside those of topics to a new FILE of mode 0600.

    It has the settings of brokers, users with the verifiers of their passwords, quotas and ACLs.
    Topics with their settings are copied by `jobs backup`.

    With --whole-tree it has all of the cluster's znodes, for the case that ZooKeeper's data are
    lost. Left out is what belongs to processes: registrations, the controller, notifications.
    """
    if file.exists():
        raise RegentError(f"{file} exists already: choose a new name")
    with cluster.admin() as admin:
        if whole_tree:
            admin.topics.check_cluster()
            document = admin.tree.read()
        else:
            document = admin.settings.read()
    count = len(document["tree" if whole_tree else "znodes"])
    write_private(file, orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    click.echo(f"Wrote {counted(count, 'znode')} to {file}.")


@zookeeper.command(
    epilog=examples(
        "zookeeper restore settings.json",
        "zookeeper restore tree.json --zookeeper 192.0.2.1:2181 --dry-run",
    )
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--dry-run", is_flag=True, help="Show what would change.")
@pass_cluster
def restore(cluster: Cluster, /, file: Path, *, dry_run: bool) -> None:
    """Write the settings of a FILE of `zookeeper backup` that differ; brokers follow at once.

    Settings and ACLs that the file does not have stay.

    A file of --whole-tree is written into an empty ZooKeeper or chroot before the brokers start. It
    is refused where brokers are registered or a cluster is. docs/operations.md has the steps.
    """
    try:
        document = decode_file(read_private(file, "settings"), str(file))
        is_tree = isinstance(document, dict) and "tree" in document
        znodes = check_tree(document) if is_tree else check_settings(document)
    except BadDataError as error:
        raise RegentError(f"{file}: {error}") from None
    if is_tree:
        _restore_tree(cluster, znodes, dry_run=dry_run)
        return
    with cluster.admin() as admin:
        changed = admin.settings.changed(znodes)
        if not dry_run:
            admin.settings.write(changed)
    for path in changed:
        click.echo(path)
    click.echo(f"{len(changed)} of {len(znodes)} znodes {'differ' if dry_run else 'are written'}.")


def _restore_tree(cluster: Cluster, znodes: Mapping[str, bytes], *, dry_run: bool) -> None:
    if not dry_run:
        create_chroot(cluster.zookeeper_address)
    with cluster.admin() as admin:
        tree = admin.tree
        count = len(tree.check_unused(znodes)) if dry_run else tree.write(znodes)
    click.echo(f"{count} of {len(znodes)} znodes {'are missing' if dry_run else 'are written'}.")
    if not dry_run:
        note(
            "now remove control-plane.properties from all log directories of all brokers, and start"
            " the brokers"
        )


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
        announce(f"ready: {server.address}")
        processes.wait(lambda: bool(processes.stop_requests) or not processes.is_running(node))
        status = node.poll()
        if status is not None:
            raise RegentError(f"ZooKeeper ended {describe_exit(status)}: see {data_dir}")
        return 0 if processes.end(node, _STOP_TIMEOUT_S) else 1
