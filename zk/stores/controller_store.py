"""The controller's store: implements ``core.ports.ControllerStore`` over any ``ZooKeeper``.

Mirrors the controller's methods of ``kafka.zk.KafkaZkClient``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress

from regent.core.admin.topic_settings import unclean_leader_election
from regent.core.errors import (
    BadDataError,
    ControllerMovedError,
    RegentError,
    UnreadableError,
)
from regent.core.model import (
    INITIAL_CONTROLLER_EPOCH,
    INITIAL_PARTITION_EPOCH,
    NO_CONTROLLER,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.ports import (
    ControlFacts,
    ControllerEpoch,
    ControllerRegistration,
    PartitionStates,
    TopicAssignment,
    WriteError,
)
from regent.core.protocol.control import ControlHeader, TopicId
from regent.core.topic_validation import topic_name_problem
from regent.zk import znodes
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    UnreadableZnode,
    ZkError,
    Znode,
    ZnodeStat,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import DEFAULT_ENTITY_NAME
from regent.zk.codecs.broker_znodes import is_kraft_controller
from regent.zk.codecs.topic_znodes import decode_coordinated_partitions
from regent.zk.stores.broker_store import ZkBrokerStore
from regent.zk.stores.delegation_token_store import ZkDelegationTokenDeletions
from regent.zk.stores.deleted_topic_store import ZkDeletedTopicStore
from regent.zk.stores.fenced_writes import Outcome, Write, WriteRefused, apply, version_or_error
from regent.zk.stores.request_store import ZkRequestStore
from regent.zk.stores.znode_store import decode_each, partition_state
from regent.zk.znodes import ConfigEntityZNode

log = logging.getLogger(__name__)

_SOMETHING_CHANGED = frozenset(
    {ZkError.NO_NODE, ZkError.BAD_VERSION, ZkError.NODE_EXISTS, ZkError.NOT_EMPTY}
)
_MAX_ZXID = 2**63 - 1
_MIN_INSYNC_REPLICAS = "min.insync.replicas"


class ZkControllerStore(
    ZkBrokerStore, ZkRequestStore, ZkDeletedTopicStore, ZkDelegationTokenDeletions
):
    """Reads and writes of one broker's controller, over its current ZooKeeper session."""

    # --- election ---

    def read_controller(self) -> ControllerRegistration | None:
        """Read ``/controller`` and watch it."""
        node = self._zookeeper.get(znodes.ControllerZNode.PATH, watch=True)
        if node is None:
            return None
        try:
            broker_id = znodes.ControllerZNode.decode(node.data)
            is_of_kraft = is_kraft_controller(node.data)
        except BadDataError:
            broker_id, is_of_kraft = -1, False
        owner = node.stat.ephemeral_owner
        return ControllerRegistration(
            broker_id,
            owner == self._zookeeper.session_id,
            owner != 0,
            is_of_kraft=is_of_kraft,
        )

    def read_controller_epoch(self) -> ControllerEpoch | None:
        """Read ``/controller_epoch``.

        Data that cannot be decoded, and an absent znode, count as the epoch of a new cluster. This
        is safe because an elected controller takes a higher epoch than any it has accepted.
        """
        node = self._zookeeper.get(znodes.ControllerEpochZNode.PATH)
        if node is None:
            return None
        try:
            epoch = znodes.ControllerEpochZNode.decode(node.data)
        except UnreadableError:
            raise
        except BadDataError as error:
            log.error("%s; the next election writes it again", error)
            epoch = INITIAL_CONTROLLER_EPOCH
        return ControllerEpoch(epoch, node.stat.version)

    def check_lists(self) -> None:
        """Raise ``UnreadableError`` when brokers or topics cannot be listed."""
        # Read the node: this needs the same permission as listing its many children.
        for node in self._zookeeper.get_many([znodes.BrokerIdsZNode.PATH, znodes.TopicsZNode.PATH]):
            if isinstance(node, UnreadableZnode):
                raise UnreadableError(node.reason)

    def create_controller_epoch(self) -> None:
        """Create ``/controller_epoch`` unless it exists."""
        data = znodes.ControllerEpochZNode.encode(INITIAL_CONTROLLER_EPOCH)
        apply(
            self._zookeeper,
            [*self._cluster_fence(), Create(znodes.ControllerEpochZNode.PATH, data)],
        )

    def register_controller(
        self,
        broker_id: BrokerId,
        current: ControllerEpoch,
        now_ms: int,
        *,
        accepted_epoch: int = 0,
        replaces: bool = False,
    ) -> ControllerEpoch | None:
        """Create ``/controller``, raise ``/controller_epoch`` and begin a term in one transaction.

        With ``replaces`` the transaction deletes a former ``/controller`` first. It is the one of
        the epoch ``current``: every other election has changed the version of the epoch's znode.
        A refusal may mean that our first attempt succeeded and its answer was lost. Then the node
        belongs to our session, and the epoch is one that only that attempt can have written.
        """
        epoch = max(current.epoch, accepted_epoch) + 1
        term = znodes.ControllerTermZNode.path(f"{self._zookeeper.session_id:x}", epoch)
        fence = self._cluster_fence()
        before = [*fence, *([Delete(znodes.ControllerZNode.PATH, ANY_VERSION)] if replaces else [])]
        operations = [
            *before,
            Create(
                znodes.ControllerZNode.PATH,
                znodes.ControllerZNode.encode(broker_id, now_ms),
                ephemeral=True,
            ),
            SetData(
                znodes.ControllerEpochZNode.PATH,
                znodes.ControllerEpochZNode.encode(epoch),
                current.zk_version,
            ),
            *self._beginning(term),
        ]
        result = apply(self._zookeeper, operations)
        if isinstance(result, Committed):
            won = ControllerEpoch(epoch, _stat(result, len(before) + 1).version)
        elif (first_attempt := self._own_election(broker_id, epoch)) is not None:
            won = first_attempt
        elif result.error in _SOMETHING_CHANGED:
            return None
        else:
            raise RequestRefusedError(
                f"cannot be elected: ZooKeeper refused {operations[result.index].path}:"
                f" {result.error.name}"
            )
        self._term = term
        return won

    def _own_election(self, broker_id: BrokerId, epoch: int) -> ControllerEpoch | None:
        holder, stored = self.read_controller(), self.read_controller_epoch()
        if holder is None or stored is None or not holder.is_own_session:
            return None
        return stored if holder.broker_id == broker_id and stored.epoch == epoch else None

    def _beginning(self, term: str) -> list[Operation]:
        """Return the operations that begin a term and end every other term.

        ZooKeeper refuses them if another term began after the terms were read.
        """
        terms = znodes.ControllerTermsZNode.PATH
        root = terms.rpartition("/")[0]
        found = self._zookeeper.get_many([root, terms])
        has_root, has_terms = (node is not None for node in found)
        former = [*self._below([terms])[terms], terms] if has_terms else []
        return [
            *([] if has_root else [Create(root)]),
            *(Delete(path, ANY_VERSION) for path in former),
            Create(terms),
            Create(term, ephemeral=True),
        ]

    def raise_controller_epoch(
        self, broker_id: BrokerId, epoch: int, epoch_zk_version: int
    ) -> ControllerEpoch:
        """Replace ``/controller_epoch`` by a higher one while ``/controller`` is ours.

        If ``/controller`` is written meanwhile, its version changes and the check fails.
        """
        node = self._zookeeper.get(znodes.ControllerZNode.PATH, watch=True)
        if node is not None and node.stat.ephemeral_owner == self._zookeeper.session_id:
            result = apply(
                self._zookeeper,
                [
                    Check(znodes.ControllerZNode.PATH, node.stat.version),
                    *self._fence(epoch_zk_version),
                    SetData(
                        znodes.ControllerEpochZNode.PATH,
                        znodes.ControllerEpochZNode.encode(epoch),
                        epoch_zk_version,
                    ),
                ],
            )
            if isinstance(result, Committed):
                return ControllerEpoch(epoch, _stat(result, -1).version)
            holder, stored = self.read_controller(), self.read_controller_epoch()
            is_ours = holder is not None and holder.is_own_session
            if is_ours and stored == ControllerEpoch(epoch, epoch_zk_version + 1):
                return stored  # our first attempt succeeded, but its answer was lost
        raise ControllerMovedError(f"broker {broker_id} is not the controller any more")

    def delete_controller(self, epoch_zk_version: int) -> None:
        """Delete ``/controller`` while the epoch is ours."""
        result = apply(
            self._zookeeper,
            [
                Check(znodes.ControllerEpochZNode.PATH, epoch_zk_version),
                Delete(znodes.ControllerZNode.PATH, ANY_VERSION),
            ],
        )
        if isinstance(result, Refused) and result.index == 0:
            raise ControllerMovedError("another controller has been elected")

    # --- topics ---

    def read_topic_names(self) -> tuple[str, ...]:
        """List the topics and watch for changes of the list."""
        names = self._watch_children(znodes.TopicsZNode.PATH)
        problems = {name: topic_name_problem(name) for name in names}
        illegal = [name for name, problem in problems.items() if problem]
        if illegal:  # too long for a request, or not usable as a name of a folder
            log.warning(
                "%d children of %s cannot be topics, the first: %.300r %s",
                len(illegal),
                znodes.TopicsZNode.PATH,
                illegal[0],
                problems[illegal[0]],
            )
        return tuple(name for name in names if not problems[name])

    def write_topics(
        self, topics: Mapping[str, TopicAssignment], epoch_zk_version: int
    ) -> Mapping[str, int | WriteError]:
        """Replace topic znodes, each on condition of its version."""
        writes = [[_topic_write(*item)] for item in topics.items()]
        outcomes = self._write_fenced(writes, epoch_zk_version)
        return dict(zip(topics, map(version_or_error, outcomes), strict=True))

    def assign_topic_ids(
        self, topics: Mapping[str, TopicAssignment], epoch_zk_version: int
    ) -> Mapping[str, int | WriteError]:
        """Replace topic znodes that get an id, and note the id where there are states already."""
        paths = [znodes.TopicPartitionsZNode.path(topic) for topic in topics]
        writes = [
            [_topic_write(topic, assignment), *_note_of_id(path, node, assignment.topic_id)]
            for (topic, assignment), path, node in zip(
                topics.items(), paths, self._zookeeper.get_many(paths), strict=True
            )
        ]
        outcomes = self._write_fenced(writes, epoch_zk_version)
        return dict(zip(topics, map(_version_of_topic, outcomes), strict=True))

    def read_noted_topic_id(self, topic: str) -> TopicId | None:
        """Return the topic id in ``/brokers/topics/T/partitions``; None: it has none.

        Raises ``UnreadableError``.
        """
        node = self._zookeeper.get(znodes.TopicPartitionsZNode.path(topic))
        try:
            return None if node is None else znodes.TopicPartitionsZNode.decode(node.data)
        except UnreadableError:
            raise
        except BadDataError as error:
            log.error("topic %s: the stored topic id cannot be decoded: %s", topic, error)
            return None

    def note_coordinated_partitions(
        self, present: Mapping[str, int], epoch_zk_version: int
    ) -> Mapping[str, int]:
        """Read the numbers that were noted; note those that are missing."""
        paths = [znodes.TopicPartitionsZNode.path(topic) for topic in present]
        noted = dict(present)
        missing: list[Write] = []
        for topic, path, node in zip(present, paths, self._zookeeper.get_many(paths), strict=True):
            if node is None:
                continue  # the number is noted with the first state
            try:
                topic_id = znodes.TopicPartitionsZNode.decode(node.data)
                number = decode_coordinated_partitions(path, node.data)
            except UnreadableError:
                del noted[topic]
                continue
            except BadDataError as error:
                log.error("topic %s: its number of partitions is that of today: %s", topic, error)
                continue
            if number:
                noted[topic] = number
            else:
                data = znodes.TopicPartitionsZNode.encode(topic_id, present[topic])
                missing.append([SetData(path, data, node.stat.version)])
        if missing:
            self._write_fenced(missing, epoch_zk_version)
        return noted

    def read_unclean_leader_election(
        self, topics: Collection[str]
    ) -> Mapping[str, bool | BadDataError]:
        """Read whether each topic allows unclean elections; missing if not overridden."""
        paths = [ConfigEntityZNode.path("topics", topic) for topic in topics]
        nodes = self._zookeeper.get_many(paths)
        found = decode_each(topics, nodes, _unclean_leader_election)
        return {topic: is_allowed for topic, is_allowed in found.items() if is_allowed is not None}

    def read_min_insync_replicas(self, topics: Collection[str]) -> Mapping[str, int]:
        """Read ``min.insync.replicas`` of topics, or else the one of all brokers.

        Missing if neither is set, or the text is not valid.
        """
        *of_topics, of_brokers = self._zookeeper.get_many(_paths_of_configs(topics))
        settings: dict[str, int] = {}
        for topic, of_topic in zip(topics, of_topics, strict=True):
            for node in (of_brokers, of_topic):
                with suppress(BadDataError, ValueError):
                    config = {} if node is None else ConfigEntityZNode.decode(node.data)
                    if _MIN_INSYNC_REPLICAS in config:
                        settings[topic] = int(config[_MIN_INSYNC_REPLICAS])
        return settings

    def read_config_zxids(self, topics: Collection[str]) -> Mapping[str, int]:
        """Read the zxid of the last change of each topic's configuration, or of all brokers'."""
        *of_topics, of_brokers = map(
            _last_zxid, self._zookeeper.get_many(_paths_of_configs(topics))
        )
        return {topic: max(zxid, of_brokers) for topic, zxid in zip(topics, of_topics, strict=True)}

    # --- partition states ---

    def read_partition_states_with_zxids(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[PartitionStates, Mapping[TopicPartition, int]]:
        """Read ``state`` znodes in bulk, with the zxid of the last write of each."""
        paths = list(map(znodes.TopicPartitionStateZNode.path, partitions))
        nodes = self._zookeeper.get_many(paths)
        zxids = {
            topic_partition: node.stat.mzxid
            for topic_partition, node in zip(partitions, nodes, strict=True)
            if node is not None and not isinstance(node, UnreadableZnode)
        }
        return decode_each(partitions, nodes, partition_state), zxids

    def create_partition_states(
        self,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
        topic_ids: Mapping[str, TopicId | None] | None = None,
        coordinated_partitions: Mapping[str, int] | None = None,
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Create the nodes of partitions and their states, parents first."""
        topics = dict.fromkeys(topic_partition.topic for topic_partition in states)
        parents: list[Write] = [
            [
                Create(
                    znodes.TopicPartitionsZNode.path(topic),
                    znodes.TopicPartitionsZNode.encode(
                        (topic_ids or {}).get(topic), (coordinated_partitions or {}).get(topic, 0)
                    ),
                )
            ]
            for topic in topics
        ]
        self._write_fenced(parents, epoch_zk_version)
        state_nodes = {
            topic_partition: Create(
                znodes.TopicPartitionStateZNode.path(topic_partition),
                znodes.TopicPartitionStateZNode.encode(state),
            )
            for topic_partition, state in states.items()
        }
        writes: dict[TopicPartition, Write] = {
            topic_partition: [Create(znodes.TopicPartitionZNode.path(topic_partition)), state_node]
            for topic_partition, state_node in state_nodes.items()
        }
        outcomes = self._write_each(writes, epoch_zk_version)
        half_made = [
            topic_partition
            for topic_partition, outcome in outcomes.items()
            if outcome == WriteRefused(WriteError.NODE_EXISTS, 0)
        ]
        outcomes |= self._write_each(
            {topic_partition: [state_nodes[topic_partition]] for topic_partition in half_made},
            epoch_zk_version,
        )
        return {
            topic_partition: outcome.error
            if isinstance(outcome, WriteRefused)
            else INITIAL_PARTITION_EPOCH
            for topic_partition, outcome in outcomes.items()
        }

    def update_partition_states(
        self,
        states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
        epoch_zk_version: int,
    ) -> Mapping[TopicPartition, int | WriteError]:
        """Replace ``state`` znodes, each on condition of its partition epoch."""
        outcomes = self._write_fenced(partition_state_writes(states), epoch_zk_version)
        return dict(zip(states, map(version_or_error, outcomes), strict=True))

    # --- inside ---

    def _write_each(
        self, writes: Mapping[TopicPartition, Write], epoch_zk_version: int
    ) -> dict[TopicPartition, Outcome]:
        outcomes = self._write_fenced(list(writes.values()), epoch_zk_version)
        return dict(zip(writes, outcomes, strict=True))


def _topic_write(topic: str, assignment: TopicAssignment) -> SetData:
    data = znodes.TopicZNode.encode(assignment.topic_id, assignment.partitions)
    return SetData(znodes.TopicZNode.path(topic), data, assignment.zk_version)


def _note_of_id(path: str, node: Znode | None, topic_id: TopicId | None) -> Write:
    """Return the write that notes an id; nothing if the first state does that, or it cannot."""
    if node is None:
        return []
    try:
        noted = znodes.TopicPartitionsZNode.decode(node.data)
        number = decode_coordinated_partitions(path, node.data)
    except BadDataError:
        return []
    if noted == topic_id:
        return []
    data = znodes.TopicPartitionsZNode.encode(topic_id, number)
    return [SetData(path, data, node.stat.version)]


def _version_of_topic(outcome: Outcome) -> int | WriteError:
    if outcome == WriteRefused(WriteError.NO_NODE, 1):
        return WriteError.BAD_VERSION  # the note is gone, not the topic
    return version_or_error(outcome)


def _paths_of_configs(topics: Collection[str]) -> list[str]:
    """Return the configurations of topics, and last that of all brokers."""
    paths = [ConfigEntityZNode.path("topics", topic) for topic in topics]
    return [*paths, ConfigEntityZNode.path("brokers", DEFAULT_ENTITY_NAME)]


def _last_zxid(node: Znode | None) -> int:
    """Return the zxid of the last write of a znode; as late as possible if it is unreadable."""
    if isinstance(node, UnreadableZnode):
        return _MAX_ZXID
    return 0 if node is None else node.stat.mzxid


def _unclean_leader_election(topic: str, node: Znode) -> bool | None:
    path = ConfigEntityZNode.path("topics", topic)
    return unclean_leader_election(ConfigEntityZNode.decode(node.data, path))


def read_control_facts(
    zookeeper: ZooKeeper, broker_id: BrokerId, header: ControlHeader
) -> ControlFacts:
    """Read what a broker must know of the sender of a control request, mostly in one round trip.

    If that does not confirm ``header``, read once more after a ``sync``: the server may lag behind.
    Raises ``BadDataError`` when a znode cannot be decoded.
    """
    facts = _read_control_facts(zookeeper, broker_id)
    if not facts.confirm(header):
        zookeeper.sync()
        facts = _read_control_facts(zookeeper, broker_id)
    return facts


def _read_control_facts(zookeeper: ZooKeeper, broker_id: BrokerId) -> ControlFacts:
    """Read once. An election writes the epoch: read it before and after ``/controller``."""
    epoch = znodes.ControllerEpochZNode.PATH
    paths = [epoch, znodes.ControllerZNode.PATH, epoch, znodes.BrokerIdZNode.path(broker_id)]
    before, holder, after, own = zookeeper.get_many(paths)
    if after is None:
        return ControlFacts(NO_CONTROLLER, INITIAL_CONTROLLER_EPOCH, UNKNOWN_BROKER_EPOCH)
    is_settled = before is not None and before.stat.mzxid == after.stat.mzxid
    return ControlFacts(
        znodes.ControllerZNode.decode(holder.data) if is_settled and holder else NO_CONTROLLER,
        znodes.ControllerEpochZNode.decode(after.data),
        own.stat.czxid
        if own is not None and own.stat.ephemeral_owner == zookeeper.session_id
        else UNKNOWN_BROKER_EPOCH,
    )


def is_broker_of_kafka(zookeeper: ZooKeeper, broker_id: BrokerId) -> bool:
    """Whether a broker is registered without the control port that this project's brokers have.

    If it is not, that is read once more after a ``sync``: a server that lags behind may not have
    the registration yet, or may have an earlier one. Raises ``RegentError`` for a broker that is
    not registered, ``BadDataError``, and ``SessionExpiredError``.
    """
    path = znodes.BrokerIdZNode.path(broker_id)
    node = zookeeper.get(path)
    if node is None or not znodes.BrokerIdZNode.decode(node.data, broker_id).is_of_kafka:
        zookeeper.sync()
        node = zookeeper.get(path)
    if node is None:
        raise RegentError(f"broker {broker_id} is not registered")
    return znodes.BrokerIdZNode.decode(node.data, broker_id).is_of_kafka


def has_led_partitions(zookeeper: ZooKeeper) -> bool:
    """Whether any partition ever had a leader, by now. It stops at the first.

    Raises ``RegentError``.
    """
    zookeeper.sync()
    for topic in zookeeper.children(znodes.TopicsZNode.PATH) or ():
        if topic_name_problem(topic):
            continue
        numbers = zookeeper.children(znodes.TopicPartitionsZNode.path(topic)) or ()
        found = (TopicPartition(topic, int(number)) for number in numbers if number.isdecimal())
        if any(zookeeper.get(znodes.TopicPartitionStateZNode.path(one)) for one in found):
            return True
    return False


def partition_state_writes(
    states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch],
) -> list[Write]:
    """Return the writes that replace ``state`` znodes, each on condition of its partition epoch."""
    # Partitions that change in the same way share one state.
    shared = {id(state): state for state in states.values()}
    encoded = {i: znodes.TopicPartitionStateZNode.encode(s) for i, s in shared.items()}
    return [
        [
            SetData(
                znodes.TopicPartitionStateZNode.path(topic_partition),
                encoded[id(state)],
                state.leader_and_isr.partition_epoch,
            )
        ]
        for topic_partition, state in states.items()
    ]


def _stat(result: Committed, index: int) -> ZnodeStat:
    stat = result.results[index]
    assert isinstance(stat, ZnodeStat)
    return stat
