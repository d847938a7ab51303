"""What the commands about topics have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from regent.core.admin.topic_validation import topic_name_problem
from regent.core.errors import RegentError

F = TypeVar("F", bound=Callable[..., Any])


class TopicError(RegentError):
    """A topic is not what the command needs it to be."""


def topic_argument(command: F) -> F:
    """Add the argument ``name``, which may also be given as ``--topic``, as to Kafka's tools."""

    @click.argument("name", required=False)
    @click.option("--topic", metavar="NAME", hidden=True)
    @functools.wraps(command)
    def with_topic(*args: Any, name: str | None, topic: str | None, **kwargs: Any) -> Any:
        if name is not None and topic is not None:
            raise click.UsageError("the topic is named twice")
        return command(*args, name=topic if name is None else name, **kwargs)

    return cast("F", with_topic)


def named(topic: str) -> list[str]:
    """Return the topics of this name that may exist: none, when no topic can have it."""
    return [topic] if topic_name_problem(topic) is None else []
