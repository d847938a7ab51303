"""``doctor``: what is wrong with a cluster, how it is secured, and the commands that mend it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from regent.cli.output import Output, examples, output_option, print_json, print_wrapped
from regent.client.cluster_connection import (
    Cluster,
    as_named,
    bootstrap_option,
    named_by_brokers,
    pass_cluster,
)
from regent.client.doctor.diagnosis import TITLES, diagnose
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.group_check import WATCHED_S
from regent.client.wording import counted
from regent.config.cluster_location import CLUSTER_FILE


@click.command(
    epilog=examples(
        "doctor",
        "doctor --zookeeper 192.0.2.1:2181",
        "doctor --bootstrap-server 192.0.2.1:9092 --keys ~/regent-keys",
        "doctor -o json",
    )
)
@click.option(
    "--watch-groups",
    "watched_s",
    type=click.FloatRange(0.0, 3600.0),
    default=WATCHED_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a group may commit nothing while records wait for it; 0: do not look.",
)
@output_option
@bootstrap_option
@pass_cluster
@click.pass_context
def doctor(context: click.Context, cluster: Cluster, /, watched_s: float, output: str) -> None:
    """Examine a cluster; each finding is a sentence with what mends it.

    What it serves: brokers that are missing, slow, of another version or with another time;
    partitions without a leader or with few replicas in sync; moves, deletions and consumer groups
    that do not get on; brokers that tell clients other leaders; full disks and logs that belong to
    no partition; old transactions; topics and settings that lose records.

    How it is secured. Of a cluster on this machine: every socket on which its processes listen and
    who may connect, its files and its keys. Of every cluster: the listeners of its brokers, their
    settings, and what strangers may do with ZooKeeper's znodes. Nothing is changed. With
    --bootstrap-server brokers answer for ZooKeeper: a finding says what they do not know.

    The exit code is 0 when all is well, 1 with warnings, 2 with problems.
    """
    folder = None if named_by_brokers(context, cluster) else _folder(context)
    findings = diagnose(as_named(cluster), folder, watched_s=watched_s)
    if output == Output.JSON:
        print_json([finding.json for finding in findings])
    else:
        _print(findings)
    context.exit(max(finding.severity for finding in findings))


def _folder(context: click.Context) -> Path | None:
    """Return the data directory of a cluster, or one that the command line names.

    It may be that of one broker, which has no ``cluster.json``. With an address of ZooKeeper only
    a named one counts.
    """
    folder = context.params["data_dir"]
    is_named = context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
    is_of_cluster = not context.params["zookeeper"] and (folder / CLUSTER_FILE).exists()
    return folder if folder.is_dir() and (is_named or is_of_cluster) else None


def _print(findings: Sequence[Finding]) -> None:
    for check, group in itertools.groupby(findings, lambda finding: finding.check):
        click.echo(f"{TITLES[check]}:")
        print_wrapped((finding.severity.name.lower(), finding.sentence) for finding in group)
        click.echo()
    counts = Counter(finding.severity for finding in findings)
    problems = counted(counts[Severity.PROBLEM], "problem")
    click.echo(f"{problems}, {counted(counts[Severity.WARNING], 'warning')}")
