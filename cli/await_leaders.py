"""Waits until the controller knows a leader for every partition of new or grown topics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from regent.cli.remote_actors import controller_of
from regent.config.command_line import program
from regent.core.errors import RegentError
from regent.core.protocol.controller import DescribeTopicsRequest, DescribeTopicsResponse
from regent.zk.stores.admin_store import ZkAdminStore

_FIRST_PAUSE_S = 0.02
_MAX_PAUSE_S = 0.2
_ROWS_PER_QUESTION = 50_000  # so that no question keeps the controller busy for long


class NoLeaderError(RegentError):
    """Partitions have no leader yet; they exist all the same."""


def await_leaders(admin: ZkAdminStore, partitions: Mapping[str, int], *, timeout_ms: int) -> None:
    """Return when each topic has as many partitions with leaders as ``partitions`` says.

    Raises ``NoLeaderError`` after ``timeout_ms``.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    missing = dict(partitions)  # how many leaders each topic lacks; only these are asked about
    pause_s = _FIRST_PAUSE_S
    with controller_of(admin) as controller:
        has_answered = False
        while True:
            for question in list(_questions(partitions, missing)):
                request = DescribeTopicsRequest(tuple(question))
                answer = controller.ask(request, DescribeTopicsResponse, deadline=deadline)
                if answer is None:
                    break
                has_answered = True
                led = Counter(row.topic for row in answer.partitions if row.leader >= 0)
                for topic in question:
                    missing[topic] = max(0, partitions[topic] - led[topic])
            missing = {topic: lacks for topic, lacks in missing.items() if lacks}
            if not missing:
                return
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
    reason = "" if has_answered else f": {controller.failure}"
    raise NoLeaderError(
        f"{sum(missing.values())} of {sum(partitions.values())} partitions have no leader after"
        f" {timeout_ms} ms{reason} (everything is written: see `{program()} status`)"
    )


def _questions(partitions: Mapping[str, int], missing: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield the topics that lack leaders, in groups of bounded size."""
    group: list[str] = []
    rows = 0
    for topic in missing:
        if group and rows + partitions[topic] > _ROWS_PER_QUESTION:
            yield group
            group, rows = [], 0
        group.append(topic)
        rows += partitions[topic]
    if group:
        yield group
