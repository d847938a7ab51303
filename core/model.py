"""The values that all other modules use: partitions, leaderships, assignments, brokers.

All of them are immutable. Names are Kafka's in Python case. Every epoch is an ``int`` and has its
own name: ``controller_epoch`` (it grows with every controller), ``leader_epoch`` (it grows with
every new leadership of a partition), ``partition_epoch`` (the version of a partition's ``state``
znode) and ``broker_epoch`` (the czxid of a broker's registration: it differs after a restart).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

BrokerId: TypeAlias = int

NO_BROKER = -1
NO_LEADER = -1
NO_CONTROLLER = -1
LEADER_DURING_DELETE = -2  # in UpdateMetadata only: forget this partition
NO_EPOCH = -1  # StopReplica: the controller knows no leader epoch, do not check it
EPOCH_DURING_DELETE = -2  # StopReplica: the topic is being deleted, do not check the epoch
EPOCH_OF_LOST_TOPIC = -3  # StopReplica: the topic's znode is gone without a request: keep log
UNKNOWN_BROKER_EPOCH = -1
INITIAL_LEADER_EPOCH = 0
INITIAL_PARTITION_EPOCH = 0
MAX_BROKER_ID = 2**31 - 1  # Kafka's is an int32
MAX_CONTROLLER_EPOCH = 2**31 - 1  # Kafka's is an int32
NO_CONTROLLER_EPOCH_LEFT = (
    f"controller epoch {MAX_CONTROLLER_EPOCH} is the highest possible, and no broker can be elected"
    " after it; brokers go on serving; to mend it: stop all brokers, set /controller_epoch to 0 and"
    " controller.epoch to 0 in control-plane.properties of every log directory, and start them"
)
"""The remedy is right whatever brokers have accepted: no broker knows what the others have."""
HELD_BY_KRAFT = (
    "the KRaft controller {} holds /controller, to migrate the cluster to KRaft, which this version"
    " cannot: to go back, stop it and delete /controller"
)
"""Why no broker is elected; the id of the controller is missing in it."""
MAX_LEADER_EPOCH = 2**31 - 2  # Kafka's is an int32; the epoch after the highest must fit too
NO_LEADER_EPOCH_LEFT = (
    "no leader can be elected after it; set leader_epoch in the state znode to one more than the"
    " last epoch in leader-epoch-checkpoint of its logs; if that is no lower, create the topic anew"
)
INITIAL_CONTROLLER_EPOCH = 0  # what `/controller_epoch` is created with; the first controller has 1


class TopicPartition(NamedTuple):
    """One partition of a topic; sorts by topic, then partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionAndReplica(NamedTuple):
    """One replica: a partition on a broker."""

    topic_partition: TopicPartition
    replica: BrokerId

    def __str__(self) -> str:
        return f"[{self.topic_partition}, replica {self.replica}]"


class LeaderRecoveryState(IntEnum):
    """RECOVERING from an unclean election until the leader reports that it recovered (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class LeaderAndIsr(NamedTuple):
    """The leader and the in-sync replicas of a partition.

    Invariant: ``isr`` is never empty, and ``leader`` is ``NO_LEADER`` or a member of ``isr``.
    ``isr=(3,), leader=NO_LEADER`` means that a clean election can choose 3. It can also choose one
    of the ``eligible_leader_replicas`` (KIP-966): they left the ISR when fewer members than
    ``min.insync.replicas`` remained, so nothing has been committed without them.
    """

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    leader_epoch: int = INITIAL_LEADER_EPOCH
    partition_epoch: int = INITIAL_PARTITION_EPOCH
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    eligible_leader_replicas: tuple[BrokerId, ...] = ()

    def new_leader_and_isr(self, leader: BrokerId, isr: tuple[BrokerId, ...]) -> LeaderAndIsr:
        """Return the next leadership: ``leader_epoch`` grows by one, the partition epoch stays.

        No replica but the leader may be new in ``isr``, so that eligible replicas stay eligible.
        """
        return LeaderAndIsr(
            leader,
            isr,
            self.leader_epoch + 1,
            self.partition_epoch,
            self.leader_recovery_state,
            tuple(r for r in self.eligible_leader_replicas if r not in isr),
        )

    def new_epoch(self) -> LeaderAndIsr:
        """Return the same leadership one leader epoch later."""
        return self.new_leader_and_isr(self.leader, self.isr)

    def with_partition_epoch(self, partition_epoch: int) -> LeaderAndIsr:
        """Return the same leadership as stored at znode version ``partition_epoch``."""
        return self._replace(partition_epoch=partition_epoch)


class LeaderIsrAndControllerEpoch(NamedTuple):
    """A leadership and the epoch of the controller that decided it."""

    leader_and_isr: LeaderAndIsr
    controller_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    """The brokers a partition is assigned to, in preference order (KIP-455).

    ``replicas`` is the full list: the target replicas, then those that are still to be removed.
    """

    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()

    @property
    def target_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas once the reassignment is complete."""
        return tuple(r for r in self.replicas if r not in self.removing_replicas)

    @property
    def origin_replicas(self) -> tuple[BrokerId, ...]:
        """The replicas before the reassignment began."""
        return tuple(r for r in self.replicas if r not in self.adding_replicas)

    @property
    def is_being_reassigned(self) -> bool:
        """Whether replicas are still to be added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)

    def reassign_to(self, target: Iterable[BrokerId]) -> ReplicaAssignment:
        """Return the assignment that begins a reassignment of the origin replicas to ``target``."""
        target = tuple(target)
        origin = self.origin_replicas
        full = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(
            replicas=full,
            adding_replicas=tuple(r for r in full if r not in origin),
            removing_replicas=tuple(r for r in full if r not in target),
        )

    def without_replica(self, replica: BrokerId) -> ReplicaAssignment:
        """Return the assignment without ``replica`` in any of its three lists."""
        return ReplicaAssignment(
            tuple(r for r in self.replicas if r != replica),
            tuple(r for r in self.adding_replicas if r != replica),
            tuple(r for r in self.removing_replicas if r != replica),
        )


NO_ASSIGNMENT = ReplicaAssignment(())


@dataclass(frozen=True, slots=True)
class EndPoint:
    """Where clients reach a broker."""

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def connection_string(self) -> str:
        """The endpoint as a registration has it: ``LISTENER://host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


OUR_SOFTWARE: Final = "regent"
KAFKA_SOFTWARE: Final = "kafka"


def is_our_software(software: str) -> bool:
    """Whether it is a broker of Regent, of any release."""
    return software.partition(" ")[0] == OUR_SOFTWARE


CONTROL_ENDPOINT_CONFIG: Final = "regent.control.endpoint"
"""A setting of a broker that only DescribeConfigs has: its ``control_peer``."""


def control_peer(endpoint: str | None, key: str | None) -> str | None:
    """Return ``tcp://host:port#key``; without a key the endpoint alone."""
    return endpoint if endpoint is None or key is None else f"{endpoint}#{key}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """What a broker registers about itself in ``/brokers/ids/N``.

    ``control_endpoint`` speaks ZeroMQ and ``replication_endpoint`` Kafka (``tcp://host:port``).
    ``control_key`` is the public key of the broker, in hexadecimal. Kafka has no such fields: they
    are None in the registration of a Kafka broker. ``no_replicas``: new replicas are not placed on
    this broker. ``node_host`` names the machine that several brokers share; None: no other broker
    is on the machine of this one. ``release`` is the version of Regent, ``control_version`` that of
    its control requests; None: not known, or a release up to 0.3.0, which registered neither.
    """

    broker_id: BrokerId
    endpoints: tuple[EndPoint, ...]
    rack: str | None = None
    control_endpoint: str | None = None
    replication_endpoint: str | None = None
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    jmx_port: int = -1
    timestamp_ms: int = -1
    control_key: str | None = None
    no_replicas: bool = False
    node_host: str | None = None
    release: str | None = None
    control_version: str | None = None

    @property
    def control_peer(self) -> str | None:
        """The control endpoint with the key of who answers there."""
        return control_peer(self.control_endpoint, self.control_key)

    @property
    def is_of_kafka(self) -> bool:
        """Whether it is a broker of Kafka, which is told everything in Kafka's protocol."""
        return self.control_endpoint is None

    @property
    def software(self) -> str:
        """Whose broker it is: kafka, or regent with its release if that is known."""
        if self.is_of_kafka:
            return KAFKA_SOFTWARE
        return OUR_SOFTWARE if self.release is None else f"{OUR_SOFTWARE} {self.release}"

    @property
    def plaintext_endpoint(self) -> EndPoint | None:
        """The endpoint written as ``host`` and ``port``: the first PLAINTEXT one."""
        return next((e for e in self.endpoints if e.security_protocol == "PLAINTEXT"), None)


class LogEnd(NamedTuple):
    """The newest leader epoch in a log, and its end. Sorts by the epoch, then by the offset."""

    leader_epoch: int
    log_end_offset: int


NO_LOG_END = LogEnd(-1, -1)
"""The log end of a log that is missing, or cannot be used."""


@dataclass(frozen=True, slots=True)
class SuspectReplicas:
    """The replicas of one broker that may have lost committed records.

    A loss of power loses records that were not on the disk yet; a damaged file loses the records
    after the damage. Such a replica is *suspect*: it does not lead while a replica that has all
    records may come back (the aim of KIP-966). ``ends`` has the suspect replicas and the ends of
    their logs. ``sound`` is None if the broker knows all its logs: then every replica that is not
    in ``ends`` is sound. A broker whose log directory is new, or cannot be read, does not know
    which logs were there: then only the replicas in ``sound`` are sound.
    """

    ends: Mapping[TopicPartition, LogEnd] = field(default_factory=dict)
    sound: frozenset[TopicPartition] | None = None

    def __bool__(self) -> bool:
        return bool(self.ends) or self.sound is not None

    def end_of(self, topic_partition: TopicPartition) -> LogEnd | None:
        """Return the end of a suspect replica's log; None: the replica is sound."""
        end = self.ends.get(topic_partition)
        is_unknown = self.sound is not None and topic_partition not in self.sound
        return NO_LOG_END if end is None and is_unknown else end


NO_SUSPECTS = SuspectReplicas()


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration: what it registered, its broker epoch, its suspect replicas."""

    info: BrokerInfo
    broker_epoch: int  # czxid of `/brokers/ids/N`
    suspects: SuspectReplicas = NO_SUSPECTS

    def is_same_process(self, other: BrokerRegistration) -> bool:
        """Whether one process registered both: in each session it does so with its first time."""
        return self.info.timestamp_ms == other.info.timestamp_ms
