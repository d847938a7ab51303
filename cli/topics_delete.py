"""``topics delete``: marks topics for deletion, and can wait until they are deleted."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import click

from regent.cli.output import Output, examples, note, output_option, print_json
from regent.cli.remote_actors import controller_of
from regent.cli.topic_options import TopicError, read_existing, refuse_empty
from regent.cli.waiting import Explained, Progress, timeout_option
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.pauses import pauses
from regent.client.topics import TopicsClient, raise_if_refused
from regent.core.errors import BadDataError, Errors
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.topics import TopicOutcome
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.zk.stores.admin_store import ZkAdminStore

_REASON_TIMEOUT_S = 2.0
_SAID = 5  # topics whose obstacles are told while the command waits


@click.command(
    epilog=examples(
        "topics delete payments",
        "topics delete payments audit --wait",
    )
)
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--topic", "more_names", metavar="NAME", multiple=True, hidden=True)
@click.option("--if-exists", is_flag=True, help="Skip topics that do not exist.")
@click.option("--wait", is_flag=True, help="Wait until the topics are deleted.")
@timeout_option("Time to wait with --wait.")
@output_option
@pass_cluster
def delete(
    cluster: Cluster,
    /,
    names: Sequence[str],
    more_names: Sequence[str],
    if_exists: bool,
    wait: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Delete topics: mark them for deletion. The controller deletes them."""
    wanted = list(dict.fromkeys((*names, *more_names)))
    if not wanted:
        raise click.UsageError("which topic? Give a name")
    refuse_empty(*wanted)
    with cluster.admin() as admin, controller_of(admin) as controller:
        incarnations = _existing(admin, wanted, may_be_absent=if_exists)
        outcomes: dict[str, TopicOutcome] = {}
        if incarnations:
            client = TopicsClient(controller, deadline=time.monotonic() + timeout_ms / 1000)
            outcomes = {row.topic: row for row in client.delete(incarnations).outcomes}
        # A topic that existed just before and is unknown now has been deleted.
        marked = {t: o for t, o in outcomes.items() if o.error_code is Errors.NONE}
        gone = Errors.UNKNOWN_TOPIC_OR_PARTITION
        raise_if_refused(row for row in outcomes.values() if row.error_code is not gone)
        kept = {topic: incarnations[topic] for topic in marked}
        undeleted = _await_deletion(admin, kept, timeout_ms) if wait else dict.fromkeys(marked, "")
    if output == Output.JSON:
        print_json([{"topic": t, "deleted": t not in undeleted} for t in sorted(outcomes)])
    else:
        for topic in sorted(outcomes):
            click.echo(f"Topic {topic} {_became(topic, undeleted, marked.get(topic))}.")
    problems = [f"topic {topic} {reason}" for topic, reason in undeleted.items() if reason]
    if problems:
        raise TopicError("\n".join(problems))


def _existing(
    admin: ZkAdminStore, topics: Sequence[str], *, may_be_absent: bool
) -> dict[str, int | None]:
    """Return the czxids of the topics that exist; a later topic of the same name has another."""
    internal = [topic for topic in topics if topic in INTERNAL_TOPICS]
    if internal:
        raise TopicError(f"topic {internal[0]} is internal and cannot be deleted")
    found = read_existing(admin, topics)
    absent = [f"topic {topic} does not exist" for topic in topics if topic not in found]
    if absent and not may_be_absent:
        raise TopicError("\n".join(absent))
    for problem in absent:
        note(problem)
    return {
        topic: None if isinstance(assignment, BadDataError) else assignment.created_zxid
        for topic, assignment in found.items()
    }


def _became(topic: str, undeleted: Collection[str], outcome: TopicOutcome | None) -> str:
    if topic not in undeleted:
        return "is deleted"
    if outcome is not None and outcome.message:
        return "is already marked for deletion"
    return "is marked for deletion"


def _await_deletion(
    admin: ZkAdminStore, incarnations: Mapping[str, int | None], timeout_ms: int
) -> dict[str, str]:
    """Return the topics that still exist, each with the reason."""
    deadline = time.monotonic() + timeout_ms / 1000
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
