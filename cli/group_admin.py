"""Requests about consumer groups, through librdkafka's admin client."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as KafkaTopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, OffsetSpec

from regent.cli.kafka_client import KafkaClientError
from regent.cli.output import quoted
from regent.cli.waiting import Waiting
from regent.client.cluster_connection import Cluster, client_settings, open_client
from regent.client.obstacles import record_obstacles
from regent.config.addresses import bracketed
from regent.config.command_line import program
from regent.core.model import TopicPartition
from regent.core.topic_validation import GROUP_METADATA_TOPIC

DEAD: Final = "Dead"
_STATES: Final[Mapping[Enum, str]] = {
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.DEAD: DEAD,
}
"""Kafka's words for the states of groups."""

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_MAX_TIMEOUT_S: Final = 3600.0  # librdkafka takes no more
_UNAVAILABLE: Final = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}


class GroupError(KafkaClientError):
    """A group is not in the state that the command needs, or its coordinator does not answer."""


class UnknownGroupError(GroupError):
    """There is no such group."""


class ListedGroup(NamedTuple):
    """A group in a list; a simple one has committed offsets, and never had members."""

    group: str
    state: str
    is_simple: bool


class GroupMember(NamedTuple):
    """A member and its partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Group(NamedTuple):
    """A group as its coordinator describes it."""

    group: str
    state: str
    coordinator_id: int
    coordinator: str
    partition_assignor: str
    members: tuple[GroupMember, ...]

    @property
    def exists(self) -> bool:
        """Whether there is such a group: Kafka calls one that it does not know dead."""
        return self.state != DEAD


class PartitionOffsets(Protocol):
    """Tells offsets of partitions, as ``GroupAdmin``."""

    def offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> Mapping[TopicPartition, int | None]:
        """Return an offset of each partition."""
        ...


class GroupAdmin:
    """Asks brokers about groups; its methods raise ``GroupError``."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._client = open_client(AdminClient, client_settings(cluster))
        self._timeout_s = min(max(timeout_ms / 1000, 0.001), _MAX_TIMEOUT_S)

    def groups(self) -> list[ListedGroup]:
        """Return all groups, by name; an error if any broker does not tell its groups."""
        with self._asking("the groups of all brokers"):
            listing = self._client.list_consumer_groups(request_timeout=self._timeout_s).result()
            if listing.errors:
                raise KafkaException(listing.errors[0])
        return sorted(
            ListedGroup(row.group_id, _state(row.state), row.is_simple_consumer_group)
            for row in listing.valid
        )

    def describe(self, groups: Sequence[str]) -> list[Group]:
        """Return groups in the sequence of their names."""
        if not groups:
            return []
        asked = self._client.describe_consumer_groups(list(groups), request_timeout=self._timeout_s)
        return [_group(self._answer(group, asked[group])) for group in groups]

    def committed(self, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets of groups."""
        asked = {  # one call for each: librdkafka refuses more in a call
            group: self._client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], request_timeout=self._timeout_s
            )[group]
            for group in groups
        }
        return {
            group: {
                TopicPartition(row.topic, row.partition): row.offset
                for row in self._answer(group, future).topic_partitions
                if row.error is None and row.offset >= 0
            }
            for group, future in asked.items()
        }

    def offsets(
        self, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[TopicPartition, int | None]:
        """Return an offset of each partition: the first, the end, or the first one of a time.

        It is -1 if there is no record of that time or later, and None if the leader does not tell.
        """
        if not partitions:
            return {}
        wanted = {KafkaTopicPartition(*partition): spec for partition in partitions}
        found: dict[TopicPartition, int | None] = {}
        with self._asking("offsets of partitions"):
            asked = self._client.list_offsets(wanted, request_timeout=self._timeout_s)
            for row, future in asked.items():
                told = future.exception() is None
                found[TopicPartition(row.topic, row.partition)] = (
                    future.result().offset if told else None
                )
        return found

    def partition_counts(self) -> dict[str, int]:
        """Return the number of partitions of each topic."""
        with self._asking("the topics"):
            topics = self._client.list_topics(timeout=self._timeout_s).topics
        return {name: len(topic.partitions) for name, topic in topics.items() if not topic.error}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of a group without members."""
        rows = [KafkaTopicPartition(*partition, offset) for partition, offset in offsets.items()]
        asked = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, rows)], request_timeout=self._timeout_s
        )
        shown = quoted(group)
        refused = [
            f"group {shown}: {row.topic}-{row.partition} was not reset: {self._told(row.error)}"
            for row in self._answer(group, asked[group]).topic_partitions
            if row.error is not None
        ]
        if refused:
            raise GroupError("\n".join(refused))

    def delete(self, groups: Sequence[str]) -> dict[str, GroupError | None]:
        """Delete groups; return the error of each, if any."""
        asked = self._client.delete_consumer_groups(list(groups), request_timeout=self._timeout_s)
        results: dict[str, GroupError | None] = dict.fromkeys(groups)
        for group in groups:
            try:
                self._answer(group, asked[group])
            except GroupError as error:
                results[group] = error.with_traceback(None)
        return results

    def _answer(self, group: str, future: Future[Any]) -> Any:
        with self._asking(f"group {quoted(group)}", group):
            return future.result()

    @contextmanager
    def _asking(self, what: str, group: str | None = None) -> Iterator[None]:
        """Show what is asked for if it takes long, and raise its failure as ``GroupError``."""
        try:
            with Waiting() as waiting:
                waiting.say(f"asking for {what}")
                yield
        except KafkaException as error:
            raise self._failure(what, error.args[0], group) from None

    def _failure(self, what: str, error: KafkaError, group: str | None) -> GroupError:
        if error.code() == KafkaError.GROUP_ID_NOT_FOUND:
            return UnknownGroupError(f"{what} does not exist")
        return GroupError(f"{what}: {self._told(error, group)}")

    def _told(self, error: KafkaError, group: str | None = None) -> str:
        if error.code() in (KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID):
            return "it has members: stop them first"
        if error.code() in _UNAVAILABLE:
            with self._cluster.admin() as admin:
                reasons = record_obstacles(admin, GROUP_METADATA_TOPIC, group=group)
            unknown = f"brokers may be slow (see `{program()} status`)"
            return (
                f"no answer within {self._timeout_s:g} s ({error.str()}):"
                f" {'; '.join(reasons) or unknown}"
            )
        return str(error.str())


def at_time(timestamp_ms: int) -> OffsetSpec:
    """Return what asks for the first offset of a time."""
    spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec


def _state(state: Enum) -> str:
    return _STATES.get(state, "Unknown")


def _group(found: ConsumerGroupDescription) -> Group:
    members = [
        GroupMember(
            member.member_id,
            member.group_instance_id or None,
            member.client_id,
            member.host,
            tuple(
                sorted(
                    TopicPartition(p.topic, p.partition) for p in member.assignment.topic_partitions
                )
            ),
        )
        for member in found.members
    ]
    node = found.coordinator
    return Group(
        found.group_id,
        _state(found.state),
        node.id,
        f"{bracketed(node.host)}:{node.port}",
        found.partition_assignor,
        tuple(sorted(members)),
    )


def refuse_empty_groups(*groups: str) -> None:
    """Raise ``GroupError`` if a name is empty: Kafka's clients refuse that without a reason."""
    if "" in groups:
        raise GroupError("group '' is empty")
