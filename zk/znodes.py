"""Every znode of a cluster: its path, its data, who writes it, what fences that, its ACL in Kafka.

The rows are named as in Kafka's ``ZkData.scala``. What is below ``/regent``, and
``/brokers/suspect_replicas``, Kafka does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Flag, auto
from functools import partial
from typing import Concatenate, Generic, ParamSpec, TypeVar

from regent.core.model import BrokerId, TopicPartition
from regent.zk.client.login import acl_of
from regent.zk.codecs import acl_znodes as acls
from regent.zk.codecs import admin_znodes as admin
from regent.zk.codecs import broker_znodes as brokers
from regent.zk.codecs import delegation_token_znodes as tokens
from regent.zk.codecs import topic_znodes as topics
from regent.zk.codecs.broker_znodes import SuspectZnodes
from regent.zk.codecs.json_fields import EMPTY, Codec


class WrittenBy(Flag):
    """Who creates, changes and deletes a znode."""

    CONTROLLER = auto()  # the active one
    BROKER = auto()  # any broker
    LEADER = auto()  # of the partition, with ``isr_change_protocol = "zookeeper"``
    ADMIN = auto()  # a command, a tool, or a broker that does what a client has asked
    CONSUMER = auto()  # a consumer of Kafka 0.8, or a broker for it


class FencedBy(Flag):
    """What makes a late write of a znode fail; only the controller's writes check the epoch."""

    NONE = 0  # it does no harm: it creates what is missing, or the last write counts
    EPOCH = auto()  # checks of ``/controller_epoch`` and of the controller's term
    CLUSTER = auto()  # a check of ``/cluster/id``
    SESSION = auto()  # the znode is ephemeral: it ends with the session that created it
    VERSION = auto()  # the version that was read


CONTROLLER, BROKER, LEADER = WrittenBy.CONTROLLER, WrittenBy.BROKER, WrittenBy.LEADER
ADMIN, CONSUMER = WrittenBy.ADMIN, WrittenBy.CONSUMER
NONE, EPOCH, CLUSTER = FencedBy.NONE, FencedBy.EPOCH, FencedBy.CLUSTER
SESSION, VERSION = FencedBy.SESSION, FencedBy.VERSION

Encode = TypeVar("Encode")
P = ParamSpec("P")
T = TypeVar("T")
_NAME = re.compile("<[a-z]+>")


class ZNode(Generic[Encode, P, T]):
    """One row: the znodes of a path, in which words in angle brackets stand for names."""

    def __init__(
        self,
        pattern: str,
        codec: Codec[Encode, P, T],
        writer: WrittenBy,
        fence: FencedBy,
    ) -> None:
        self.PATH = pattern
        """The path with its names in angle brackets, as errors name it."""
        self.PATH_PREFIX = pattern.partition("<")[0]
        """The path up to the first name; that of a notification without its number."""
        self.encode = codec.encode
        self.decode: Callable[Concatenate[bytes, P], T] = partial(codec.decode, pattern)
        """Decodes the data of a znode; raises ``BadDataError``."""
        self.writer = writer
        self.fence = fence
        self.acl = acl_of(pattern)
        self._format = _NAME.sub("%s", pattern)
        self._regex = re.compile(_NAME.sub("([^/]+)", pattern))

    def path(self, *names: str | int | TopicPartition) -> str:
        """Return the path with these names; a partition stands for its topic and its number."""
        return self._format % (names[0] if len(names) == 1 else names)

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return the names in a path of this row; None for any other path."""
        match = self._regex.fullmatch(path)
        return None if match is None else match.groups()


# ---- the cluster and its controller -------------------------------------------------------------

ClusterZNode = ZNode("/cluster", EMPTY, BROKER, NONE)
ClusterIdZNode = ZNode("/cluster/id", brokers.CLUSTER_ID, BROKER, NONE)
"""The 22-character id that the first broker created."""

ControllerZNode = ZNode("/controller", brokers.CONTROLLER, BROKER | ADMIN, CLUSTER | SESSION)
"""The id of the active controller. Candidates create it; they and commands may delete it."""

ControllerEpochZNode = ZNode("/controller_epoch", brokers.EPOCH, BROKER, CLUSTER | VERSION)
"""The number of the latest controller election, as decimal text."""

RegentZNode = ZNode("/regent", EMPTY, BROKER, NONE)
ControllerTermsZNode = ZNode("/regent/controller_terms", EMPTY, BROKER, CLUSTER | VERSION)
ControllerTermZNode = ZNode(
    "/regent/controller_terms/<session>-<epoch>", EMPTY, BROKER, CLUSTER | VERSION | SESSION
)
"""The term of a controller.

It fences a former controller that was paused and kept its session while an operator deleted
``/controller``. The version of ``/controller_epoch`` is not enough: if that znode is deleted too,
its version starts at 0 again, and after some elections it equals the version that the former
controller checks. Every election creates a path that is never used again, because the epochs of a
session only grow, and deletes the paths of all earlier elections.
"""

ControllerFailuresZNode = ZNode(
    "/regent/controller_failures", brokers.FAILURES, CONTROLLER | ADMIN, EPOCH | VERSION
)
"""The failures that ended controllers."""

MovesPauseZNode = ZNode("/regent/moves_pause", admin.MOVES_PAUSE, ADMIN, VERSION)
"""It exists while an operator has paused all moves of partitions."""

ProgressMarkZNode = ZNode("/regent/progress_mark", EMPTY, BROKER, NONE)
"""It is written soon after anything else is; see ``zk.stores.cluster_identity``."""

BrokerEndsZNode = ZNode("/regent/broker_ends", EMPTY, BROKER, NONE)
BrokerEndZNode = ZNode("/regent/broker_ends/<id>", brokers.END, BROKER, NONE)
"""When and why a broker ended. It writes this last, and deletes it when it has registered again."""

DeletedTopicsZNode = ZNode("/regent/deleted_topics", EMPTY, CONTROLLER, EPOCH)
DeletedTopicZNode = ZNode("/regent/deleted_topics/<id>", topics.DELETED_TOPIC, CONTROLLER, EPOCH)
"""What is needed to bring the deleted topic with an id back, while brokers keep its logs."""

# ---- brokers ------------------------------------------------------------------------------------

BrokersZNode = ZNode("/brokers", EMPTY, BROKER, NONE)
BrokerIdsZNode = ZNode("/brokers/ids", EMPTY, BROKER, NONE)
BrokerIdZNode = ZNode("/brokers/ids/<id>", brokers.REGISTRATION, BROKER, CLUSTER | SESSION)
"""The registration of a live broker. Its czxid is the broker epoch."""

SuspectReplicasZNode = ZNode("/brokers/suspect_replicas", EMPTY, BROKER, NONE)
SuspectReplicasPartZNode = ZNode(
    "/brokers/suspect_replicas/<broker>-<session>-<generation>-<number>",
    brokers.SUSPECT_REPLICAS,
    BROKER,
    SESSION,
)
"""A part of the list of a broker's suspect replicas."""

BrokerSequenceIdZNode = ZNode("/brokers/seqid", EMPTY, BROKER, NONE)
"""For Kafka's generated broker ids, which Regent does not have."""

ProducerIdBlockZNode = ZNode("/latest_producer_id_block", admin.PRODUCER_ID_BLOCK, BROKER, VERSION)
"""The last allocated block of producer ids (KIP-730)."""

# ---- topics -------------------------------------------------------------------------------------

TopicsZNode = ZNode("/brokers/topics", EMPTY, BROKER, NONE)
TopicZNode = ZNode("/brokers/topics/<topic>", topics.TOPIC, ADMIN | CONTROLLER, EPOCH | VERSION)
"""The assignment of a topic's partitions (KIP-455) and its id (KIP-516)."""

TopicPartitionsZNode = ZNode(
    "/brokers/topics/<topic>/partitions", topics.TOPIC_NOTES, CONTROLLER, EPOCH
)
"""Here the data is the topic id; in Kafka it is empty.

A tool that rewrites the topic's znode without the topic id does not change this znode, which is
deleted with the topic. An internal topic also has here the number of partitions with which it
began: the keys of its records are spread over these for ever.
"""

TopicPartitionZNode = ZNode(
    "/brokers/topics/<topic>/partitions/<partition>", EMPTY, CONTROLLER, EPOCH
)
TopicPartitionStateZNode = ZNode(
    "/brokers/topics/<topic>/partitions/<partition>/state",
    topics.STATE,
    CONTROLLER | LEADER,
    EPOCH | VERSION,
)
"""The leader and the ISR of a partition. Its version is the partition epoch."""

# ---- configurations -----------------------------------------------------------------------------

ConfigZNode = ZNode("/config", EMPTY, BROKER, NONE)
TopicConfigsZNode = ZNode("/config/topics", EMPTY, BROKER, NONE)
TopicConfigZNode = ZNode("/config/topics/<topic>", admin.CONFIG, ADMIN | CONTROLLER, VERSION)
"""Commands and clients change it; the controller deletes it with the topic."""

BrokerConfigsZNode = ZNode("/config/brokers", EMPTY, BROKER, NONE)
BrokerConfigZNode = ZNode("/config/brokers/<id>", admin.CONFIG, ADMIN, VERSION)
UserConfigsZNode = ZNode("/config/users", EMPTY, BROKER, NONE)
UserConfigZNode = ZNode("/config/users/<user>", admin.CONFIG, ADMIN, VERSION)
ClientsOfUserZNode = ZNode("/config/users/<user>/clients", EMPTY, ADMIN, NONE)
ClientOfUserConfigZNode = ZNode(
    "/config/users/<user>/clients/<client>", admin.CONFIG, ADMIN, VERSION
)
ClientConfigsZNode = ZNode("/config/clients", EMPTY, BROKER, NONE)
ClientConfigZNode = ZNode("/config/clients/<client>", admin.CONFIG, ADMIN, VERSION)
IpConfigsZNode = ZNode("/config/ips", EMPTY, BROKER, NONE)
IpConfigZNode = ZNode("/config/ips/<address>", admin.CONFIG, ADMIN, VERSION)

ConfigEntityChangeNotificationZNode = ZNode("/config/changes", EMPTY, BROKER, NONE)
ConfigEntityChangeNotificationSequenceZNode = ZNode(
    "/config/changes/config_change_<n>", admin.CONFIG_CHANGE, ADMIN | BROKER, NONE
)
"""An entity whose configuration changed. Brokers delete it later."""

# ---- ACLs: only with an authorizer --------------------------------------------------------------

AclsZNode = ZNode("/kafka-acl", EMPTY, BROKER, NONE)
ResourceTypeZNode = ZNode("/kafka-acl/<type>", EMPTY, BROKER, NONE)
ResourceZNode = ZNode("/kafka-acl/<type>/<name>", acls.ENTRIES, ADMIN, VERSION)
"""The ACLs of a resource, or of all resources of a type (``*``)."""

AclChangesZNode = ZNode("/kafka-acl-changes", EMPTY, BROKER, NONE)
AclChangeNotificationSequenceZNode = ZNode(
    "/kafka-acl-changes/acl_changes_<n>", acls.CHANGE, ADMIN | BROKER, NONE
)
"""A resource whose ACLs changed. Brokers delete it later."""

ExtendedAclsZNode = ZNode("/kafka-acl-extended", EMPTY, BROKER, NONE)
PrefixedAclsZNode = ZNode("/kafka-acl-extended/prefixed", EMPTY, BROKER, NONE)
PrefixedTypeZNode = ZNode("/kafka-acl-extended/prefixed/<type>", EMPTY, BROKER, NONE)
PrefixedResourceZNode = ZNode(
    "/kafka-acl-extended/prefixed/<type>/<name>", acls.ENTRIES, ADMIN, VERSION
)
"""The ACLs of the resources whose names begin with a prefix."""

ExtendedAclChangesZNode = ZNode("/kafka-acl-extended-changes", EMPTY, BROKER, NONE)
ExtendedAclChangeNotificationSequenceZNode = ZNode(
    "/kafka-acl-extended-changes/acl_changes_<n>", acls.EXTENDED_CHANGE, ADMIN | BROKER, NONE
)
"""A prefix whose ACLs changed. Brokers delete it later."""

# ---- requests and notifications -----------------------------------------------------------------

AdminZNode = ZNode("/admin", EMPTY, BROKER, NONE)
DeleteTopicsZNode = ZNode("/admin/delete_topics", EMPTY, BROKER, NONE)
DeleteTopicsTopicZNode = ZNode("/admin/delete_topics/<topic>", EMPTY, ADMIN | CONTROLLER, EPOCH)
"""A request to delete a topic. The controller deletes it."""

ReassignPartitionsZNode = ZNode(
    "/admin/reassign_partitions", admin.REASSIGNMENTS, ADMIN | CONTROLLER, EPOCH | VERSION
)
"""The target replicas of partitions to move."""

PreferredReplicaElectionZNode = ZNode(
    "/admin/preferred_replica_election", admin.PARTITIONS, ADMIN | CONTROLLER, EPOCH
)
"""Partitions for a preferred leader election."""

IsrChangeNotificationZNode = ZNode("/isr_change_notification", EMPTY, BROKER, NONE)
IsrChangeNotificationSequenceZNode = ZNode(
    "/isr_change_notification/isr_change_<n>", admin.PARTITIONS, LEADER | CONTROLLER, EPOCH
)
"""Partitions whose ISR leaders changed. The controller deletes it."""

LogDirEventNotificationZNode = ZNode("/log_dir_event_notification", EMPTY, BROKER, NONE)
LogDirEventNotificationSequenceZNode = ZNode(
    "/log_dir_event_notification/log_dir_event_<n>", admin.LOG_DIR_EVENT, BROKER | CONTROLLER, EPOCH
)
"""A broker of which a log directory failed. The controller deletes it."""

# ---- delegation tokens --------------------------------------------------------------------------

DelegationTokenAuthZNode = ZNode("/delegation_token", EMPTY, BROKER, NONE)
DelegationTokensZNode = ZNode("/delegation_token/tokens", tokens.SECRET_CHECK, BROKER, VERSION)
"""It has a check of the secret of the broker that started last; in Kafka it is empty."""

DelegationTokenInfoZNode = ZNode(
    "/delegation_token/tokens/<id>", tokens.TOKEN, BROKER | CONTROLLER, EPOCH | VERSION
)
"""A delegation token. Brokers write it for clients; the controller deletes it when it expired."""

DelegationTokenChangeNotificationZNode = ZNode(
    "/delegation_token/token_changes", EMPTY, BROKER, NONE
)
DelegationTokenChangeNotificationSequenceZNode = ZNode(
    "/delegation_token/token_changes/token_change_<n>",
    tokens.TOKEN_CHANGE,
    BROKER | CONTROLLER,
    EPOCH,
)
"""The id of a token that was written or deleted. Brokers delete it later."""

# ---- consumers of Kafka 0.8 ---------------------------------------------------------------------

ConsumersZNode = ZNode("/consumers", EMPTY, BROKER, NONE)
ConsumerGroupZNode = ZNode("/consumers/<group>", EMPTY, CONSUMER, NONE)
ConsumerGroupOffsetsZNode = ZNode("/consumers/<group>/offsets", EMPTY, CONSUMER, NONE)
ConsumerTopicOffsetsZNode = ZNode("/consumers/<group>/offsets/<topic>", EMPTY, CONSUMER, NONE)
ConsumerOffsetZNode = ZNode(
    "/consumers/<group>/offsets/<topic>/<partition>", admin.POSITION, CONSUMER, NONE
)
"""The position of a group in a partition, as decimal text."""

ZNODES = tuple(row for row in list(globals().values()) if isinstance(row, ZNode))
"""All rows."""

PERSISTENT_PATHS = (
    *(ConsumersZNode.PATH, BrokerIdsZNode.PATH, TopicsZNode.PATH),
    *(ConfigEntityChangeNotificationZNode.PATH, DeleteTopicsZNode.PATH, BrokerSequenceIdZNode.PATH),
    *(IsrChangeNotificationZNode.PATH, ProducerIdBlockZNode.PATH),
    *(LogDirEventNotificationZNode.PATH, TopicConfigsZNode.PATH, ClientConfigsZNode.PATH),
    *(UserConfigsZNode.PATH, BrokerConfigsZNode.PATH, IpConfigsZNode.PATH),
)
"""Every starting broker creates these empty, with their parents, if they are missing."""

TOKEN_PATHS = (
    *(DelegationTokenAuthZNode.PATH, DelegationTokenChangeNotificationZNode.PATH),
    DelegationTokensZNode.PATH,
)
"""Every broker that has the secret of delegation tokens creates these too, when it starts."""

ConfigEntityZNode = ZNode("/config/<type>/<name>", admin.CONFIG, ADMIN | CONTROLLER, VERSION)
"""Any of the configurations above."""


def suspect_paths(listed: SuspectZnodes, broker_id: BrokerId, session_id: int) -> list[str]:
    """Return the paths of the znodes that a registration of this session names."""
    names = broker_id, f"{session_id:x}", listed.generation
    return [SuspectReplicasPartZNode.path(*names, number) for number in range(listed.count)]


def partition_of_state(path: str) -> TopicPartition | None:
    """Return the partition of a path of a state; None for any other path."""
    names = TopicPartitionStateZNode.names(path)
    return TopicPartition(names[0], int(names[1])) if names and names[1].isdecimal() else None
