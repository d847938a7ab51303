"""``groups delete``: deletes groups without members, with their offsets."""

from __future__ import annotations

from collections.abc import Sequence

import click

from regent.cli.group_admin import GroupAdmin, GroupError, UnknownGroupError, refuse_empty_groups
from regent.cli.output import Output, examples, note, output_option, print_json, quoted
from regent.cli.waiting import timeout_option
from regent.cli.watching import complete_groups
from regent.client.cluster_connection import Cluster, pass_cluster


@click.command(epilog=examples("groups delete billing", "groups delete billing audit --if-exists"))
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_groups)
@click.option(
    "--group",
    "more_names",
    shell_complete=complete_groups,
    metavar="NAME",
    multiple=True,
    hidden=True,
)
@click.option("--if-exists", is_flag=True, help="Skip groups that do not exist.")
@timeout_option("Time for the answer of each coordinator.")
@output_option
@pass_cluster
def delete(
    cluster: Cluster,
    /,
    names: Sequence[str],
    more_names: Sequence[str],
    if_exists: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Delete groups without members, and their committed offsets."""
    wanted = list(dict.fromkeys((*names, *more_names)))
    if not wanted:
        raise click.UsageError("which group? Give a name")
    refuse_empty_groups(*wanted)
    results = GroupAdmin(cluster, timeout_ms).delete(wanted)
    if output == Output.JSON:
        print_json([{"group": g, "deleted": error is None} for g, error in results.items()])
    else:
        for group, error in results.items():
            if error is None:
                click.echo(f"Group {quoted(group)} is deleted.")
    problems = []
    for error in results.values():
        if if_exists and isinstance(error, UnknownGroupError):
            note(str(error))
        elif error is not None:
            problems.append(str(error))
    if problems:
        raise GroupError("\n".join(problems))
