"""The znodes that a topic deletion reads and removes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from regent.core.errors import BadDataError
from regent.core.ports import IsKept
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    ConnectionLossError,
    Delete,
    UnreadableZnode,
    Znode,
)
from regent.zk.codecs.admin_znodes import (
    ConfigEntityZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
)
from regent.zk.codecs.znodes import TopicZNode
from regent.zk.stores.fenced_writes import Write, WriteRefused
from regent.zk.stores.watching_store import WatchingStore

# Another client may create nodes below a topic while it is deleted. The deletion gives up after
# this many attempts.
MAX_ROUNDS = 5


class ZkTopicDeletionStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about the deletion of topics."""

    def read_topics_to_delete(self) -> Mapping[str, int]:
        """List the topics queued for deletion, and watch for new ones."""
        topics = self._watch_requests(DeleteTopicsZNode.PATH)
        requests = self._read([DeleteTopicsTopicZNode.path(t) for t in topics])
        return {
            topic: request.stat.czxid
            for topic, request in zip(topics, requests.values(), strict=True)
            if request is not None and not isinstance(request, UnreadableZnode)
        }

    def delete_topic_deletions(self, topics: Collection[str], epoch_zk_version: int) -> None:
        """Delete the requests to delete these topics."""
        requests = [[Delete(DeleteTopicsTopicZNode.path(topic), ANY_VERSION)] for topic in topics]
        self._write_fenced(requests, epoch_zk_version)

    def delete_topics(
        self, topics: Mapping[str, int], epoch_zk_version: int, is_kept: IsKept | None = None
    ) -> frozenset[str]:
        """Delete topics, their configuration and the request to delete them.

        After a refused write, or a lost answer, the nodes are read again: the write may have been
        applied, and a client that waited for the deletion may have created the topic again.
        ``is_kept`` is asked about what was read, and every write checks that this is still there.
        """
        remaining = dict(topics)
        for _ in range(MAX_ROUNDS):
            writes = self._writes(remaining, is_kept)
            try:
                refused = self._refused(writes, epoch_zk_version)
            except ConnectionLossError:
                continue
            remaining = {t: topics[t] for t in remaining if t in refused or t not in writes}
            if not remaining:
                break
        return frozenset(topics.keys() - remaining.keys())

    def _refused(self, writes: Mapping[str, Sequence[Write]], epoch_zk_version: int) -> set[str]:
        """Apply the writes of topics; return the topics that had a refused write."""
        outcomes = self._write_fenced(
            [write for of_topic in writes.values() for write in of_topic],
            epoch_zk_version,
            send_again=False,
        )
        owners = [topic for topic, of_topic in writes.items() for _ in of_topic]
        return {
            topic
            for topic, outcome in zip(owners, outcomes, strict=True)
            if isinstance(outcome, WriteRefused)
        }

    def _writes(self, topics: Mapping[str, int], is_kept: IsKept | None) -> dict[str, list[Write]]:
        """Return the writes for each topic, in the order in which they must be applied.

        A topic is missing when it is kept, or a later topic of its name exists, and the request is
        for that one.
        """
        # Read the requests first: a topic with a request was created before it, so it is found.
        requests = self._read([DeleteTopicsTopicZNode.path(topic) for topic in topics])
        found = self._read([TopicZNode.path(topic) for topic in topics])
        configs = self._read([ConfigEntityZNode.path("topics", topic) for topic in topics])
        to_delete = [
            path
            for (path, node), (topic, created_by_zxid) in zip(
                found.items(), topics.items(), strict=True
            )
            if node is not None
            and not isinstance(node, UnreadableZnode)
            and node.stat.czxid <= created_by_zxid
            and not (is_kept is not None and _is_kept(topic, node, is_kept))
        ]
        below = self._below(to_delete)
        writes: dict[str, list[Write]] = {}
        for topic, path, config, request in zip(topics, found, configs, requests, strict=True):
            node, request_node = found[path], requests[request]
            if isinstance(node, UnreadableZnode) or isinstance(request_node, UnreadableZnode):
                continue  # the request may be for an earlier topic
            if path not in below and _is_meant(request_node, node):
                continue
            last: list[Delete] = []
            if node is not None and path in below:
                last.append(Delete(path, node.stat.version))
                if configs[config] is not None:
                    last.append(Delete(config, ANY_VERSION))
            if request_node is not None:
                last.append(Delete(request, ANY_VERSION))
            decided = [] if is_kept is None or node is None else [Check(path, node.stat.version)]
            children: list[Write] = [
                [*decided, Delete(p, ANY_VERSION)] for p in below.get(path, ())
            ]
            writes[topic] = [*children, last] if last else children
        return writes

    def _read(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        return dict(zip(paths, self._zookeeper.get_many(paths), strict=True))

    def _below(self, roots: Sequence[str]) -> dict[str, list[str]]:
        """Return every node below each root, children first."""
        children: dict[str, list[str]] = {}
        level = list(roots)
        while level:
            names = self._zookeeper.children_many(level)
            below = {
                path: [f"{path}/{name}" for name in of_path or ()]
                for path, of_path in zip(level, names, strict=True)
            }
            children |= below
            level = [child for of_path in below.values() for child in of_path]
        return {root: [*_descendants(root, children)] for root in roots}


def _descendants(path: str, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for child in children[path]:
        yield from _descendants(child, children)
        yield child


def _is_kept(topic: str, node: Znode, is_kept: IsKept) -> bool:
    """Whether a topic stays; one whose znode cannot be decoded does not."""
    try:
        return is_kept(topic, TopicZNode.decode(node.data).topic_id)
    except BadDataError:
        return False


def _is_meant(request: Znode | None, topic: Znode | None) -> bool:
    """Whether the request is for the existing topic, not for an earlier one of that name."""
    return request is not None and topic is not None and request.stat.czxid >= topic.stat.czxid
