"""Tools create, grow, configure and delete topics by Kafka's requests to any broker.

The broker forwards a request to the active controller's broker. A request for many topics is sent
in slices. A repeated request creates no topic twice, because the client chooses the topic ids.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from regent.client.broker_request import NoAnswerError, NotConnectedError, ask_broker
from regent.config.addresses import bracketed
from regent.config.command_line import program
from regent.core.admin.admin_requests import done_before, is_elsewhere
from regent.core.admin.topic_settings import DELETION_PROTECTION
from regent.core.errors import ApiError, Errors, RegentError
from regent.core.model import EndPoint
from regent.core.placement.replica_placer import MAX_PARTITION, IndexScope
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from regent.core.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    PlacementOptions,
)
from regent.core.protocol.topics import (
    TopicResult,
    TopicsRequest,
    TopicsResponse,
    error_of,
    results_of,
    topic_of,
)
from regent.core.topic_validation import TopicNames
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.codecs.topic_znodes import random_uuid

MAX_REPORTED: Final = 10
_MAX_SLICE_PARTITIONS: Final = 10_000
_MAX_SLICE_TOPICS: Final = 1_000
_DECISION_S: Final = 15.0  # in addition to the timeout of the request
_CONTROLLER_S: Final = 5.0
_PAUSE_S: Final = 0.1
_STARTING: Final = Errors.COORDINATOR_LOAD_IN_PROGRESS  # the placement service
_TOPIC: Final = 2  # a type of resources
_APIS: Final[Mapping[type, tuple[tuple[KafkaApiKey, int], type[Any]]]] = {
    CreateTopicsRequest: ((KafkaApiKey.CREATE_TOPICS, 7), CreateTopicsResponse),
    CreatePartitionsRequest: ((KafkaApiKey.CREATE_PARTITIONS, 3), CreatePartitionsResponse),
    DeleteTopicsRequest: ((KafkaApiKey.DELETE_TOPICS, 6), DeleteTopicsResponse),
    IncrementalAlterConfigsRequest: (
        (KafkaApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
        IncrementalAlterConfigsResponse,
    ),
}
"""The version of each request, and its response; all are in Kafka 3.0, and flexible."""

R = TypeVar("R", bound=CreateTopicsResponse | CreatePartitionsResponse)


class TopicsRefusedError(RegentError):
    """Topics cannot be created, grown or deleted; one line for each problem, the first ten."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - MAX_REPORTED
        lines = [*problems[:MAX_REPORTED], *([f"… and {more} more problems"] if more > 0 else [])]
        super().__init__("\n".join(lines))


class NoBrokerError(RegentError):
    """No broker answered in time."""


def new_topic_id() -> str:
    """Return a random topic id, in the form that znodes and requests have it."""
    return random_uuid()


class TopicsClient:
    """Sends requests to ``brokers``, one after the other, until one answers.

    ``timeout_s`` is for each call of a method. ``on_wait`` gets the reason before a request is sent
    again. ``find_others`` returns more brokers; it is called once, if none of the first answers.
    Every method raises ``NoBrokerError``.
    """

    def __init__(
        self,
        brokers: Sequence[EndPoint],
        *,
        timeout_s: float,
        on_wait: Callable[[str], None] = lambda _: None,
        find_others: Callable[[], Sequence[EndPoint]] | None = None,
    ) -> None:
        self._brokers = list(brokers)
        self._others = find_others
        self._timeout_s = timeout_s
        self._on_wait = on_wait

    def validate(
        self, topics: Sequence[CreatableTopic], placement: PlacementOptions | None = None
    ) -> dict[str, CreatableTopicResult]:
        """Return the results of the topics that cannot be created, by topic; write nothing."""
        among = _problems_among(topics)
        problems: dict[str, CreatableTopicResult] = {}
        for part in slices(topics):
            request = replace(creation(part, placement), validate_only=True)
            response: CreateTopicsResponse = self._ask(request, self._deadline())
            for row in response.topics:
                code, message = among.get(row.name) or error_of(row)
                if code is not Errors.NONE:
                    problems[row.name] = replace(row, error_code=code, error_message=message)
        return problems

    def create(
        self,
        topics: Iterable[CreatableTopic],
        placement: PlacementOptions | None,
        *,
        waits: bool = True,
        all_or_none: bool = False,
        await_service: AwaitService | None = None,
    ) -> Iterator[CreateTopicsResponse]:
        """Create the topics, a slice at a time; yield the response to each slice.

        ``waits``: wait until the partitions have leaders. ``all_or_none`` is about a slice. With
        placement over the whole batch, sort the topics by name, because each slice continues the
        placement of the slice before. ``await_service``: see ``_placed``.
        """
        deadline = self._deadline()
        for part in slices(topics):
            request = replace(creation(part, placement), waits=waits, all_or_none=all_or_none)
            response, deadline = self._placed(
                request, CreateTopicsResponse, await_service, deadline
            )
            yield response
            if placement is not None:
                placement = _after(placement, sum(map(_partitions, part)))

    def grow(
        self,
        topic: str,
        total: int,
        placement: PlacementOptions,
        await_service: AwaitService | None = None,
    ) -> CreatePartitionsResponse:
        """Give a topic ``total`` partitions, and wait until they have leaders."""
        request = CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name=topic, count=total),),
            timeout_ms=0,
            placement=placement,
            max_partitions=MAX_PARTITION,
        )
        deadline = self._deadline()
        return self._placed(request, CreatePartitionsResponse, await_service, deadline)[0]

    def delete(
        self, topics: Collection[str], *, waits: bool, all_or_none: bool
    ) -> DeleteTopicsResponse:
        """Mark topics for deletion; ``waits``: wait until they are deleted."""
        request = DeleteTopicsRequest(
            topics=tuple(DeleteTopicState(name=topic) for topic in topics),
            timeout_ms=0,
            waits=waits,
            all_or_none=all_or_none,
        )
        response: DeleteTopicsResponse = self._ask(request, self._deadline())
        return response

    def configure(
        self, topic: str, alterations: Iterable[AlterableConfig]
    ) -> IncrementalAlterConfigsResponse:
        """Change the overrides of a topic."""
        resource = AlterConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configs=tuple(alterations)
        )
        request = IncrementalAlterConfigsRequest(resources=(resource,))
        response: IncrementalAlterConfigsResponse = self._ask(request, self._deadline())
        return response

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _placed(
        self,
        request: CreateTopicsRequest | CreatePartitionsRequest,
        answer: type[R],
        await_service: AwaitService | None,
        deadline: float,
    ) -> tuple[R, float]:
        """Send a request again while the placement service starts; return also the new deadline.

        ``await_service`` has what gets the progress, and how long to wait. The timeout begins
        again with each attempt.
        """
        while True:
            response = self._ask(request, deadline)
            assert isinstance(response, answer)
            errors = set(map(error_of, results_of(response)))
            starting = next((e for e in errors if e.error_code is _STARTING), None)
            if await_service is None or starting is None or len(errors) > 1:
                return response, deadline
            say, until = await_service
            say(starting.message)
            left_s = until - time.monotonic()
            if left_s <= 0:
                return response, deadline
            time.sleep(min(_PAUSE_S, left_s))
            deadline = self._deadline()

    def _ask(self, request: TopicsRequest, deadline: float) -> Any:
        """Send a request until it is answered; its timeout is the time that is left."""
        is_repeated, failure = False, "there is no broker"
        while True:
            for broker in list(self._brokers):
                left_s = max(0.0, deadline - time.monotonic())
                try:
                    response = _ask_one(broker, request, left_s)
                except NoAnswerError as error:
                    is_repeated |= not isinstance(error, NotConnectedError)
                    failure = f"broker {_address(broker)} does not answer: {error}"
                    continue
                if is_repeated:
                    response = done_before(request, response, _done(request, response))
                if not _passes(response) or time.monotonic() >= deadline:
                    return response
                failure = next(filter(None, map(_problem, results_of(response))))
                if is_elsewhere(response):
                    self._put_controller_first(broker)
                time.sleep(min(response.throttle_time_ms / 1000, left_s))
            if time.monotonic() >= deadline:
                raise NoBrokerError(failure)
            self._find_others()
            self._on_wait(failure)
            time.sleep(_PAUSE_S)

    def _find_others(self) -> None:
        """Ask once for brokers that are not known, such as those that were started elsewhere."""
        find_others, self._others = self._others, None
        if find_others is not None:
            with suppress(RegentError):
                known = set(self._brokers)
                self._brokers += [broker for broker in find_others() if broker not in known]

    def _put_controller_first(self, broker: EndPoint) -> None:
        """Ask a broker of Kafka's that is not the controller, and forwards nothing, for it."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        api = (KafkaApiKey.DESCRIBE_CLUSTER, 0)
        try:
            found = ask_broker(broker, api, request, DescribeClusterResponse, _CONTROLLER_S)
        except NoAnswerError:
            return
        for row in found.brokers:
            controller = EndPoint(broker.listener, row.host, row.port)
            if row.broker_id == found.controller_id and controller != broker:
                others = [known for known in self._brokers if known != controller]
                self._brokers = [controller, *others]


def _ask_one(broker: EndPoint, request: TopicsRequest, left_s: float) -> Any:
    api, answer = _APIS[type(request)]
    is_timed = getattr(request, "waits", True)
    if is_timed and not isinstance(request, IncrementalAlterConfigsRequest):
        request = replace(request, timeout_ms=max(1, round(left_s * 1000)))
    return ask_broker(broker, api, request, answer, left_s + _DECISION_S)


def _address(broker: EndPoint) -> str:
    return f"{bracketed(broker.host)}:{broker.port}"


AwaitService: TypeAlias = tuple[Callable[[str], None], float]
"""What gets the state of a placement service that starts, and until when to wait for it."""


def creation(
    topics: Iterable[CreatableTopic], placement: PlacementOptions | None
) -> CreateTopicsRequest:
    """Return the request that creates topics, without the limit that clients have."""
    return CreateTopicsRequest(
        topics=tuple(topics), timeout_ms=0, placement=placement, max_partitions=MAX_PARTITION
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


def raise_if_refused(results: Iterable[TopicResult]) -> None:
    """Raise ``TopicsRefusedError`` if topics were refused, or have no leaders in time."""
    problems = [problem for problem in map(_problem, results) if problem]
    if problems:
        raise TopicsRefusedError(problems)


def _problem(result: TopicResult) -> str:
    """Return what is wrong with a topic, and the remedy; empty: nothing."""
    code, message = error_of(result)
    hint = f" (see `{program()} status`)" if code is Errors.REQUEST_TIMED_OUT else ""
    if code is _STARTING:
        hint = "; --placement-timeout-ms waits longer, --no-placement-service does without"
    if code is Errors.TOPIC_DELETION_DISABLED and DELETION_PROTECTION in (message or ""):
        hint = f" (`{program()} topics unprotect {shlex.quote(topic_of(result))}`)"
    return "" if code is Errors.NONE else (message or f"{topic_of(result)}: {code.name}") + hint


def _passes(response: TopicsResponse) -> bool:
    """Whether the same request may succeed later."""
    passing = (Errors.NOT_CONTROLLER, Errors.THROTTLING_QUOTA_EXCEEDED)
    return any(row.error_code in passing for row in results_of(response))


def _done(request: TopicsRequest, response: TopicsResponse) -> Collection[str]:
    """Return the topics on which an earlier attempt may have had its effect."""
    if isinstance(response, CreatePartitionsResponse):
        assert isinstance(request, CreatePartitionsRequest)
        counts = {row.name: row.count for row in request.topics}
        return [row.name for row in response.results if row.previous_count == counts[row.name]]
    return list(map(topic_of, results_of(response)))


def _partitions(topic: CreatableTopic) -> int:
    return len(topic.assignments) or max(topic.num_partitions, 1)


def _problems_among(topics: Sequence[CreatableTopic]) -> dict[str, ApiError]:
    """Return the conflicts between topics, because slices are validated one by one."""
    problems: dict[str, ApiError] = {}
    names = TopicNames([])
    for topic, count in Counter(topic.name for topic in topics).items():
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
