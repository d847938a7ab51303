"""Options and errors of the commands about topics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from regent.cli.waiting import Explained
from regent.cli.watching import complete_topics
from regent.client.cluster_connection import Cluster
from regent.client.topics import TopicsClient
from regent.core.errors import BadDataError, RegentError
from regent.core.ports import TopicAssignment
from regent.core.topic_validation import topic_name_problem

if TYPE_CHECKING:
    from regent.zk.stores.admin_store import ZkAdminStore

F = TypeVar("F", bound=Callable[..., Any])


class TopicError(RegentError):
    """A topic is not in the state that the command needs."""


def topic_argument(command: F) -> F:
    """Add the argument ``name``; Kafka's ``--topic`` is accepted too."""

    @click.argument("name", required=False, shell_complete=complete_topics)
    @click.option("--topic", metavar="NAME", shell_complete=complete_topics, hidden=True)
    @functools.wraps(command)
    def with_topic(*args: Any, name: str | None, topic: str | None, **kwargs: Any) -> Any:
        if name is not None and topic is not None:
            raise click.UsageError("the topic is named twice")
        wanted = topic if name is None else name
        if wanted is not None:
            refuse_empty(wanted)
        return command(*args, name=wanted, **kwargs)

    return cast("F", with_topic)


def refuse_empty(*topics: str) -> None:
    """Raise ``TopicError`` if a name is empty: messages could not name the topic."""
    if "" in topics:
        raise TopicError("topic '' is empty")


def read_existing(
    admin: ZkAdminStore, topics: Collection[str]
) -> dict[str, TopicAssignment | BadDataError]:
    """Read topics; those that do not exist are missing. Raises ``NoClusterError``."""
    found = admin.topics.read_topics([name for topic in topics for name in named(topic)])
    if not found:
        admin.topics.check_cluster()
    return found


def topics_client(cluster: Cluster, timeout_ms: int) -> TopicsClient:
    """Return a client of the brokers of a cluster; it says what it waits for."""
    reasons: list[str] = []
    explained = Explained("waiting for a broker that can answer", lambda: reasons[-1:])

    def on_wait(reason: str) -> None:
        reasons.append(reason)
        explained.check()

    return TopicsClient(
        cluster.brokers(),
        timeout_s=timeout_ms / 1000,
        on_wait=on_wait,
        find_others=cluster.registered_brokers,
    )


def named(topic: str) -> list[str]:
    """Return the name in a list; an empty list if it is no valid name of a topic."""
    return [topic] if topic_name_problem(topic) is None else []
