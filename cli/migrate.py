"""``migrate``: the move from Kafka's brokers to Regent's, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, note, output_option, print_json
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.migration_check import obstacles_of
from regent.client.wording import counted
from regent.config.kafka_properties import read_kafka_properties
from regent.core.errors import RegentError
from regent.storage.files import storage_error
from regent.storage.log_directory import LogDirectory
from regent.storage.recovery.stray_logs import move_strays

_SPACE = "no record is copied: the broker uses the log directories as they are, without more space"


@click.group(cls=HelpfulGroup)
def migrate() -> None:
    """Move a cluster from Kafka's brokers to Regent's, and back."""


@migrate.command(
    epilog=examples(
        "migrate check --zookeeper zk1:2181/kafka",
        "migrate check --zookeeper zk1:2181 --kafka-properties server.properties -o json",
    )
)
@click.option(
    "--kafka-properties",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The server.properties of a broker; may be repeated.",
)
@output_option
@pass_cluster
@click.pass_context
def check(context: click.Context, cluster: Cluster, /, files: Sequence[Path], output: str) -> None:
    """Say what stands in the way of the move, each with the remedy. Nothing is changed.

    Examined are the versions and settings of Kafka's brokers, those of topics in ZooKeeper, all
    partitions, reassignments, users and ACLs, and the files of --kafka-properties.

    The exit code is 1 if anything stands in the way.
    """
    with cluster.admin() as admin:
        found = obstacles_of(admin, files)
    if output == Output.JSON:
        rows = [{"check": name, "message": line} for name, line in found]
        print_json({"ready": not found, "obstacles": rows, "notes": [_SPACE]})
    else:
        for _, line in found:
            click.echo(line)
        click.echo(f"{counted(len(found), 'obstacle')}" if found else "nothing is in the way")
        note(_SPACE)
    if found:
        context.exit(1)


@migrate.command(
    epilog=examples(
        "migrate back --kafka-properties server.properties --move-to /var/lib/kafka/stray-logs"
    )
)
@click.option(
    "--kafka-properties",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="The server.properties of the broker.",
)
@click.option(
    "--move-to",
    "target",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder outside the log directories; made if there is none.",
)
def back(file: Path, target: Path) -> None:
    """Make the log directories of a stopped broker ready for Kafka before 3.6.

    Such a Kafka does not start while a log directory has a stray log: one that is assigned to no
    replica, is damaged, or is kept for `topics undelete`. They are moved to another folder, and
    named. To use one again, move it back while no broker runs. The command can be repeated.
    """
    read = read_kafka_properties(file, {})
    directories = [Path(one) for one in read.tables["log"]["log_dirs"].split(",")]
    target = target.absolute()
    for directory in directories:
        if target.resolve().is_relative_to(directory.resolve()):
            raise RegentError(f"--move-to {target} is in log directory {directory}: name another")
        if not directory.is_dir():
            raise RegentError(f"log directory {directory} of {file} is not there: is it mounted?")
    locks = [LogDirectory(directory) for directory in directories]
    try:
        for lock in locks:
            lock.open(read.broker_id)
        moved = [path for directory in directories for path in move_strays(directory, target)]
    except OSError as error:
        raise storage_error(error.filename, error) from None
    finally:
        for lock in locks:
            lock.close()
    for path in moved:
        click.echo(path)
    note(
        f"{counted(len(moved), 'stray log')} moved: Kafka can start" if moved else "nothing to move"
    )
