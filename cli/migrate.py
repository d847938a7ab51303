"""``migrate``: the move from Kafka's brokers to Regent's, and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.setting_options import PREFIX, given_settings, setting_options
from regent.cli.watching import complete_brokers
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.migration_check import OptionsOfBroker, obstacles_of
from regent.client.wording import counted
from regent.config.kafka_properties import read_log_directories
from regent.core.errors import RegentError
from regent.core.model import MAX_BROKER_ID
from regent.storage.files import storage_error
from regent.storage.log_directory import LogDirectory
from regent.storage.recovery.stray_logs import move_strays

_id_option = click.option(
    "--id",
    "broker_id",
    type=click.IntRange(0, MAX_BROKER_ID),
    shell_complete=complete_brokers,
    help="Broker id, if not the one of the file.",
)
_SPACE = "no record is copied: the broker uses the log directories as they are, without more space"


@click.group(cls=HelpfulGroup)
def migrate() -> None:
    """Move a cluster from Kafka's brokers to Regent's, and back."""


@migrate.command(
    epilog=examples(
        "migrate check --zookeeper zk1:2181/kafka",
        "migrate check --zookeeper zk1:2181 --kafka-properties server.properties -o json",
        "migrate check --kafka-properties server.properties --allow-unauthenticated",
    )
)
@click.option(
    "--kafka-properties",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="The server.properties of a broker; may be repeated.",
)
@_id_option
@click.option("--config", type=click.Path(path_type=Path), help="TOML file, as for `broker`.")
@setting_options
@output_option
@pass_cluster
@click.pass_context
def check(
    context: click.Context,
    cluster: Cluster,
    /,
    files: Sequence[Path],
    broker_id: int | None,
    config: Path | None,
    output: str,
    **options: Any,
) -> None:
    """Say what stands in the way of the move, each with the remedy. Nothing is changed.

    Examined are the versions and settings of Kafka's brokers, those of topics in ZooKeeper, all
    partitions, reassignments, users and ACLs, the files of --kafka-properties, and those of the
    logs that can be read here.

    Give it the options with which `broker` will run beside a file: each setting of
    docs/configuration.md has one, and they count before the file. --zookeeper only says where the
    cluster is examined: zookeeper.connect of each file must name the same one.

    The exit code is 1 if anything stands in the way.
    """
    if broker_id is not None and len(files) != 1:
        raise click.UsageError("--id is the id of one broker: give one --kafka-properties with it")
    beside = OptionsOfBroker(broker_id, config, given_settings(options))
    with cluster.admin() as admin:
        obstacles = obstacles_of(admin, cluster.zookeeper_address, files, beside)
    found, notes = obstacles.found, [_SPACE, *obstacles.notes]
    if output == Output.JSON:
        rows = [{"check": name, "message": line} for name, line in found]
        print_json({"ready": not found, "obstacles": rows, "notes": notes})
    else:
        for _, line in found:
            click.echo(line)
        click.echo(f"{counted(len(found), 'obstacle')}" if found else "nothing is in the way")
        for line in notes:
            note(line)
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
@_id_option
@click.option(
    "--log-dirs",
    envvar=f"{PREFIX}LOG_DIRS",
    help="The log directories, separated by commas, if not those of the file.",
)
def back(file: Path, target: Path, broker_id: int | None, log_dirs: str | None) -> None:
    """Make the log directories of a stopped broker ready for Kafka before 3.6.

    Such a Kafka does not start while a log directory has a stray log: one that is assigned to no
    replica, is damaged, or is kept for `topics undelete`. They are moved to another folder, and
    named. To use one again, move it back while no broker runs. The command can be repeated.

    Of the file only broker.id and log.dirs are read.
    """
    owner, directories = read_log_directories(file, log_dirs=log_dirs, broker_id=broker_id)
    target = target.absolute()
    for directory in directories:
        if target.resolve().is_relative_to(directory.resolve()):
            raise RegentError(f"--move-to {target} is in log directory {directory}: name another")
        if not directory.is_dir():
            raise RegentError(f"log directory {directory} is not there: is it mounted?")
    locks = [LogDirectory(directory) for directory in directories]
    try:
        for lock in locks:
            lock.open(owner)
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
