from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from regent.testing.waits import scaled
from regent.zk.client.operations import (
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    WatchEvent,
    WatchKind,
    ZkError,
    Znode,
)
from regent.zk.client.requests import (
    MAX_BULK_REQUEST_BYTES,
    MAX_WATCHES,
    Answer,
    ArmedWatches,
    Multi,
    MultiRead,
    SetWatches,
    ZkReply,
    ZkRequest,
    set_watches_requests,
)
from regent.zk.client.zookeeper_client import ZooKeeperClient

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def events() -> queue.Queue[WatchEvent]:
    return queue.Queue()


@pytest.fixture
def client(zookeeper_address: str, events: queue.Queue[WatchEvent]) -> Iterator[ZooKeeperClient]:
    client = ZooKeeperClient(zookeeper_address, 6000, on_watch=events.put)
    client.start(timeout_s=scaled(10.0))
    yield client
    client.close()


class ObservedClient(ZooKeeperClient):
    """A client that calls a function before each request and for each answer."""

    on_send: Callable[[ZkRequest], None] = staticmethod(lambda _: None)
    on_received: Callable[[], None] = staticmethod(lambda: None)

    def send(
        self, request: ZkRequest, on_answer: Callable[[Answer | None], None] | None = None
    ) -> ZkReply:
        self.on_send(request)
        return super().send(request, on_answer)

    def receive(self, reply: ZkReply) -> Answer | None:
        answer = super().receive(reply)
        self.on_received()
        return answer


@pytest.fixture
def observed(zookeeper_address: str, events: queue.Queue[WatchEvent]) -> Iterator[ObservedClient]:
    client = ObservedClient(zookeeper_address, 6000, on_watch=events.put)
    client.start(timeout_s=scaled(10.0))
    yield client
    client.close(timeout_s=scaled(5.0))


def create_many(client: ZooKeeperClient, count: int, data: bytes = b"") -> list[str]:
    paths = [f"/{number:05d}" for number in range(count)]
    creations = [Create(path, data or path.encode()) for path in paths]
    results = client.multi_many([creations[at : at + 1000] for at in range(0, count, 1000)])
    assert all(isinstance(result, Committed) for result in results)
    return paths


def data_of(znodes: list[Znode | None]) -> list[bytes | None]:
    return [None if znode is None else znode.data for znode in znodes]


def test_five_thousand_nodes_are_read_in_order(client: ZooKeeperClient) -> None:
    paths = create_many(client, 5000)
    asked = [*reversed(paths), "/absent"]

    znodes = client.get_many(asked)

    assert data_of(znodes) == [*(path.encode() for path in reversed(paths)), None]
    assert znodes[0] == client.get(paths[-1])


def test_children_of_many_nodes_are_listed(client: ZooKeeperClient) -> None:
    client.multi([Create("/a"), Create("/b"), Create("/b/2"), Create("/b/1")])

    assert client.children_many(["/a", "/absent", "/b"]) == [[], None, ["1", "2"]]
    assert client.children_many([]) == []


def test_each_of_two_thousand_watches_fires_once(
    client: ZooKeeperClient, events: queue.Queue[WatchEvent]
) -> None:
    paths = create_many(client, 2000)
    absent = ["/later-1", "/later-2"]
    client.get_many([*paths, *absent], watch=True)
    changes: list[Operation] = [SetData(path, b"", 0) for path in paths]
    creations: list[Operation] = [Create(path) for path in absent]

    client.multi_many([changes, creations])

    fired = [events.get(timeout=scaled(10.0)) for _ in range(2002)]
    assert set(fired) == {
        *(WatchEvent(WatchKind.CHANGED, path) for path in paths),
        *(WatchEvent(WatchKind.CREATED, path) for path in absent),
    }
    client.multi([SetData(paths[0], b"", 1)])
    client.get("/", watch=True)
    client.multi([SetData("/", b"", 0)])
    assert events.get(timeout=scaled(5.0)).path == "/"


def test_a_change_between_the_read_and_the_setting_of_its_watch_fires(
    client: ZooKeeperClient, observed: ObservedClient, events: queue.Queue[WatchEvent]
) -> None:
    client.multi([Create("/a"), Create("/b"), Create("/c")])
    # The first answer is a zxid, the second one has the data.
    changes: list[list[Operation]] = [
        [SetData("/a", b"changed", 0), Delete("/b", 0), Create("/absent")],
        [],
    ]

    def interfere() -> None:
        if changes:
            client.multi(changes.pop())

    observed.on_received = interfere
    znodes = observed.get_many(["/a", "/b", "/c", "/absent"], watch=True)

    assert data_of(znodes) == [b"", b"", b"", None]
    assert not changes
    assert {events.get(timeout=scaled(5.0)) for _ in range(3)} == {
        WatchEvent(WatchKind.CHANGED, "/a"),
        WatchEvent(WatchKind.DELETED, "/b"),
        WatchEvent(WatchKind.CREATED, "/absent"),
    }
    assert events.empty()


def test_large_nodes_are_read_in_small_requests(
    client: ZooKeeperClient, observed: ObservedClient
) -> None:
    sizes: list[int] = []

    def record(request: ZkRequest) -> None:
        if isinstance(request, MultiRead):
            sizes.append(request.count)

    paths = create_many(client, 4000)
    observed.on_send = record
    observed.get_many(paths)
    assert sizes[:3] == [50, 50, 200]
    assert max(sizes) > 1500

    large = bytes(200_000)
    client.multi_many([[SetData(path, large, 0)] for path in paths[:20]])
    sizes.clear()
    assert data_of(observed.get_many(paths[:20] * 20)) == [large] * 400
    assert sizes[0] == 50
    assert set(sizes[2:]) == {10}


def test_multis_are_applied_in_sequence_each_by_itself(client: ZooKeeperClient) -> None:
    client.multi([Create("/a", b"0")])
    batches: list[list[Operation]] = [[SetData("/a", b"%d" % n, n)] for n in range(10)]
    batches[3:3] = [[Create("/b"), Check("/a", 99)], []]

    results = client.multi_many(batches)

    assert results[3] == Refused(1, ZkError.BAD_VERSION)
    assert results[4] == Committed(())
    assert [type(result) for result in results].count(Committed) == 11
    znode = client.get("/a")
    assert znode is not None
    assert (znode.data, znode.stat.version) == (b"9", 10)
    assert client.get("/b") is None


@pytest.fixture
def no_multi_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not know the operation, as one before 3.6."""
    monkeypatch.setattr(MultiRead, "type", 9922)


@pytest.fixture
def no_set_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SetWatches, "type", 9101)


@pytest.mark.usefixtures("no_multi_read")
def test_a_server_without_multi_read_gets_pipelined_reads(
    client: ZooKeeperClient, events: queue.Queue[WatchEvent]
) -> None:
    paths = create_many(client, 200)

    assert data_of(client.get_many([*paths, "/absent"]))[-2:] == [b"/00199", None]
    assert client.children_many(["/", "/absent"]) == [paths_to_names(paths), None]
    client.get_many(paths, watch=True)
    client.multi([SetData(paths[7], b"", 0)])
    assert events.get(timeout=scaled(5.0)) == WatchEvent(WatchKind.CHANGED, paths[7])


@pytest.mark.usefixtures("no_multi_read", "no_set_watches")
def test_a_server_without_set_watches_gets_watching_reads(
    client: ZooKeeperClient, events: queue.Queue[WatchEvent]
) -> None:
    paths = create_many(client, 200)

    assert data_of(client.get_many([*paths, "/absent"], watch=True))[-2:] == [b"/00199", None]
    client.multi([SetData(paths[7], b"", 0), Delete(paths[8], 0), Create("/absent")])

    # Such a server closes the connection, and then all watches count as fired.
    awaited = {
        WatchEvent(WatchKind.CHANGED, paths[7]),
        WatchEvent(WatchKind.DELETED, paths[8]),
        WatchEvent(WatchKind.CREATED, "/absent"),
    }
    while awaited:
        awaited.discard(events.get(timeout=scaled(5.0)))


def paths_to_names(paths: list[str]) -> list[str]:
    return sorted(path.removeprefix("/") for path in paths)


def test_requests_stay_below_their_bounds() -> None:
    long_paths = ["/" + "x" * 1000 + str(number) for number in range(2000)]
    short_paths = [f"/{number}" for number in range(MAX_WATCHES + 1)]

    requests = list(set_watches_requests(7, ArmedWatches(long_paths, [], short_paths)))

    assert all(len(request.body) <= MAX_BULK_REQUEST_BYTES + 30 for request in requests)
    assert len(requests) == 4 + 2


def test_a_node_without_data_has_none_as_kafka_writes_it():
    """Some brokers of Kafka fail to read empty data, that of /latest_producer_id_block."""
    writes: list[Operation] = [
        Create("/a"),
        Create("/b", b"0"),
        SetData("/c", b"", 0),
        SetData("/d", b"0", 0),
    ]
    encoded = Multi(writes, "").body
    for path in (b"/a", b"/c"):
        assert encoded.count(path + b"\xff\xff\xff\xff") == 1
    for path in (b"/b", b"/d"):
        assert encoded.count(path + b"\x00\x00\x00\x010") == 1
