"""Tools create, grow, configure and delete topics through the active controller's broker.

A request for many topics is sent in slices, and again while the controller moves. All topics are
validated before the first slice is sent. A repeated request creates no topic twice, because the
client chooses the topic ids.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from regent.client.controller_ref import ControllerError, ControllerRef
from regent.client.pauses import pauses
from regent.config.command_line import program
from regent.core.admin.admin_requests import done_before
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.placement.replica_placer import MAX_PARTITION, IndexScope
from regent.core.protocol.topics import (
    AlterTopicConfigsRequest,
    ConfigAlteration,
    ConfiguredTopic,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    PlacementOptions,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.topic_validation import TopicNames
from regent.zk.codecs.topic_znodes import encode_topic_id

MAX_REPORTED: Final = 10
_MAX_SLICE_PARTITIONS: Final = 10_000
_MAX_SLICE_TOPICS: Final = 1_000
_DECISION_S: Final = 15.0  # in addition to the timeout of the request
_PAUSE_S: Final = 0.1


class TopicsRefusedError(RegentError):
    """Topics cannot be created, grown or deleted; one line for each problem, the first ten."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - MAX_REPORTED
        lines = [*problems[:MAX_REPORTED], *([f"… and {more} more problems"] if more > 0 else [])]
        super().__init__("\n".join(lines))


def new_topic_id() -> str:
    """Return a random topic id, in the form that znodes and requests have it."""
    return encode_topic_id(uuid.uuid4().bytes)


class TopicsClient:
    """Sends requests about topics to ``controller``, until ``deadline`` (monotonic, seconds)."""

    def __init__(self, controller: ControllerRef, *, deadline: float) -> None:
        self._controller = controller
        self._deadline = deadline

    def validate(
        self, topics: Sequence[CreatableTopic], placement: PlacementOptions | None = None
    ) -> dict[str, ApiError]:
        """Return why topics cannot be created, by topic; write nothing."""
        among = _problems_among(topics)
        problems: dict[str, ApiError] = {}
        for part in slices(topics):
            request = replace(creation(part, placement), validate_only=True)
            for row in self._ask(request).outcomes:
                problem = among.get(row.topic) or ApiError(row.error_code, row.message)
                if problem.error_code is not Errors.NONE:
                    problems[row.topic] = problem
        return problems

    def await_placement_service(
        self,
        request: CreateTopicsRequest | CreatePartitionsRequest,
        say: Callable[[str], None],
        *,
        deadline: float,
    ) -> None:
        """Wait while the placement service starts, at most until ``deadline``.

        ``say`` gets the progress of its start. Raises ``TopicsRefusedError`` if the
        request is not valid.
        """
        question = replace(request, timeout_ms=0, validate_only=True)
        for _ in pauses(deadline):
            answer = self._ask(question)
            raise_if_refused(answer.outcomes)
            if not answer.placement_note:
                return
            say(answer.placement_note)

    def create(
        self, topics: Iterable[CreatableTopic], placement: PlacementOptions | None, *, waits: bool
    ) -> Iterator[TopicsResponse]:
        """Create the topics, a slice at a time; yield the outcomes of each slice.

        ``waits``: wait until the partitions have leaders. With placement over the whole batch, sort
        the topics by name, because each slice continues the placement of the slice before.
        """
        for part in slices(topics):
            yield self._ask(replace(creation(part, placement), timeout_ms=int(waits)))
            if placement is not None:
                placement = _after(placement, sum(map(_partitions, part)))

    def grow(self, request: CreatePartitionsRequest) -> TopicsResponse:
        """Add partitions to topics that have fewer, and wait until they have leaders."""
        undone = {row.topic for row in request.topics}
        return self._ask(replace(request, timeout_ms=1, validate_only=False), undone)

    def delete(self, topics: Collection[str]) -> TopicsResponse:
        """Mark topics that exist for deletion; the controller deletes them."""
        return self._ask(DeleteTopicsRequest(tuple(topics), 0), topics)

    def configure(self, topic: str, alterations: Iterable[ConfigAlteration]) -> TopicsResponse:
        """Change the overrides of a topic."""
        return self._ask(AlterTopicConfigsRequest((ConfiguredTopic(topic, tuple(alterations)),), 0))

    def _ask(self, request: TopicsRequest, undone: Collection[str] = ()) -> TopicsResponse:
        """Send a request until it is answered; ``undone``: see ``done_before``.

        A positive ``timeout_ms`` is replaced by the time that is left. Raises ``ControllerError``.
        """
        is_repeated = False
        while True:
            now = time.monotonic()
            if request.timeout_ms > 0:
                left_ms = max(1, round((self._deadline - now) * 1000))
                request = replace(request, timeout_ms=left_ms)
            limit = now + request.timeout_ms / 1000 + _DECISION_S
            response = self._controller.ask(
                request, TopicsResponse, deadline=limit, limit_s=limit - now
            )
            if response is not None and is_repeated:
                outcomes = tuple(done_before(request, o, undone) for o in response.outcomes)
                return replace(response, outcomes=outcomes)
            if response is not None:
                return response
            if self._controller.was_refused or time.monotonic() >= self._deadline:
                raise ControllerError(self._controller.failure)
            is_repeated = True
            time.sleep(_PAUSE_S)


def creation(
    topics: Iterable[CreatableTopic], placement: PlacementOptions | None
) -> CreateTopicsRequest:
    """Return the request that creates topics, without the limit that clients have."""
    return CreateTopicsRequest(tuple(topics), 0, False, placement, MAX_PARTITION)


def growth(topic: str, total: int, placement: PlacementOptions) -> CreatePartitionsRequest:
    """Return the request that gives a topic ``total`` partitions, without the clients' limit."""
    return CreatePartitionsRequest(
        (GrowingTopic(topic, total),), 0, False, placement, MAX_PARTITION
    )


def slices(topics: Iterable[CreatableTopic]) -> Iterator[list[CreatableTopic]]:
    """Yield the topics in slices that fit into a request."""
    part: list[CreatableTopic] = []
    partitions = 0
    for topic in topics:
        count = _partitions(topic)
        if part and (len(part) >= _MAX_SLICE_TOPICS or partitions + count > _MAX_SLICE_PARTITIONS):
            yield part
            part, partitions = [], 0
        part.append(topic)
        partitions += count
    if part:
        yield part


def raise_if_refused(outcomes: Iterable[TopicOutcome]) -> None:
    """Raise ``TopicsRefusedError`` if topics were refused, or have no leaders in time."""
    problems = []
    for row in outcomes:
        late = row.error_code is Errors.REQUEST_TIMED_OUT
        if row.error_code is not Errors.NONE:
            hint = f" (see `{program()} status`)" if late else ""
            problems.append((row.message or row.error_code.name) + hint)
    if problems:
        raise TopicsRefusedError(problems)


def _partitions(topic: CreatableTopic) -> int:
    return len(topic.assignment) if topic.assignment is not None else max(topic.partitions, 1)


def _problems_among(topics: Sequence[CreatableTopic]) -> dict[str, ApiError]:
    """Return the conflicts between topics, because slices are validated one by one."""
    problems: dict[str, ApiError] = {}
    names = TopicNames([])
    for topic, count in Counter(topic.topic for topic in topics).items():
        if count > 1:
            message = f"topic {topic} is named more than once"
            problems[topic] = ApiError(Errors.INVALID_REQUEST, message)
        problem = names.collision_problem(topic)
        if problem is not None:
            problems[topic] = problem
        names.add(topic)
    return problems


def _after(placement: PlacementOptions, partitions: int) -> PlacementOptions:
    """Return the placement of the next slice, which continues the index of partitions."""
    start = placement.start_index
    if placement.index != IndexScope.BATCH or not start.isdecimal():
        return placement
    return replace(placement, start_index=str((int(start) + partitions) % MAX_PARTITION))
