"""``logs``: what fills the disks of the brokers: directories, topics and partitions by size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import click

from regent.cli.output import (
    Output,
    examples,
    note,
    output_option,
    print_json,
    print_table,
    quoted,
)
from regent.cli.watching import complete_brokers, complete_topics
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.live_brokers import not_registered, read_live_brokers
from regent.client.log_sizes import LogDirectorySize, read_log_dirs
from regent.client.wording import listed
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.quantities import bytes_text

_DIRECTORIES = ("broker", "log dir", "state", "logs", "bytes", "free", "total")
_TOPICS = ("topic", "partitions", "replicas", "bytes")
_PARTITIONS = ("topic", "partition", "broker", "log dir", "bytes", "copy")


class LogsError(RegentError):
    """No broker tells its logs."""


class _Topic(NamedTuple):
    topic: str
    partitions: int
    replicas: int
    bytes: int


@click.command(epilog=examples("logs", "logs --broker 2 -n 5", "logs --topic payments -o json"))
@click.option(
    "-n", "count", type=click.IntRange(min=0), default=10, show_default=True, help="Rows."
)
@click.option(
    "--broker",
    "broker_id",
    shell_complete=complete_brokers,
    type=click.IntRange(min=0),
    help="Only of this broker.",
)
@click.option("--topic", shell_complete=complete_topics, help="Only of this topic.")
@output_option
@pass_cluster
def logs(
    cluster: Cluster, /, count: int, broker_id: BrokerId | None, topic: str | None, output: str
) -> None:
    """Show the largest topics and partitions, and what is free in each log directory.

    Sizes are those of the records on the disks, all replicas counted. JSON has bytes and every row.
    """
    with cluster.admin() as admin:
        live = read_live_brokers(admin)
    if broker_id is not None:
        if broker_id not in live:
            raise LogsError(not_registered(broker_id, live))
        live = {broker_id: live[broker_id]}
    found = read_log_dirs(live)
    if not found:
        is_any = any(SECURITY_OF_COMMAND.endpoint_of(r.info) is not None for r in live.values())
        raise LogsError(
            "no broker has told its log directories: see `status`"
            if is_any or not live
            else SECURITY_OF_COMMAND.not_listening()
        )
    silent = sorted(live.keys() - found.keys())
    if silent:
        note(
            f"regent: not counted, because it does not answer, or does not let us Describe"
            f" the cluster: broker {listed(silent)}"
        )
    directories = [_only(directory, topic) for rows in found.values() for directory in rows]
    topics = sorted(_topics(directories), key=lambda row: (-row.bytes, row.topic))
    partitions = sorted(_partitions(directories), key=lambda row: -int(str(row["bytes"])))
    if output == Output.JSON:
        print_json(
            {
                "log_dirs": [_directory(directory) for directory in directories],
                "topics": [row._asdict() for row in topics],
                "partitions": partitions,
            }
        )
        return
    print_table(_DIRECTORIES, [_shown(_directory(row)) for row in directories])
    if topics and count:
        click.echo()
        rows = [(quoted(row.topic), *row[1:3], bytes_text(row.bytes)) for row in topics[:count]]
        print_table(_TOPICS, rows)
        click.echo()
        print_table(_PARTITIONS, [_shown(row) for row in partitions[:count]])


def _only(directory: LogDirectorySize, topic: str | None) -> LogDirectorySize:
    if topic is None:
        return directory
    return directory._replace(logs=[log for log in directory.logs if log.topic == topic])


def _directory(directory: LogDirectorySize) -> dict[str, object]:
    return {
        "broker": directory.broker_id,
        "log_dir": directory.log_dir,
        "state": "offline" if directory.is_offline else "online",
        "logs": len(directory.logs),
        "bytes": directory.size,
        "free_bytes": directory.free_bytes,
        "total_bytes": directory.total_bytes,
    }


def _topics(directories: Iterable[LogDirectorySize]) -> Iterable[_Topic]:
    sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for directory in directories:
        for log in directory.logs:
            sizes[log.topic].append((log.partition, log.size))
    for topic, rows in sizes.items():
        count = len({partition for partition, _ in rows})
        yield _Topic(topic, count, len(rows), sum(size for _, size in rows))


def _partitions(directories: Iterable[LogDirectorySize]) -> Iterable[dict[str, object]]:
    for directory in directories:
        for log in directory.logs:
            yield {
                "topic": log.topic,
                "partition": log.partition,
                "broker": directory.broker_id,
                "log_dir": directory.log_dir,
                "bytes": log.size,
                "is_copy": log.is_future,
            }


def _shown(row: Mapping[str, object]) -> Sequence[object]:
    return [
        bytes_text(int(str(value)))
        if name.endswith("bytes")
        else quoted(value)
        if name == "topic" and isinstance(value, str)
        else value
        for name, value in row.items()
    ]
