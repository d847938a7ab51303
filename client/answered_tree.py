"""A cluster that is known by the addresses of some brokers only: their answers as ZooKeeper's tree.

Commands read it with the code that reads ZooKeeper. Any broker names the others (DescribeCluster)
and its control port (DescribeConfigs). The controller's broker tells the brokers and partitions
that it knows, the controller what it does. What nobody tells is absent: ``NOT_TOLD`` names it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.cluster_connection import Cluster, ClusterLocation, ClusterNotFoundError
from regent.client.controller_ref import batches
from regent.client.move_throttle import LISTS
from regent.config.addresses import bracketed
from regent.core.errors import Errors, NotToldError, RegentError
from regent.core.model import (
    CONTROL_ENDPOINT_CONFIG,
    NO_CONTROLLER,
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.control import UpdateMetadataBroker
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.core.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.transport.control.codec import Request
from regent.transport.control.remote_ref import actor_at, ask
from regent.transport.kafka.api import KafkaApiKey
from regent.zk import znodes
from regent.zk.client.operations import (
    AclEntry,
    MultiResult,
    Operation,
    UnreadableZnode,
    Znode,
    ZnodeStat,
)
from regent.zk.client.zookeeper import ZooKeeper

NOT_TOLD: Final = (
    "why brokers ended, znodes that cannot be read, quarantined events, settings in ZooKeeper that"
    " are ignored, and pauses of moves: brokers were asked, and only ZooKeeper has these"
    " (--zookeeper)"
)
"""What a command says that read such a tree."""

_TIMEOUT_S: Final = 3.0
_VIEWS: Final = 3  # brokers are asked at most, until one knows the controller
_FRESH_S: Final = 1.0  # a later reading asks again
_CLIENT_ID: Final = "regent-cli"
_DESCRIBE_CLUSTER: Final = (KafkaApiKey.DESCRIBE_CLUSTER, 0)
_DESCRIBE_CONFIGS: Final = (KafkaApiKey.DESCRIBE_CONFIGS, 4)
_TOPIC, _BROKER = 2, 4  # types of resources
_OF_TOPIC: Final = 1  # the source of a setting
_TOPICS_AT_ONCE: Final = 1_000  # a broker answers within the time
_LOOKED_AT: Final = ("min.insync.replicas", "unclean.leader.election.enable", *LISTS)

T = TypeVar("T")


def read_from_brokers(cluster: Cluster, *, with_settings: bool = False) -> Cluster:
    """Return a cluster that is read from what its brokers answer, instead of from ZooKeeper.

    ``with_settings``: brokers are asked for all settings of topics, not for those alone that tell
    whether a partition is well. That is 30 times as much.
    """
    brokers = cluster.bootstrap

    @contextmanager
    def opened(_address: str, _limit_s: float | None) -> Iterator[ZooKeeper]:
        yield AnsweredTree(brokers, None if with_settings else _LOOKED_AT)

    return Cluster(lambda: ClusterLocation("", None), opened, brokers)


def describe_cluster(bootstrap: Sequence[EndPoint]) -> tuple[EndPoint, DescribeClusterResponse]:
    """Return the first answer and who gave it. Raises ``ClusterNotFoundError``."""
    problems = []
    for broker in bootstrap:
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        try:
            answer = ask_broker(
                broker, _DESCRIBE_CLUSTER, request, DescribeClusterResponse, _TIMEOUT_S
            )
        except NoAnswerError as error:
            problems.append(f"{bracketed(broker.host)}:{broker.port}: {error}")
            continue
        if answer.error_code == Errors.NONE:
            return broker, answer
        problems.append(answer.error_message or Errors(answer.error_code).name)
    raise ClusterNotFoundError(f"no broker of --bootstrap-server answers: {problems[0]}")


class _Part(NamedTuple):
    """Znodes, and the names below each; ``read_at`` is on the monotonic clock."""

    read_at: float = -_FRESH_S
    znodes: Mapping[str, Znode] = {}
    children: Mapping[str, Sequence[str]] = {}

    @classmethod
    def of(cls, found: Mapping[str, Znode]) -> _Part:
        below: dict[str, set[str]] = {path: set() for path in found}
        for path in found:
            parent, _, name = path.rpartition("/")
            below.setdefault(parent, set()).add(name)
        return cls(time.monotonic(), found, {path: sorted(names) for path, names in below.items()})

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.read_at < _FRESH_S


_Answers: TypeAlias = dict[str, DescribeControllerResponse | None]
"""What controllers said; None: nothing."""


class _View(NamedTuple):
    """What a broker knows, and its controller says; ``peer`` is asked for partitions."""

    broker: EndPoint
    peer: str
    metadata: DescribeMetadataResponse
    described: DescribeControllerResponse | None
    is_final: bool
    """Whether it names a controller that says that it is it, or one of Kafka, which does not."""

    @classmethod
    def of(cls, broker: EndPoint, peer: str, answers: _Answers) -> _View:
        """Ask a broker, and its controller unless ``answers`` has what that one said."""
        metadata = _asked(peer, DescribeMetadataRequest(topics=()), DescribeMetadataResponse)
        peers = {row.broker_id: row.control_peer for row in metadata.brokers}
        at_controller = peers.get(metadata.controller_id)
        if at_controller is None:
            is_of_kafka = metadata.controller_id in peers
            return cls(broker, peer, metadata, None, is_final=is_of_kafka)
        if at_controller not in answers:
            answers[at_controller] = None
            with suppress(RegentError):  # who reads this asks the controller too, and says it
                request = DescribeControllerRequest()
                answers[at_controller] = _asked(at_controller, request, DescribeControllerResponse)
        answer = answers[at_controller]
        if answer is not None and answer.error_code is Errors.NONE:
            return cls(broker, at_controller, metadata, answer, is_final=True)
        if answer is not None:  # it was the controller, as brokers believe that know no later one
            metadata = replace(metadata, controller_id=NO_CONTROLLER)
        return cls(broker, peer, metadata, None, is_final=False)

    @property
    def rank(self) -> tuple[int, bool, bool]:
        has_controller = self.metadata.controller_id != NO_CONTROLLER
        return self.metadata.controller_epoch, self.is_final, has_controller


class AnsweredTree(ZooKeeper):
    """What brokers answer; it is asked for again when it is read later. Nothing can be written."""

    tells_all = False

    def __init__(
        self, bootstrap: Sequence[EndPoint], settings: tuple[str, ...] | None = _LOOKED_AT
    ) -> None:
        """``settings`` are those of topics that are asked for; None: all."""
        super().__init__()
        self._bootstrap = bootstrap
        self._settings = settings
        self._answering = bootstrap[0]
        self._peer = ""  # of whom we ask for partitions
        self._described: DescribeControllerResponse | None = None
        self._brokers = _Part()
        self._topics = _Part()

    def get(self, path: str, *, watch: bool = False) -> Znode | None:
        """Return a znode; None: it does not exist, or nobody tells."""
        return self.get_many([path], watch=watch)[0]

    def get_many(self, paths: Sequence[str], *, watch: bool = False) -> list[Znode | None]:
        """Return znodes in the order of ``paths``."""
        del watch
        parts: dict[bool, _Part] = {}
        found: dict[str, Znode | None] = {}
        for path in paths:
            is_of_topic = _is_of_topic(path)
            if is_of_topic not in parts:
                parts[is_of_topic] = self._part(path)
            found[path] = parts[is_of_topic].znodes.get(path)
        names = (znodes.TopicConfigZNode.names(path) for path in paths)
        topics = sorted(name[0] for name in names if name is not None)
        found |= self._configs_of(topics)
        return [found[path] for path in paths]

    def children(self, path: str, *, watch: bool = False) -> list[str] | None:
        """Return the names below a znode."""
        del watch
        names = self._part(path).children.get(path)
        return None if names is None else list(names)

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the names below many znodes."""
        return list(map(self.children, paths))

    def acls_many(self, paths: Sequence[str]) -> list[tuple[AclEntry, ...] | None]:
        """Return nothing: nobody tells them."""
        return [None for _ in paths]

    def sync(self) -> None:
        """Do nothing: brokers know what the controller has told them."""

    def latest_zxid(self) -> int:
        """Return 0: nobody tells it."""
        return 0

    def multi_many(self, batches: Sequence[Sequence[Operation]]) -> list[MultiResult]:
        """Refuse: ``ClusterNotFoundError``."""
        del batches
        raise ClusterNotFoundError("this changes ZooKeeper: name it with --zookeeper")

    # --- inside ---

    def _part(self, path: str) -> _Part:
        if not self._brokers.is_fresh:
            self._brokers = _Part.of(self._read_brokers())
        if not _is_of_topic(path):
            return self._brokers
        if not self._topics.is_fresh:
            self._topics = _Part.of(self._read_topics())
        return self._topics

    def _read_brokers(self) -> Mapping[str, Znode]:
        """Ask brokers who is there, and the controller what it does."""
        view = self._newest_view()
        self._answering, self._peer, metadata, self._described, _ = view
        deleted = () if self._described is None else self._described.topics_to_be_deleted
        return {
            **{path: _znode() for path in znodes.PERSISTENT_PATHS},
            **_brokers_and_controller(metadata, self._described),
            **{znodes.DeleteTopicsTopicZNode.path(topic): _znode() for topic in deleted},
        }

    def _read_topics(self) -> Mapping[str, Znode]:
        """Ask for partitions; the journal notes each question about moves."""
        try:
            metadata = _asked(self._peer, DescribeMetadataRequest(), DescribeMetadataResponse)
            moving: Mapping[TopicPartition, ReplicaAssignment] = {}
            if self._described is not None and self._described.reassigning_partitions:
                question = ListPartitionReassignmentsRequest.of()
                answer = _asked(self._peer, question, ListPartitionReassignmentsResponse)
                moving = answer.assignments
        except RegentError as error:
            raise ClusterNotFoundError(f"the partitions: {error}") from None
        deleted = () if self._described is None else self._described.topics_to_be_deleted
        return {
            znodes.TopicsZNode.PATH: _znode(),
            # Brokers have forgotten their partitions already.
            **{
                znodes.TopicZNode.path(t): _znode(znodes.TopicZNode.encode(None, {}))
                for t in deleted
            },
            **_partitions(metadata, moving),
        }

    def _newest_view(self) -> _View:
        """Return what a broker knows whose controller says that it is it, if one of a few does.

        One that was cut off or has just started knows an old controller, or none.
        """
        problems: list[str] = []
        newest: _View | None = None
        for view in islice(self._views(problems), _VIEWS):
            if newest is None or view.rank > newest.rank:
                newest = view
            if newest.is_final:
                break
        if newest is None:
            why = problems[0] if problems else "there are no brokers"
            raise ClusterNotFoundError(f"no broker tells what it knows: {why}")
        return newest

    def _views(self, problems: list[str]) -> Iterator[_View]:
        """Ask brokers one after the other: those that one with an address knows, then others."""
        answers: _Answers = {}
        known, left = set[int](), list(self._bootstrap)
        while left:
            try:
                answering, cluster = describe_cluster(left)
            except ClusterNotFoundError:
                if len(left) == len(self._bootstrap):
                    raise
                return
            del left[: left.index(answering) + 1]
            for row in cluster.brokers:
                if row.broker_id in known:
                    continue
                known.add(row.broker_id)
                broker = EndPoint("", row.host, row.port)
                try:
                    yield _View.of(broker, _control_peer(broker, row.broker_id), answers)
                except RegentError as error:
                    problems.append(f"broker {row.broker_id}: {error}")

    def _configs_of(self, topics: Sequence[str]) -> Mapping[str, Znode]:
        """Return what topics set of the settings that are asked for."""
        paths = {topic: znodes.TopicConfigZNode.path(topic) for topic in topics}
        found: dict[str, Znode] = {}
        untold: dict[int, Znode] = {}  # by the error: messages may name topics
        for few in batches(topics, _TOPICS_AT_ONCE):
            try:
                results = _describe_configs(self._answering, _TOPIC, few, self._settings)
            except ClusterNotFoundError as error:  # later ones would not be answered either
                return {**dict.fromkeys(paths.values(), _UntoldZnode.because(str(error))), **found}
            for row in results:
                path = paths[row.resource_name]
                if row.error_code == Errors.NONE:
                    found[path] = _config_of(row)
                elif row.error_code != Errors.UNKNOWN_TOPIC_OR_PARTITION:  # it is being deleted
                    why = _UntoldZnode.because(_why(row))
                    found[path] = untold.setdefault(row.error_code, why)
        return found


class _UntoldZnode(UnreadableZnode):
    """The settings of a topic that a broker does not tell."""

    __slots__ = ()

    @property
    def data(self) -> bytes:
        """Raise ``NotToldError``."""
        raise NotToldError(self.reason)


def _why(refused: DescribeConfigsResult) -> str:
    if refused.error_code == Errors.TOPIC_AUTHORIZATION_FAILED:
        return "the user needs the right to DescribeConfigs of them"
    why = refused.error_message or Errors(refused.error_code).name
    return f"a broker does not tell them: {why}"


def _config_of(result: DescribeConfigsResult) -> Znode:
    config = {
        row.name: row.value
        for row in result.configs
        if row.value is not None and row.config_source == _OF_TOPIC
    }
    return _znode(znodes.TopicConfigZNode.encode(config))


def _control_peer(broker: EndPoint, broker_id: int) -> str:
    """Return where a broker answers commands. Raises ``RegentError``."""
    (result,) = _describe_configs(broker, _BROKER, [str(broker_id)], (CONTROL_ENDPOINT_CONFIG,))
    if result.error_code != Errors.NONE:
        why = result.error_message or Errors(result.error_code).name
        if result.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED:
            why += ": the user needs the right to DescribeConfigs of the cluster"
        raise RegentError(f"it does not tell its control port: {why}")
    found = next((row.value for row in result.configs if row.value), None)
    if found is None:
        raise RegentError("it tells no control port: it is one of Kafka, or of an older release")
    return found


def _describe_configs(
    broker: EndPoint, kind: int, names: Sequence[str], keys: tuple[str, ...] | None
) -> tuple[DescribeConfigsResult, ...]:
    resources = tuple(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for name in names
    )
    request = DescribeConfigsRequest(resources=resources)
    try:
        return ask_broker(
            broker, _DESCRIBE_CONFIGS, request, DescribeConfigsResponse, _TIMEOUT_S
        ).results
    except NoAnswerError as error:
        raise ClusterNotFoundError(f"{bracketed(broker.host)}:{broker.port}: {error}") from None


def _asked(peer: str, request: Request, answer: type[T]) -> T:
    with actor_at(peer, client_id=_CLIENT_ID) as actor:
        return ask(actor, request, answer, timeout_s=_TIMEOUT_S)


# --- answers as znodes ---------------------------------------------------------------------------


def _is_of_topic(path: str) -> bool:
    return path.startswith(znodes.TopicsZNode.PATH)


def _znode(data: bytes = b"", czxid: int = 0, version: int = 0) -> Znode:
    return Znode(data, ZnodeStat(czxid, czxid, 0, version, 0))


def _brokers_and_controller(
    metadata: DescribeMetadataResponse, described: DescribeControllerResponse | None
) -> Mapping[str, Znode]:
    software = {} if described is None else dict(described.software)
    found = {}
    for row in metadata.brokers:
        info = _info(row, software.get(row.broker_id, ""))
        path = znodes.BrokerIdZNode.path(row.broker_id)
        found[path] = _znode(znodes.BrokerIdZNode.encode(info), row.broker_epoch)
    epoch = znodes.ControllerEpochZNode.encode(metadata.controller_epoch)
    found[znodes.ControllerEpochZNode.PATH] = _znode(epoch)
    if metadata.controller_id >= 0:
        data = znodes.ControllerZNode.encode(metadata.controller_id, 0)
        found[znodes.ControllerZNode.PATH] = _znode(data)
    return found


def _info(row: UpdateMetadataBroker, software: str) -> BrokerInfo:
    endpoints = (EndPoint(e.listener, e.host, e.port, e.security_protocol) for e in row.endpoints)
    return BrokerInfo(
        row.broker_id,
        tuple(endpoints),
        row.rack,
        row.control_endpoint,
        row.replication_endpoint,
        control_key=row.control_key,
        no_replicas=row.no_replicas,
        node_host=row.node_host,
        release=software.partition(" ")[2] or None,
    )


def _partitions(
    metadata: DescribeMetadataResponse, moving: Mapping[TopicPartition, ReplicaAssignment]
) -> Mapping[str, Znode]:
    found = {}
    assignments: dict[str, dict[int, ReplicaAssignment]] = defaultdict(dict)
    topic_ids = {}
    for row in metadata.partitions:
        partition = TopicPartition(row.topic, row.partition)
        assignments[row.topic][row.partition] = moving.get(
            partition, ReplicaAssignment(row.replicas)
        )
        topic_ids[row.topic] = row.topic_id
        state = LeaderIsrAndControllerEpoch(
            LeaderAndIsr(row.leader, row.isr, row.leader_epoch, row.partition_epoch),
            row.controller_epoch,
        )
        path = znodes.TopicPartitionStateZNode.path(partition)
        found[path] = _znode(
            znodes.TopicPartitionStateZNode.encode(state), version=row.partition_epoch
        )
    for topic, rows in assignments.items():
        found[znodes.TopicZNode.path(topic)] = _znode(
            znodes.TopicZNode.encode(topic_ids[topic], rows)
        )
    return found
