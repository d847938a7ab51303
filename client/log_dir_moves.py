"""Moves replicas between the log directories of their brokers (KIP-113), by Kafka's protocol.

Mirrors ``findLogDirMoveStates`` and ``alterReplicaLogDirs`` of ``ReassignPartitionsCommand``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.live_brokers import not_registered
from regent.client.moves import ReassignmentError
from regent.client.partition_files import TopicPartitionReplica
from regent.client.wording import listed
from regent.core.errors import Errors
from regent.core.model import BrokerId, BrokerRegistration, TopicPartition
from regent.core.protocol.messages.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.transport.kafka.api import KafkaApiKey

T = TypeVar("T")

_ALTER: Final = (KafkaApiKey.ALTER_REPLICA_LOG_DIRS, 2)
_DESCRIBE: Final = (KafkaApiKey.DESCRIBE_LOG_DIRS, 4)
_ANSWER_TIMEOUT_S: Final = 30.0
_MAX_BROKERS_AT_ONCE: Final = 32


class LogDirMoveState(Enum):
    """How far a replica is on its way to another log directory."""

    COMPLETE = "complete"
    IN_PROGRESS = "in progress"
    NOT_ACTIVE = "not active"  # in another directory, and not on its way
    MISSING = "missing"  # in no log directory of its broker that works


class LogDirMove(NamedTuple):
    """A replica, the directory where it shall be, and where it and its copy are; None: nowhere."""

    replica: TopicPartitionReplica
    target: str
    current: str | None
    future: str | None

    @property
    def partition(self) -> TopicPartition:
        """The partition of the replica."""
        return self.replica.topic_partition

    @property
    def state(self) -> LogDirMoveState:
        """How far it is."""
        if self.current is None:
            return LogDirMoveState.MISSING
        if self.future is not None:
            return LogDirMoveState.IN_PROGRESS
        is_there = self.current == self.target
        return LogDirMoveState.COMPLETE if is_there else LogDirMoveState.NOT_ACTIVE

    def __str__(self) -> str:
        """Return the sentence that ``kafka-reassign-partitions.sh`` prints."""
        broker_id, partition = self.replica
        match self.state:
            case LogDirMoveState.MISSING:
                return (
                    f"Partition {partition} is not found in any live log dir on broker"
                    f" {broker_id}. There is likely an offline log directory on the broker."
                )
            case LogDirMoveState.IN_PROGRESS if self.future != self.target:
                return (
                    f"Partition {partition} on broker {broker_id} is being moved to log dir"
                    f" {self.future} instead of {self.target}."
                )
            case LogDirMoveState.IN_PROGRESS:
                return f"Reassignment of replica {self.replica} is still in progress."
            case LogDirMoveState.NOT_ACTIVE:
                return (
                    f"Partition {partition} on broker {broker_id} is not being moved from log dir"
                    f" {self.current} to {self.target}."
                )
            case LogDirMoveState.COMPLETE:
                return f"Reassignment of replica {self.replica} completed successfully."

    def as_json(self) -> dict[str, object]:
        """Return its JSON object for ``-o json``."""
        return {
            "broker": self.replica.broker_id,
            "state": self.state.value,
            "log_dir": self.current,
            "future_log_dir": self.future,
            "target_log_dir": self.target,
        }


class _Directories(NamedTuple):
    """The log directories of a broker with their errors, and where its replicas are.

    A replica on its way is in two directories: the key True is for the copy.
    """

    errors: Mapping[str, int]
    places: Mapping[TopicPartition, Mapping[bool, str]]


class LogDirs:
    """The log directories of registered brokers; asked by their Kafka ports."""

    def __init__(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        self._brokers = brokers

    def moves(self, targets: Mapping[TopicPartitionReplica, str]) -> list[LogDirMove]:
        """Return how far each replica is, sorted.

        A replica on a broker that is not registered is missing. Raises ``ReassignmentError`` if a
        broker does not answer.
        """
        return _moves(targets, self._read(targets))

    def check(self, targets: Mapping[TopicPartitionReplica, str]) -> list[LogDirMove]:
        """Return ``moves``; raises ``ReassignmentError`` if a directory cannot get replicas."""
        found = self._read(targets)
        problems = []
        for replica, target in sorted(targets.items()):
            broker_id = replica.broker_id
            errors = found[broker_id].errors if broker_id in found else {}
            if broker_id not in found:
                problem = not_registered(broker_id, self._brokers)
            elif target not in errors:
                problem = (
                    f"LOG_DIR_NOT_FOUND: broker {broker_id} has no log directory {target}; it has"
                    f" {listed(sorted(errors))}"
                )
            elif errors[target] != Errors.NONE:
                problem = f"KAFKA_STORAGE_ERROR: {target} of broker {broker_id} is offline"
            else:
                continue
            problems.append(f"Failed to alter dir for {replica}: {problem}")
        if problems:
            raise ReassignmentError("\n".join(problems))
        return _moves(targets, found)

    def alter(self, targets: Mapping[TopicPartitionReplica, str]) -> set[TopicPartitionReplica]:
        """Begin to move replicas; return those that exist and move, or are there already.

        A broker remembers the directory of a replica that it does not have yet, and creates it
        there. Raises ``ReassignmentError``.
        """
        begun: set[TopicPartitionReplica] = set()
        for broker_id, replicas in sorted(_by_broker(targets).items()):
            answer = self._ask(
                broker_id,
                _ALTER,
                _alter_request({replica: targets[replica] for replica in replicas}),
                AlterReplicaLogDirsResponse,
            )
            for topic in answer.results:
                for row in topic.partitions:
                    partition = TopicPartition(topic.topic_name, row.partition_index)
                    replica = TopicPartitionReplica(broker_id, partition)
                    if row.error_code == Errors.NONE:
                        begun.add(replica)
                    elif row.error_code != Errors.REPLICA_NOT_AVAILABLE:
                        reason = Errors(row.error_code).name
                        raise ReassignmentError(f"Failed to alter dir for {replica}: {reason}")
        return begun

    def _read(self, replicas: Collection[TopicPartitionReplica]) -> dict[BrokerId, _Directories]:
        """Ask the brokers of ``replicas`` that are registered, all at once."""
        wanted = {b: r for b, r in _by_broker(replicas).items() if b in self._brokers}
        if not wanted:
            return {}
        with ThreadPoolExecutor(min(len(wanted), _MAX_BROKERS_AT_ONCE)) as threads:
            found = threads.map(self._describe, wanted.keys(), wanted.values())
            return dict(zip(wanted, found, strict=True))

    def _describe(
        self, broker_id: BrokerId, replicas: Collection[TopicPartitionReplica]
    ) -> _Directories:
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(replicas).items()
        ]
        request = DescribeLogDirsRequest(topics=tuple(topics))
        answer = self._ask(broker_id, _DESCRIBE, request, DescribeLogDirsResponse)
        if answer.error_code != Errors.NONE:
            needs = "; it needs the permission Describe of the cluster"
            is_denied = answer.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
            raise ReassignmentError(
                f"broker {broker_id} does not tell its log directories:"
                f" {Errors(answer.error_code).name}{needs if is_denied else ''}"
            )
        places: dict[TopicPartition, dict[bool, str]] = {}
        for directory in answer.results:
            for topic in directory.topics:
                for log in topic.partitions:
                    partition = TopicPartition(topic.name, log.partition_index)
                    places.setdefault(partition, {})[log.is_future_key] = directory.log_dir
        return _Directories({row.log_dir: row.error_code for row in answer.results}, places)

    def _ask(
        self, broker_id: BrokerId, api: tuple[KafkaApiKey, int], request: object, answer: type[T]
    ) -> T:
        broker = self._brokers.get(broker_id)
        if broker is None:
            raise ReassignmentError(not_registered(broker_id, self._brokers))
        endpoint = SECURITY_OF_COMMAND.endpoint_of(broker.info)
        if endpoint is None:
            raise ReassignmentError(SECURITY_OF_COMMAND.not_listening(broker_id))
        try:
            return ask_broker(endpoint, api, request, answer, _ANSWER_TIMEOUT_S)
        except NoAnswerError as error:
            raise ReassignmentError(
                f"broker {broker_id} at {endpoint.host}:{endpoint.port} does not answer about its"
                f" log directories: {error}"
            ) from None


def _moves(
    targets: Mapping[TopicPartitionReplica, str], found: Mapping[BrokerId, _Directories]
) -> list[LogDirMove]:
    moves = []
    for replica, target in sorted(targets.items()):
        directories = found.get(replica.broker_id)
        places = {} if directories is None else directories.places.get(replica.topic_partition, {})
        moves.append(LogDirMove(replica, target, places.get(False), places.get(True)))
    return moves


def _alter_request(targets: Mapping[TopicPartitionReplica, str]) -> AlterReplicaLogDirsRequest:
    paths: dict[str, list[TopicPartitionReplica]] = {}
    for replica, path in targets.items():
        paths.setdefault(path, []).append(replica)
    rows = []
    for path, replicas in paths.items():
        topics = [
            AlterReplicaLogDirTopic(name=topic, partitions=partitions)
            for topic, partitions in _by_topic(replicas).items()
        ]
        rows.append(AlterReplicaLogDir(path=path, topics=tuple(topics)))
    return AlterReplicaLogDirsRequest(dirs=tuple(rows))


def _by_broker(
    replicas: Collection[TopicPartitionReplica],
) -> dict[BrokerId, list[TopicPartitionReplica]]:
    found: dict[BrokerId, list[TopicPartitionReplica]] = {}
    for replica in replicas:
        found.setdefault(replica.broker_id, []).append(replica)
    return found


def _by_topic(replicas: Collection[TopicPartitionReplica]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for _, (topic, partition) in replicas:
        found.setdefault(topic, []).append(partition)
    return {topic: tuple(partitions) for topic, partitions in found.items()}
