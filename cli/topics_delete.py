"""``topics delete``: marks topics for deletion, and can wait until they are deleted."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence

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
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import TopicError, read_existing, refuse_empty, topics_client
from regent.cli.topics_losses import Loss, losses_of
from regent.cli.waiting import Explained, Progress, timeout_option
from regent.cli.watching import complete_topics
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.pauses import pauses
from regent.client.topics import TopicsClient, raise_if_refused
from regent.client.undeletion import undeletable_topics
from regent.client.wording import moment_text
from regent.config.command_line import program
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.ports import TopicAssignment
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.messages.topics import DeletableTopicResult
from regent.core.protocol.topics import topic_of
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.zk.stores.admin_store import ZkAdminStore

_ABSENT = Errors.UNKNOWN_TOPIC_OR_PARTITION
_REASON_TIMEOUT_S = 2.0
_SAID = 5  # topics whose obstacles are told while the command waits


@click.command(
    epilog=examples(
        "topics delete payments",
        "topics delete payments audit --wait",
        "topics delete payments --dry-run",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--topic",
    "more_names",
    shell_complete=complete_topics,
    metavar="NAME",
    multiple=True,
    hidden=True,
)
@click.option("--if-exists", is_flag=True, help="Skip topics that do not exist.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@click.option("--dry-run", is_flag=True, help="Show what would be lost, and delete nothing.")
@click.option("--wait", is_flag=True, help="Wait until the topics are deleted.")
@timeout_option("Time to wait with --wait.")
@output_option
@bootstrap_option
@pass_cluster
def delete(
    cluster: Cluster,
    /,
    names: Sequence[str],
    more_names: Sequence[str],
    if_exists: bool,
    yes: bool,
    dry_run: bool,
    wait: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Delete topics: mark them for deletion. The controller deletes them.

    On a terminal the command shows how many records and bytes the topics have and which groups read
    them, and asks. Without a terminal, and with --yes or -o json, it deletes at once. A topic that
    `topics protect` protects is refused. For a minute `topics undelete` brings a topic back.
    """
    wanted = _checked((*names, *more_names))
    asks = is_terminal() and not yes and output != Output.JSON
    if dry_run:
        _show(losses_of(cluster, wanted, timeout_ms), output)
        return
    if asks:
        _ask(cluster, wanted, timeout_ms, if_exists=if_exists)
    client = topics_client(cluster, timeout_ms)
    undeleted: Mapping[str, str]
    if wait and not cluster.bootstrap:
        with cluster.admin() as admin:
            found = read_existing(admin, wanted)
            results = _delete(client, wanted, waits=False, if_exists=if_exists)
            incarnations = {topic: _incarnation(found.get(topic)) for topic in results}
            undeleted = _await_deletion(admin, incarnations, timeout_ms)
    else:
        results = _delete(client, wanted, waits=wait, if_exists=if_exists)
        late = [topic for topic, row in results.items() if row.error_code]
        undeleted = (
            dict.fromkeys(late, "is not deleted yet") if wait else dict.fromkeys(results, "")
        )
    if output == Output.JSON:
        print_json([{"topic": t, "deleted": t not in undeleted} for t in sorted(results)])
    else:
        for topic in sorted(results):
            click.echo(f"Topic {topic} {_became(topic, undeleted, results[topic])}.")
        _tell_of_undelete(cluster, results)
    problems = [f"topic {topic} {reason}" for topic, reason in undeleted.items() if reason]
    if problems:
        raise TopicError("\n".join(problems))


def is_terminal() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty()


def _checked(names: Sequence[str]) -> list[str]:
    """Return the topics to delete; raises if there is none, or one that cannot be deleted."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        raise click.UsageError("which topic? Give a name")
    refuse_empty(*wanted)
    internal = [topic for topic in wanted if topic in INTERNAL_TOPICS]
    if internal:
        raise TopicError(f"topic {internal[0]} is internal and cannot be deleted")
    return wanted


def _ask(cluster: Cluster, topics: Sequence[str], timeout_ms: int, *, if_exists: bool) -> None:
    """Show what would be lost, as far as that can be found out, and ask; raises ``Abort``."""
    try:
        _show(losses_of(cluster, topics, timeout_ms), Output.TABLE)
    except TopicError:
        if if_exists:
            return  # there is nothing to delete
        raise
    except RegentError as error:
        note(f"what the topics have is not known: {error}")
    click.confirm(f"Delete {', '.join(map(quoted, topics))}?", abort=True, err=True)


def _show(losses: Sequence[Loss], output: str) -> None:
    if output == Output.JSON:
        print_json([loss._asdict() for loss in losses])
    else:
        columns = ("topic", "partitions", "records", "bytes", "groups", "protected")
        print_table(columns, [(quoted(loss.topic), *loss[1:]) for loss in losses])


def _delete(
    client: TopicsClient, topics: Sequence[str], *, waits: bool, if_exists: bool
) -> dict[str, DeletableTopicResult]:
    """Mark all topics for deletion, or those that exist; return the results of these."""
    response = client.delete(topics, waits=waits, all_or_none=not if_exists)
    results = {topic_of(row): row for row in response.responses}
    absent = {t: f"topic {t} does not exist" for t, r in results.items() if r.error_code == _ABSENT}
    if absent and not if_exists:
        raise TopicError("\n".join(absent.values()))
    for topic, problem in absent.items():
        note(problem)
        del results[topic]
    raise_if_refused(row for row in results.values() if not _is_marked(row, waits=waits))
    return results


def _is_marked(result: DeletableTopicResult, *, waits: bool) -> bool:
    """Whether the topic will be deleted, or the error is one of another topic.

    A broker of Kafka's always waits for the deletion, and its error has no message.
    """
    is_late = result.error_code == Errors.REQUEST_TIMED_OUT
    return result.error_code in (Errors.NONE, Errors.OPERATION_NOT_ATTEMPTED) or (
        is_late and (waits or result.error_message is None)
    )


def _tell_of_undelete(cluster: Cluster, topics: Collection[str]) -> None:
    """Say until when topics can come back whose deletion has begun."""
    if cluster.bootstrap:
        return
    with cluster.admin() as admin:
        can_return = {deleted.topic: deleted for deleted in reversed(undeletable_topics(admin))}
    for topic in sorted(can_return.keys() & topics):
        until = moment_text(can_return[topic].until_ms)
        note(f"`{program()} topics undelete {quoted(topic)}` can bring it back until {until}")


def _incarnation(found: TopicAssignment | BadDataError | None) -> int | None:
    """Return the czxid of a topic; a later topic of the same name has another."""
    return found.created_zxid if isinstance(found, TopicAssignment) else None


def _became(topic: str, undeleted: Collection[str], result: DeletableTopicResult) -> str:
    if topic not in undeleted:
        return "is deleted"
    return f"is {'already ' if result.was_marked else ''}marked for deletion"


def _await_deletion(
    admin: ZkAdminStore, incarnations: Mapping[str, int | None], timeout_ms: int
) -> dict[str, str]:
    """Return the topics that still exist, each with the reason."""
    deadline = time.monotonic() + timeout_ms / 1000
    admin.topics.sync()  # else a server that lags behind may not have the marks yet
    remaining = set(incarnations)
    obstacles = Explained(
        "the deletion waits",
        lambda: [f"{t}: {why}" for t, why in _obstacles(admin, sorted(remaining)).items()][:_SAID],
    )
    with Progress("deleting", len(remaining), "topics") as progress:
        for _ in pauses(deadline):
            remaining &= admin.topics.read_topics_being_deleted()
            progress.remain(len(remaining))
            if not remaining:
                break
            obstacles.check()
    undeleted = {
        topic: f"still exists after {timeout_ms} ms: {obstacle}"
        for topic, obstacle in _obstacles(admin, sorted(remaining)).items()
    }
    finished = [topic for topic in incarnations if topic not in remaining]
    for topic, assignment in admin.topics.read_topics(finished).items():
        if isinstance(assignment, BadDataError) or assignment.created_zxid == incarnations[topic]:
            undeleted[topic] = "was not deleted: the controller refused (delete.topic.enable)"
    return undeleted


def _obstacles(admin: ZkAdminStore, topics: Sequence[str]) -> dict[str, str]:
    if not topics:
        return {}
    deadline = time.monotonic() + _REASON_TIMEOUT_S
    with controller_of(admin) as controller:
        request = DescribeControllerRequest()
        answer = controller.ask(request, DescribeControllerResponse, deadline=deadline)
    return deletion_obstacles(admin, topics, answer)
