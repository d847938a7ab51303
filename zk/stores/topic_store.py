"""Bulk reads and writes of topics in ZooKeeper; no write is fenced, no read is watched.

Mirrors ``kafka.zk.AdminZkClient`` and the topics' part of ``KafkaZkClient``. ``ZkTopicStore``
implements ``core.admin.admin_requests.TopicStore``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from regent.core.admin.admin_requests import NewTopic
from regent.core.admin.topic_settings import is_protected
from regent.core.errors import ApiError, BadDataError, Errors, RegentError
from regent.core.model import ReplicaAssignment
from regent.core.ports import TopicAssignment
from regent.core.topic_validation import growth_problem, protected_topic, unknown_topic
from regent.zk.client.operations import (
    ANY_VERSION,
    MAX_ATTEMPTS,
    Check,
    ConflictError,
    Create,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.requests import MAX_REQUEST_BYTES
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.stores.fenced_writes import (
    BYTES_BESIDE_DATA,
    Write,
    WriteRefused,
    change_znodes,
    write_unfenced,
)
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import (
    ConfigEntityZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    TopicsZNode,
    TopicZNode,
)

_MAX_DATA_BYTES = MAX_REQUEST_BYTES - 4096  # the rest is for paths and headers

_DONE = ApiError(Errors.NONE)


class ZkTopicStore(ZnodeStore):
    """``/brokers/topics`` and ``/admin/delete_topics`` over one ZooKeeper session.

    Every call raises ``SessionExpiredError`` when the session is over.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        super().__init__(zookeeper)
        self.configs = ZkConfigStore(zookeeper)

    # --- reads ---

    def sync(self) -> None:
        """Make later reads see every change that was acknowledged before this call."""
        self._zookeeper.sync()

    def check_cluster(self) -> None:
        """Raise ``NoClusterError`` if no broker has ever started."""
        self.read_topic_names()

    def read_topic_names(self) -> list[str]:
        """List the topics, sorted. Raises ``NoClusterError``."""
        return self._children(TopicsZNode.PATH)

    def read_topics_being_deleted(self) -> set[str]:
        """List the topics that are marked for deletion."""
        return set(self._zookeeper.children(DeleteTopicsZNode.PATH) or ())

    # --- new topics ---

    def create_topics(self, topics: Mapping[str, NewTopic]) -> dict[str, ApiError]:
        """Create topics, each with its configuration or not at all.

        TOPIC_ALREADY_EXISTS for a topic that exists with another topic id; one that exists with the
        id given here was created by an attempt whose answer was lost. INVALID_PARTITIONS for one
        that is too large for a znode. Raises ``NoClusterError`` and ``ConflictError``.
        """
        results: dict[str, ApiError] = {}
        encoded: dict[str, tuple[bytes, bytes]] = {}
        for topic, new in topics.items():
            config, data = ConfigEntityZNode.encode(new.config), _encode(new)
            problem = _size_problem(topic, len(new.partitions), len(config) + len(data))
            if problem is None:
                encoded[topic] = config, data
            else:
                results[topic] = problem
        for _ in range(MAX_ATTEMPTS):
            undecided = [topic for topic in topics if topic not in results]
            results |= self._existing(undecided, topics)
            undecided = [topic for topic in undecided if topic not in results]
            outcomes = write_unfenced(self._zookeeper, self._writes(undecided, encoded))
            results |= {
                topic: _DONE
                for topic, outcome in zip(undecided, outcomes, strict=True)
                if not isinstance(outcome, WriteRefused)
            }
            if len(results) == len(topics):
                return {topic: results[topic] for topic in topics}
        raise self._conflict(next(topic for topic in topics if topic not in results))

    def _existing(
        self, topics: Collection[str], wanted: Mapping[str, NewTopic]
    ) -> dict[str, ApiError]:
        results = {}
        for topic, found in self.read_topics(topics).items():
            is_ours = isinstance(found, TopicAssignment) and (
                found.topic_id == wanted[topic].topic_id
            )
            already_exists = ApiError(Errors.TOPIC_ALREADY_EXISTS, f"topic {topic} already exists")
            results[topic] = _DONE if is_ours else already_exists
        return results

    def _writes(
        self, topics: Collection[str], encoded: Mapping[str, tuple[bytes, bytes]]
    ) -> list[Write]:
        """Return the writes that create topics: configuration first, as Kafka's own tools do."""
        config_paths = [ConfigEntityZNode.path("topics", topic) for topic in topics]
        leftovers: list[Znode | None] = self._zookeeper.get_many(config_paths)
        writes: list[Write] = []
        for topic, path, leftover in zip(topics, config_paths, leftovers, strict=True):
            config, data = encoded[topic]
            set_config = (
                Create(path, config) if leftover is None else (SetData(path, config, ANY_VERSION))
            )
            writes.append([set_config, Create(TopicZNode.path(topic), data)])
        return writes

    # --- more partitions ---

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> dict[str, ApiError]:
        """Add partitions after the last partition of each topic; the topic id stays.

        Each write is conditional on the version that was read, so it cannot undo a controller's.
        """
        results = {}
        for topic, partitions in added.items():
            try:
                results[topic] = self._add_partitions(topic, partitions)
            except (BadDataError, ConflictError) as error:
                results[topic] = ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error))
        return results

    def _add_partitions(self, topic: str, added: Mapping[int, ReplicaAssignment]) -> ApiError:
        path, first = TopicZNode.path(topic), min(added)

        def decide() -> tuple[ApiError, list[Operation]]:
            current = self.read_topics([topic]).get(topic)
            if current is None:
                return unknown_topic(topic), []
            if isinstance(current, BadDataError):
                raise current
            wanted = {p: a for p, a in current.partitions.items() if p < first} | dict(added)
            if wanted == current.partitions:  # our first attempt succeeded, but its answer was lost
                return _DONE, []
            problem = growth_problem(
                topic, current, is_being_deleted=topic in self.read_topics_being_deleted()
            )
            if problem is None and len(current.partitions) != first:
                message = f"topic {topic} got other partitions from another client at the same time"
                problem = ApiError(Errors.INVALID_PARTITIONS, message)
            data = TopicZNode.encode(current.topic_id, wanted)
            problem = problem or _size_problem(topic, len(wanted), len(data))
            if problem is not None:
                return problem, []
            return _DONE, [SetData(path, data, current.zk_version)]

        try:
            return change_znodes(self._zookeeper, decide, f"topic {topic} keeps changing")
        except ConflictError:
            raise self._conflict(topic) from None

    # --- deletion ---

    def mark_for_deletion(self, topics: Collection[str]) -> dict[str, ApiError]:
        """Ask the controller to delete topics, as Kafka's tool does; only those that exist.

        A topic that is already marked is not an error, but the message says so: after a lost answer
        our own first attempt may have marked it. A protected topic is refused. The write is
        conditional on the settings of the topic, so that nothing is marked after it was protected.
        Raises ``NoClusterError`` and ``ConflictError``.
        """
        self._children(DeleteTopicsZNode.PATH)
        results: dict[str, ApiError] = {}
        for _ in range(MAX_ATTEMPTS):
            undecided = [topic for topic in dict.fromkeys(topics) if topic not in results]
            writes = self._marks(undecided, results)
            outcomes = write_unfenced(self._zookeeper, list(writes.values()))
            refused = []
            for topic, outcome in zip(writes, outcomes, strict=True):
                if isinstance(outcome, WriteRefused):
                    refused.append(topic)
                else:
                    results[topic] = _DONE
            results |= self._why_not_marked(refused)
            if len(results) == len(set(topics)):
                return {topic: results[topic] for topic in topics}
        raise self._conflict(next(topic for topic in topics if topic not in results))

    def _marks(
        self, topics: Collection[str], results: dict[str, ApiError]
    ) -> dict[str, list[Operation]]:
        """Return the writes that mark topics; the protected ones become results.

        A topic without a node of settings gets an empty one: ZooKeeper cannot check an absence.
        """
        paths = [ConfigEntityZNode.path("topics", topic) for topic in topics]
        nodes: list[Znode | None] = self._zookeeper.get_many(paths)
        writes: dict[str, list[Operation]] = {}
        for topic, path, node in zip(topics, paths, nodes, strict=True):
            if node is not None and _protects(node):
                results[topic] = ApiError(*protected_topic(topic))
                continue
            unchanged: list[Operation] = [Create(path, ConfigEntityZNode.encode({}))]
            if isinstance(node, UnreadableZnode):
                unchanged = []
            elif node is not None:
                unchanged = [Check(path, node.stat.version)]
            mark = Create(DeleteTopicsTopicZNode.path(topic))
            writes[topic] = [Check(TopicZNode.path(topic), ANY_VERSION), *unchanged, mark]
        return writes

    def _why_not_marked(self, topics: Collection[str]) -> dict[str, ApiError]:
        """Return the results of refused writes; none for a topic whose settings have changed."""
        if not topics:
            return {}
        found: list[Znode | None] = self._zookeeper.get_many(
            [*map(TopicZNode.path, topics), *map(DeleteTopicsTopicZNode.path, topics)]
        )
        results = {}
        for topic, node, mark in zip(topics, found, found[len(topics) :], strict=False):
            if node is None:
                results[topic] = ApiError(*unknown_topic(topic))
            elif mark is not None:
                message = f"topic {topic} is already marked for deletion"
                results[topic] = ApiError(Errors.NONE, message)
        return results

    def _conflict(self, topic: str) -> RegentError:
        self.read_topic_names()  # raises NoClusterError if no attempt could have succeeded
        return ConflictError(f"topic {topic}: other clients keep changing it; try again")


def _encode(new: NewTopic) -> bytes:
    return TopicZNode.encode(new.topic_id, new.partitions)


def _size_problem(topic: str, partitions: int, size: int) -> ApiError | None:
    if size + 2 * BYTES_BESIDE_DATA <= _MAX_DATA_BYTES:
        return None
    return ApiError(
        Errors.INVALID_PARTITIONS,
        f"topic {topic}: {partitions} partitions take {size} bytes in ZooKeeper, which accepts"
        f" {_MAX_DATA_BYTES}: use fewer partitions or replicas",
    )


def _protects(node: Znode) -> bool:
    """Whether the settings of a topic protect it; those that cannot be read do not."""
    try:
        return is_protected(ConfigEntityZNode.decode(node.data))
    except BadDataError:
        return False
