"""What a page asks the brokers when it is opened: each question goes to all that are registered.

A broker that does not answer, or not about all, is named in ``Answers.problems`` with the reason;
the page shows what the others told. What nobody told is unknown, not empty and not zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.cluster_connection import Cluster
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.group_states import assigned_partitions
from regent.client.lag_rates import LagPace, LagPaces
from regent.client.partitions import DescribedPartition
from regent.client.wording import counted, listed
from regent.console.bootstrap_source import partitions_of, source_of
from regent.core.admin.config_descriptions import ConfigSource
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration, EndPoint, TopicPartition
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from regent.core.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    ProducerState,
)
from regent.core.protocol.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from regent.core.protocol.messages.log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.core.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from regent.core.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import actor_at, ask
from regent.transport.kafka.api import KafkaApiKey

_TIMEOUT_S: Final = 3.0
_AT_ONCE: Final = 16
_TOPIC: Final = 2  # a type of resources
LATEST: Final = -1
EARLIEST: Final = -2
"""Timestamps that ask for the end and the first offset of a log."""
_LIST_GROUPS: Final = (KafkaApiKey.LIST_GROUPS, 4)
_DESCRIBE_GROUPS: Final = (KafkaApiKey.DESCRIBE_GROUPS, 5)
_OFFSET_FETCH: Final = (KafkaApiKey.OFFSET_FETCH, 8)
_LIST_OFFSETS: Final = (KafkaApiKey.LIST_OFFSETS, 7)
_LIST_TRANSACTIONS: Final = (KafkaApiKey.LIST_TRANSACTIONS, 0)
_DESCRIBE_TRANSACTIONS: Final = (KafkaApiKey.DESCRIBE_TRANSACTIONS, 0)
_DESCRIBE_PRODUCERS: Final = (KafkaApiKey.DESCRIBE_PRODUCERS, 0)
_DESCRIBE_LOG_DIRS: Final = (KafkaApiKey.DESCRIBE_LOG_DIRS, 4)
_DESCRIBE_CONFIGS: Final = (KafkaApiKey.DESCRIBE_CONFIGS, 4)
_CLIENT_ID: Final = "regent-console"

T = TypeVar("T")


@dataclass(slots=True)
class Answers(Generic[T]):
    """What was found, and a line for each broker that did not tell."""

    found: T
    problems: list[str] = field(default_factory=list)


class SettingRow(NamedTuple):
    """A setting of a topic, and where its value comes from."""

    name: str
    value: str
    source: str


class LagRow(NamedTuple):
    """How far a group has read a partition; ``member`` reads it now. None: not known."""

    topic_partition: TopicPartition
    committed: int | None
    end: int | None
    member: str

    @property
    def lag(self) -> int | None:
        """How many offsets are not committed yet."""
        if self.committed is None or self.end is None:
            return None
        return max(self.end - self.committed, 0)


class LagSum(NamedTuple):
    """The lag of a topic or a member of a group, in words too, and its rates."""

    name: str
    lag: str
    pace: LagPace


class GroupLagSums(NamedTuple):
    """The lag of a group as a whole, by topic and by member."""

    total: LagSum
    by_topic: Sequence[LagSum]
    by_member: Sequence[LagSum]


class GroupRow(NamedTuple):
    """A group, its members, and how far it has read."""

    group: str
    state: str
    coordinator: BrokerId
    members: tuple[str, ...]
    rows: tuple[LagRow, ...]
    has_told_offsets: bool = True

    @property
    def lag(self) -> str:
        """The lag of all partitions."""
        if not self.rows and not self.has_told_offsets:
            return "unknown"
        return _sum(row.lag for row in self.rows)

    @property
    def readers(self) -> Iterator[Hashable]:
        """What has a pace of its own: the group, and its part in each topic and of each member."""
        yield self.group, "", ""
        yield from ((self.group, row.topic_partition.topic, "") for row in self.rows)
        yield from ((self.group, "", row.member) for row in self.rows)

    def lags(self, paces: LagPaces) -> GroupLagSums:
        """Return its lag as a whole, by topic and by member, with rates."""

        def of(rows: Sequence[LagRow], topic: str = "", member: str = "") -> LagSum:
            told = {
                row.topic_partition: (row.committed, row.end)
                for row in rows
                if row.committed is not None and row.end is not None
            }
            reader, is_whole = (self.group, topic, member), len(told) == len(rows) > 0
            pace = paces.look(reader, told, is_whole=is_whole, state=self.state)
            return LagSum(topic or member, _sum(row.lag for row in rows), pace)

        by_topic: dict[str, list[LagRow]] = defaultdict(list)
        by_member: dict[str, list[LagRow]] = defaultdict(list)
        for row in self.rows:
            by_topic[row.topic_partition.topic].append(row)
            if row.member:
                by_member[row.member].append(row)
        return GroupLagSums(
            of(self.rows),
            [of(rows, topic=name) for name, rows in sorted(by_topic.items())],
            [of(rows, member=name) for name, rows in sorted(by_member.items())],
        )


class TransactionRow(NamedTuple):
    """A transactional id and its last transaction; ``began_ms`` -1: none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: BrokerId
    began_ms: int
    timeout_ms: int
    partitions: tuple[TopicPartition, ...]


class PartitionBelief(NamedTuple):
    """What one broker knows of a partition. ``problem``: why it has not told."""

    broker_id: BrokerId
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[BrokerId, ...] = ()
    replicas: tuple[BrokerId, ...] = ()
    controller_epoch: int | None = None
    problem: str = ""


def _sum(lags: Iterable[int | None]) -> str:
    """Return the sum of lags; None: one that is unknown, which is not 0."""
    lags = list(lags)
    known = [lag for lag in lags if lag is not None]
    if len(known) == len(lags):
        return str(sum(known))
    unknown = f"unknown in {counted(len(lags) - len(known), 'partition')}"
    return f"{sum(known)} and {unknown}" if known else unknown


def _is_whole(committed: Mapping[TopicPartition, int | None] | None) -> bool:
    return committed is not None and None not in committed.values()


def _is_told(error_code: int, what: str, problems: list[str]) -> bool:
    """Whether an answer has no error; otherwise add to the problems that it is unknown, and why."""
    if error_code == Errors.NONE:
        return True
    if (line := f"{what}: unknown, {Errors(error_code).name}") not in problems:
        problems.append(line)
    return False


class BrokerQuestions:
    """Asks the brokers that are registered when a page is opened. Raises ``RegentError``.

    ``known`` has the partitions by topic, if somebody has read them already.
    """

    def __init__(
        self,
        cluster: Cluster,
        known: Mapping[str, Sequence[DescribedPartition]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._known = known
        with source_of(cluster) as source:
            found = source.read_brokers()
        self._live = {b: r for b, r in found.items() if isinstance(r, BrokerRegistration)}

    # --- topics ---

    def sizes(
        self, topics: Mapping[str, Sequence[DescribedPartition]]
    ) -> Answers[dict[TopicPartition, dict[BrokerId, int]]]:
        """Return the bytes of every replica of these topics."""
        sizes: dict[TopicPartition, dict[BrokerId, int]] = defaultdict(dict)
        asked = tuple(
            DescribableLogDirTopic(
                topic=topic, partitions=tuple(p.topic_partition.partition for p in partitions)
            )
            for topic, partitions in topics.items()
        )
        request = DescribeLogDirsRequest(topics=asked)
        answers = self._ask_all(_DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse)
        for broker_id, answer in answers.found.items():
            _is_told(answer.error_code, f"sizes on broker {broker_id}", answers.problems)
            for result in answer.results:
                where = f"sizes in {result.log_dir} of broker {broker_id}"
                _is_told(result.error_code, where, answers.problems)
                for topic in result.topics:
                    for row in topic.partitions:
                        if not row.is_future_key:
                            at = TopicPartition(topic.name, row.partition_index)
                            sizes[at][broker_id] = row.partition_size
        return Answers(dict(sizes), answers.problems)

    def settings(self, topic: str) -> Answers[list[SettingRow]]:
        """Return the settings of a topic, those that were changed first."""
        resource = DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=topic, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=(resource,), include_synonyms=False)
        problems: list[str] = []
        for broker_id, endpoint in self._endpoints().items():
            try:
                answer = ask_broker(
                    endpoint, _DESCRIBE_CONFIGS, request, DescribeConfigsResponse, _TIMEOUT_S
                )
            except (NoAnswerError, RegentError) as error:
                problems.append(f"broker {broker_id} does not tell: {error}")
                continue
            whose = f"settings by broker {broker_id}"
            told = [r for r in answer.results if _is_told(r.error_code, whose, problems)]
            if not told:
                continue
            rows = [
                SettingRow(row.name, row.value or "", _source(row.config_source))
                for result in told
                for row in result.configs
            ]
            rows.sort(key=lambda row: (row.source == _source(ConfigSource.DEFAULT), row.name))
            return Answers(rows, problems)
        return Answers([], problems)

    # --- groups ---

    def groups(self) -> Answers[list[GroupRow]]:
        """Return all groups, with their lags."""
        listed = self._ask_all(_LIST_GROUPS, ListGroupsRequest(), ListGroupsResponse)
        for broker_id, told in listed.found.items():
            _is_told(told.error_code, f"groups of broker {broker_id}", listed.problems)
        names = {b: [g.group_id for g in answer.groups] for b, answer in listed.found.items()}
        asked = {b: of_broker for b, of_broker in names.items() if of_broker}
        questions = {b: DescribeGroupsRequest(groups=tuple(of)) for b, of in asked.items()}
        described = self._ask_each(_DESCRIBE_GROUPS, questions, DescribeGroupsResponse)
        committed = self._committed(asked)
        groups = [
            (b, g)
            for b, answer in described.found.items()
            for g in answer.groups
            if _is_told(g.error_code, f"group {g.group_id}", described.problems)
        ]
        readers = {
            group.group_id: {
                partition: f"{member.client_id} {member.client_host}"
                for member in group.members
                for partition in assigned_partitions(member.member_assignment)
            }
            for _, group in groups
        }
        wanted = {p for found in committed.found.values() for p in found}
        wanted |= {p for found in readers.values() for p in found}
        ends = self.offsets(wanted)

        def rows(group: str) -> Iterator[LagRow]:
            positions, members = committed.found.get(group, {}), readers[group]
            for partition in sorted({*positions, *members}):
                member = members.get(partition, "")
                yield LagRow(partition, positions.get(partition), ends.found.get(partition), member)

        rows_of = [
            GroupRow(
                group.group_id,
                group.group_state,
                broker_id,
                tuple(f"{m.client_id} {m.client_host}" for m in group.members),
                tuple(rows(group.group_id)),
                _is_whole(committed.found.get(group.group_id)),
            )
            for broker_id, group in groups
        ]
        answers = (listed, described, committed, ends)
        return Answers(sorted(rows_of), [line for each in answers for line in each.problems])

    def _committed(
        self, groups: Mapping[BrokerId, Sequence[str]]
    ) -> Answers[dict[str, dict[TopicPartition, int | None]]]:
        """Return what each group has committed, None: untold; a group that is left out told none.

        ``groups`` has those of each coordinator.
        """
        kind = OffsetFetchRequestGroup
        requests = {
            b: OffsetFetchRequest(groups=tuple(kind(group_id=g, topics=None) for g in of))
            for b, of in groups.items()
        }
        answers = self._ask_each(_OFFSET_FETCH, requests, OffsetFetchResponse)
        problems = answers.problems
        committed = {
            group.group_id: {
                TopicPartition(topic.name, row.partition_index): row.committed_offset
                if _is_told(row.error_code, f"offsets of {group.group_id}", problems)
                else None
                for topic in group.topics
                for row in topic.partitions
                if row.error_code != Errors.NONE or row.committed_offset >= 0
            }
            for answer in answers.found.values()
            for group in answer.groups
            if _is_told(group.error_code, f"offsets of {group.group_id}", problems)
        }
        return Answers(committed, answers.problems)

    def offsets(
        self, partitions: Collection[TopicPartition], timestamp: int = LATEST
    ) -> Answers[dict[TopicPartition, int]]:
        """Return the first offset of a time in partitions, as their leaders know it; -1: none."""
        leaders: dict[BrokerId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in self._read({p.topic for p in partitions}):
            if row.topic_partition in partitions:
                leaders[row.leader][row.topic_partition.topic].append(row.topic_partition.partition)
        requests = {
            broker_id: ListOffsetsRequest(
                replica_id=-1,
                topics=tuple(
                    ListOffsetsTopic(
                        name=topic,
                        partitions=tuple(
                            ListOffsetsPartition(partition_index=n, timestamp=timestamp)
                            for n in numbers
                        ),
                    )
                    for topic, numbers in of.items()
                ),
            )
            for broker_id, of in leaders.items()
        }
        answers = self._ask_each(_LIST_OFFSETS, requests, ListOffsetsResponse)
        found = {
            TopicPartition(topic.name, row.partition_index): row.offset
            for answer in answers.found.values()
            for topic in answer.topics
            for row in topic.partitions
            if _is_told(row.error_code, f"offsets in topic {topic.name}", answers.problems)
        }
        away = {p for p in partitions if p not in found} - {
            TopicPartition(topic, n)
            for broker_id in leaders.keys() & self._endpoints().keys()
            for topic, numbers in leaders[broker_id].items()
            for n in numbers
        }
        if away:
            answers.problems.append(
                f"offsets of {listed(sorted(away), 5)}: unknown, no broker leads them"
            )
        return Answers(found, answers.problems)

    def transactions(self) -> Answers[list[TransactionRow]]:
        """Return the transactional ids of all coordinators, open transactions first."""
        every = ListTransactionsRequest(state_filters=(), producer_id_filters=())
        listed = self._ask_all(_LIST_TRANSACTIONS, every, ListTransactionsResponse)
        for broker_id, told in listed.found.items():
            _is_told(told.error_code, f"transactions of broker {broker_id}", listed.problems)
        requests = {
            broker_id: DescribeTransactionsRequest(
                transactional_ids=tuple(t.transactional_id for t in answer.transaction_states)
            )
            for broker_id, answer in listed.found.items()
            if answer.transaction_states
        }
        described = self._ask_each(_DESCRIBE_TRANSACTIONS, requests, DescribeTransactionsResponse)
        rows = [
            TransactionRow(
                row.transactional_id,
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                broker_id,
                row.transaction_start_time_ms,
                row.transaction_timeout_ms,
                tuple(TopicPartition(t.topic, n) for t in row.topics for n in t.partitions),
            )
            for broker_id, answer in described.found.items()
            for row in answer.transaction_states
            if _is_told(row.error_code, row.transactional_id, described.problems)
        ]
        rows.sort(key=lambda row: (row.state != "Ongoing", row.transactional_id))
        return Answers(rows, listed.problems + described.problems)

    # --- one partition ---

    def beliefs(self, topic_partition: TopicPartition) -> list[PartitionBelief]:
        """Return what each broker knows of a partition, side by side."""

        def believes(broker_id: BrokerId) -> PartitionBelief:
            try:
                answer = self._metadata(broker_id, (topic_partition.topic,))
            except RegentError as error:
                return PartitionBelief(broker_id, problem=str(error))
            for row in answer.partitions:
                if (row.topic, row.partition) == topic_partition:
                    epochs = row.leader_epoch, row.isr, row.replicas, row.controller_epoch
                    return PartitionBelief(broker_id, row.leader, *epochs)
            return PartitionBelief(broker_id, problem="it does not know the partition")

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(believes, self._live))

    def open_transactions(
        self, topic_partition: TopicPartition
    ) -> tuple[BrokerId, list[ProducerState]]:
        """Return the leader of a partition, and its producers with an open transaction."""
        topic, number = topic_partition
        found = [p for p in self._read({topic}) if p.topic_partition == topic_partition]
        if not found:
            raise RegentError(f"there is no partition {topic_partition}")
        asked = DescribeProducersTopic(name=topic, partition_indexes=(number,))
        request = DescribeProducersRequest(topics=(asked,))
        leader = found[0].leader
        answer = self.ask_one(leader, _DESCRIBE_PRODUCERS, request, DescribeProducersResponse)
        rows = [row for told in answer.topics for row in told.partitions]
        for row in rows:
            if row.error_code != Errors.NONE:
                raise RegentError(f"{topic_partition}: {Errors(row.error_code).name}")
        producers = [p for row in rows for p in row.active_producers]
        return leader, [p for p in producers if p.current_txn_start_offset >= 0]

    def _read(self, topics: Collection[str]) -> Sequence[DescribedPartition]:
        if self._known is not None:
            return [p for topic in topics for p in self._known.get(topic, ())]
        if not topics:
            return ()
        with source_of(self._cluster) as source:
            return partitions_of(source, topics).partitions

    def _metadata(self, broker_id: BrokerId, topics: tuple[str, ...]) -> DescribeMetadataResponse:
        """Ask one broker for its metadata cache. Raises ``RegentError``."""
        endpoint = self._live[broker_id].info.control_peer
        if endpoint is None:
            raise RegentError(f"broker {broker_id} is one of Kafka, without a control port")
        try:
            with actor_at(endpoint, client_id=_CLIENT_ID) as actor:
                request = DescribeMetadataRequest(topics)
                return ask(actor, request, DescribeMetadataResponse, timeout_s=_TIMEOUT_S)
        except RequestError as error:
            raise RegentError(f"broker {broker_id} does not answer: {error}") from None

    # --- asking ---

    def _endpoints(self) -> dict[BrokerId, EndPoint]:
        found = {b: SECURITY_OF_COMMAND.endpoint_of(r.info) for b, r in self._live.items()}
        return {b: endpoint for b, endpoint in found.items() if endpoint is not None}

    def ask_one(
        self, broker_id: BrokerId, api: tuple[KafkaApiKey, int], request: object, answer: type[T]
    ) -> T:
        """Return the answer of one broker. Raises ``RegentError``."""
        answers = self._ask_each(api, {broker_id: request}, answer)
        if broker_id in answers.found:
            return answers.found[broker_id]
        raise RegentError(listed(answers.problems or [f"broker {broker_id} is not registered"], 1))

    def _ask_all(
        self, api: tuple[KafkaApiKey, int], request: object, answer: type[T]
    ) -> Answers[dict[BrokerId, T]]:
        return self._ask_each(api, dict.fromkeys(self._endpoints(), request), answer)

    def _ask_each(
        self, api: tuple[KafkaApiKey, int], requests: Mapping[BrokerId, object], answer: type[T]
    ) -> Answers[dict[BrokerId, T]]:
        """Send each broker its request, all at once."""
        endpoints = self._endpoints()
        answers: Answers[dict[BrokerId, T]] = Answers({})

        def send(broker_id: BrokerId) -> T | str:
            try:
                endpoint = endpoints[broker_id]
                return ask_broker(endpoint, api, requests[broker_id], answer, _TIMEOUT_S)
            except (NoAnswerError, RegentError) as error:
                return f"broker {broker_id} does not tell: {error}"

        asked = [broker_id for broker_id in requests if broker_id in endpoints]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for broker_id, told in zip(asked, threads.map(send, asked), strict=True):
                if isinstance(told, str):
                    answers.problems.append(told)
                else:
                    answers.found[broker_id] = told
        return answers


def _source(number: int) -> str:
    """Return where a value comes from, in words."""
    try:
        return ConfigSource(number).name.lower().replace("_", " ")
    except ValueError:
        return str(number)
