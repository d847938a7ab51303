"""The contract of ``zk.client.zookeeper``, for the real client and for the fake."""

from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Sequence

import pytest

from regent.config.collector import collector
from regent.core.errors import SessionExpiredError, UnreadableError
from regent.testing.waits import scaled
from regent.zk.client.operations import (
    ANY_VERSION,
    AclEntry,
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    Permission,
    Refused,
    SetData,
    UnreadableZnode,
    ZkError,
    Znode,
    ZnodeStat,
)
from regent.zk.client.zookeeper import ZooKeeper
from tests.support.zookeeper_sessions import (
    Ensemble,
    WatchingSession,
    apply,
    changed,
    children_changed,
    created,
    deleted,
    read,
)


@pytest.fixture
def session(ensemble: Ensemble) -> WatchingSession:
    return ensemble.open_session()


@pytest.fixture
def zk(session: WatchingSession) -> ZooKeeper:
    return session.zk


def test_absent_nodes_are_none(zk: ZooKeeper) -> None:
    assert zk.get("/absent") is None
    assert zk.get("/absent/child") is None
    assert zk.children("/absent") is None
    assert zk.get_many(["/absent"]) == [None]
    assert zk.children_many(["/absent"]) == [None]


def test_a_read_of_an_absent_node_keeps_no_object_of_its_caller(zk: ZooKeeper) -> None:
    """An error whose traceback is kept with the answer would keep the frames of all callers."""

    class Kept:
        pass

    def read_with_something() -> weakref.ref[Kept]:
        kept = Kept()
        assert zk.get("/absent", watch=True) is None
        return weakref.ref(kept)

    with collector.paused():
        assert read_with_something()() is None


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"x" * 100_000])
def test_data_is_read_as_it_was_written(zk: ZooKeeper, data: bytes) -> None:
    apply(zk, Create("/node", data))
    assert read(zk, "/node").data == data


def test_many_nodes_are_read_in_the_sequence_of_the_paths(zk: ZooKeeper) -> None:
    names = [f"/n{i}" for i in range(1500)]
    apply(zk, *(Create(name, name.encode()) for name in names))
    asked = [*reversed(names), "/absent", names[7], names[7]]
    nodes = zk.get_many(asked)
    assert [node and node.data for node in nodes] == [
        None if path == "/absent" else path.encode() for path in asked
    ]
    assert nodes[-1] == zk.get(names[7])
    assert zk.get_many([]) == []


def test_children_are_names_and_sorted(zk: ZooKeeper) -> None:
    apply(zk, *map(Create, ("/p", "/p/b", "/p/a", "/p/c", "/p/a/x", "/q")))
    assert zk.children("/p") == ["a", "b", "c"]
    assert zk.children_many(["/p/a", "/absent", "/p", "/q"]) == [["x"], None, ["a", "b", "c"], []]
    assert zk.children_many([]) == []
    assert {"p", "q"} <= set(zk.children("/") or ())


def test_a_set_raises_version_and_mzxid_but_not_czxid(zk: ZooKeeper) -> None:
    apply(zk, Create("/node", b"same"))
    before = read(zk, "/node").stat
    result = apply(zk, SetData("/node", b"same", ANY_VERSION))
    after = read(zk, "/node").stat
    assert result.results == (after,)
    assert (before.version, after.version) == (0, 1)
    assert before.czxid == before.mzxid == after.czxid < after.mzxid
    assert (before.ephemeral_owner, before.ctime_ms) == (0, after.ctime_ms)


def test_a_node_created_and_set_in_one_multi_has_version_one_and_czxid_equal_to_mzxid(
    zk: ZooKeeper,
) -> None:
    result = apply(zk, Create("/node", ephemeral=True), SetData("/node", b"data", 0))
    path, stat = result.results
    assert path == "/node"
    assert isinstance(stat, ZnodeStat)
    assert (stat.version, stat.ephemeral_owner) == (1, zk.session_id)
    assert stat.czxid == stat.mzxid
    assert read(zk, "/node") == Znode(b"data", stat)


def test_each_incarnation_of_a_node_has_a_greater_czxid(zk: ZooKeeper) -> None:
    apply(zk, Create("/node"), SetData("/node", b"", 0))
    first = read(zk, "/node").stat
    apply(zk, Delete("/node", 1), Create("/node"))
    second = read(zk, "/node").stat
    apply(zk, Delete("/node", 0))
    apply(zk, Create("/node"))
    third = read(zk, "/node").stat
    assert first.czxid < second.czxid < third.czxid
    assert second.version == third.version == 0


def test_sequential_nodes_are_numbered_by_the_children_ever_created(zk: ZooKeeper) -> None:
    apply(zk, Create("/p"), Create("/p/other"))
    one = apply(zk, Create("/p/n_", b"1", sequential=True)).results
    two = apply(
        zk,
        Create("/p/n_", b"2", sequential=True),
        Delete("/p/other", ANY_VERSION),
        Create("/p/n_", b"3", sequential=True, ephemeral=True),
    ).results
    refused = zk.multi([Create("/p/n_", sequential=True), Create("/p")])
    three = apply(zk, Create("/p/m_", sequential=True)).results
    assert one == ("/p/n_0000000001",)
    assert two == ("/p/n_0000000002", None, "/p/n_0000000003")
    assert refused == Refused(1, ZkError.NODE_EXISTS)
    assert three == ("/p/m_0000000004",)
    assert read(zk, "/p/n_0000000003").data == b"3"


def test_a_multi_returns_a_result_for_each_operation(zk: ZooKeeper) -> None:
    result = apply(
        zk,
        Create("/a"),
        Check("/a", 0),
        SetData("/a", b"1", 0),
        Check("/a", 1),
        Create("/a/b", ephemeral=True),
        Delete("/a/b", 0),
        SetData("/a", b"2", ANY_VERSION),
        Check("/a", ANY_VERSION),
    )
    first, second = result.results[2], result.results[6]
    assert isinstance(first, ZnodeStat)
    assert isinstance(second, ZnodeStat)
    assert (first.version, second.version) == (1, 2)
    assert result.results == ("/a", None, first, None, "/a/b", None, second, None)
    assert zk.multi([]) == Committed(())


EXISTING = [Create("/p"), Create("/p/c"), Create("/e", ephemeral=True), Create("/v")]


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (Create("/absent/child"), ZkError.NO_NODE),
        (Create("/absent/n_", sequential=True), ZkError.NO_NODE),
        (Create("/p"), ZkError.NODE_EXISTS),
        (Create("/e/child"), ZkError.NO_CHILDREN_FOR_EPHEMERALS),
        (SetData("/absent", b"", ANY_VERSION), ZkError.NO_NODE),
        (SetData("/v", b"", 1), ZkError.BAD_VERSION),
        (Delete("/absent", ANY_VERSION), ZkError.NO_NODE),
        (Delete("/absent/child", 0), ZkError.NO_NODE),
        (Delete("/v", 3), ZkError.BAD_VERSION),
        (Delete("/p", 0), ZkError.NOT_EMPTY),
        (Delete("/p", 5), ZkError.BAD_VERSION),
        (Check("/absent", ANY_VERSION), ZkError.NO_NODE),
        (Check("/v", 1), ZkError.BAD_VERSION),
    ],
)
def test_a_refused_multi_applies_nothing_and_names_the_first_refused_operation(
    zk: ZooKeeper, operation: Operation, error: ZkError
) -> None:
    apply(zk, *EXISTING)
    before = [zk.get_many(["/p", "/p/c", "/v", "/new"]), zk.children("/p")]
    good: list[Operation] = [
        SetData("/p/c", b"changed", 0),
        Create("/new"),
        Delete("/p/c", 1),
        Create("/p/c"),
    ]
    assert zk.multi([*good, operation, Check("/absent", 9)]) == Refused(len(good), error)
    assert zk.multi([operation]) == Refused(0, error)
    assert [zk.get_many(["/p", "/p/c", "/v", "/new"]), zk.children("/p")] == before


def test_a_multi_sees_its_own_earlier_operations(zk: ZooKeeper) -> None:
    apply(zk, Create("/p"), Create("/p/c"))
    assert zk.multi([Delete("/p", 0)]) == Refused(0, ZkError.NOT_EMPTY)
    apply(zk, Delete("/p/c", 0), Delete("/p", 0), Create("/p"), Create("/p/d"))
    assert zk.children("/p") == ["d"]
    assert zk.multi([Delete("/p/d", 0), Check("/p/d", 0)]) == Refused(1, ZkError.NO_NODE)


def test_the_multis_of_a_pipeline_are_applied_in_sequence_each_by_itself(zk: ZooKeeper) -> None:
    batches: list[Sequence[Operation]] = [[Create("/n")]]
    for version in range(500):
        batches.append([SetData("/n", b"%d" % version, version)])
        batches.append([Create(f"/n{version}"), Create("/n")])
    results = zk.multi_many(batches)
    assert len(results) == 1001
    assert results[0] == Committed(("/n",))
    assert all(isinstance(result, Committed) for result in results[1::2])
    assert set(results[2::2]) == {Refused(1, ZkError.NODE_EXISTS)}
    assert read(zk, "/n").data == b"499"
    assert zk.get("/n499") is None
    assert zk.multi_many([]) == []
    assert zk.multi_many([[], [Check("/n", 500)]]) == [Committed(()), Committed((None,))]


def test_a_watch_on_an_absent_node_fires_at_its_creation(session: WatchingSession) -> None:
    zk = session.zk
    assert zk.get("/node", watch=True) is None
    apply(zk, Create("/node"))
    assert session.events() == [created("/node")]


def test_a_watch_fires_once(session: WatchingSession) -> None:
    zk = session.zk
    apply(zk, Create("/node"), Create("/p"))
    zk.get("/node", watch=True)
    zk.get("/node", watch=True)
    zk.children("/p", watch=True)
    apply(zk, SetData("/node", b"1", 0))
    apply(zk, SetData("/node", b"2", 1))
    apply(zk, Create("/p/a"))
    apply(zk, Create("/p/b"))
    assert session.events() == [changed("/node"), children_changed("/p")]
    zk.get("/node", watch=True)
    apply(zk, Delete("/node", 2), Create("/node"))
    assert session.events() == [deleted("/node")]


def test_a_read_without_a_watch_sets_none_and_cancels_none(session: WatchingSession) -> None:
    zk = session.zk
    apply(zk, Create("/node"), Create("/other"))
    zk.get("/node", watch=True)
    zk.children("/node", watch=True)
    for path in ("/node", "/other"):
        zk.get(path)
        zk.get_many([path])
        zk.children(path)
        zk.children_many([path])
    apply(zk, SetData("/node", b"", 0), Create("/node/c"))
    apply(zk, SetData("/other", b"", 0), Create("/other/c"))
    assert session.events() == [changed("/node"), children_changed("/node")]


def test_a_child_watch_fires_only_for_created_and_deleted_children(
    session: WatchingSession,
) -> None:
    zk = session.zk
    apply(zk, Create("/p"), Create("/p/c"))
    zk.children("/p", watch=True)
    apply(zk, SetData("/p", b"", 0), SetData("/p/c", b"", 0), Create("/p/c/grandchild"))
    assert session.events() == []
    apply(zk, Delete("/p/c/grandchild", 0), Delete("/p/c", 1))
    assert session.events() == [children_changed("/p")]


def test_the_children_of_an_absent_node_are_not_watched(session: WatchingSession) -> None:
    assert session.zk.children("/p", watch=True) is None
    apply(session.zk, Create("/p"), Create("/p/c"))
    assert session.events() == []


def test_a_deletion_is_one_event_for_both_kinds_of_watches(session: WatchingSession) -> None:
    zk = session.zk
    apply(zk, Create("/p"), Create("/p/c"))
    zk.get_many(["/p/c"], watch=True)
    zk.children("/p/c", watch=True)
    zk.children("/p", watch=True)
    apply(zk, Delete("/p/c", 0))
    assert session.events() == [deleted("/p/c"), children_changed("/p")]


def test_a_refused_multi_fires_nothing(session: WatchingSession) -> None:
    zk = session.zk
    apply(zk, Create("/node"))
    zk.get_many(["/node", "/absent"], watch=True)
    zk.multi([SetData("/node", b"", 0), Create("/absent"), Create("/node")])
    assert session.events() == []


def test_watches_see_the_changes_of_other_sessions(ensemble: Ensemble) -> None:
    one, two, three = (ensemble.open_session() for _ in range(3))
    for session in (one, two):
        session.zk.get("/node", watch=True)
    apply(three.zk, Create("/node"))
    assert one.events() == two.events() == [created("/node")]
    assert three.events() == []


def test_after_a_sync_reads_see_writes_of_others(ensemble: Ensemble) -> None:
    reader, writer = (ensemble.open_session().zk for _ in range(2))
    for number in range(20):
        apply(writer, Create(f"/node-{number}"))
        reader.sync()
        assert reader.get(f"/node-{number}") is not None


def test_a_new_session_sees_earlier_writes(ensemble: Ensemble) -> None:
    writer = ensemble.open_session().zk
    for number in range(20):
        apply(writer, Create(f"/node-{number}"))
        assert ensemble.open_session().zk.get(f"/node-{number}") is not None


def test_after_a_refused_multi_reads_see_why_it_was_refused(ensemble: Ensemble) -> None:
    late, writer = (ensemble.open_session().zk for _ in range(2))
    for number in range(20):
        create = Create(f"/node-{number}")
        apply(writer, create)
        assert late.multi([create]) == Refused(0, ZkError.NODE_EXISTS)
        assert late.get(create.path) is not None


def test_dropped_watches_do_not_fire_until_they_are_set_again(session: WatchingSession) -> None:
    zk = session.zk
    apply(zk, *map(Create, ("/a", "/b", "/c")))
    zk.get_many(["/a", "/b", "/c", "/absent"], watch=True)
    zk.children("/a", watch=True)
    zk.unwatch(["/a", "/absent", "/never-watched"])
    zk.unwatch(["/c"])
    zk.get("/c", watch=True)
    sets = [SetData(path, b"", 0) for path in ("/a", "/b", "/c")]
    apply(zk, *sets, Create("/absent"), Create("/a/child"))
    assert session.events() == [changed("/b"), changed("/c")]


def test_watches_set_in_bulk_miss_no_change(ensemble: Ensemble) -> None:
    watcher, writer = ensemble.open_session(), ensemble.open_session()
    paths = [f"/n{i}" for i in range(300)]
    apply(writer.zk, *(Create(path, b"old") for path in paths[::2]))
    batches: list[list[Operation]] = [
        [Create(path, b"new") if number % 2 else SetData(path, b"new", 0)]
        for number, path in enumerate(paths)
    ]
    random.Random(7).shuffle(batches)
    started = threading.Event()

    def write() -> None:
        for start in range(0, len(batches), 10):
            writer.zk.multi_many(batches[start : start + 10])
            started.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert started.wait(scaled(10.0))
    nodes = watcher.zk.get_many(paths, watch=True)
    thread.join(scaled(10.0))
    assert not thread.is_alive()
    fired = {event.path for event in watcher.events()}
    seen = {path for path, node in zip(paths, nodes, strict=True) if node and node.data == b"new"}
    assert fired | seen == set(paths)


def test_every_session_has_its_own_id_which_its_ephemeral_nodes_have(
    ensemble: Ensemble,
) -> None:
    one, two = ensemble.open_session().zk, ensemble.open_session().zk
    apply(one, Create("/one", ephemeral=True))
    apply(two, Create("/two", ephemeral=True), Create("/persistent"))
    owners = [read(one, path).stat.ephemeral_owner for path in ("/one", "/two", "/persistent")]
    assert owners == [one.session_id, two.session_id, 0]
    assert len({0, one.session_id, two.session_id}) == 3
    one.wait_connected()


def test_the_ephemeral_nodes_of_a_session_vanish_together_with_it(ensemble: Ensemble) -> None:
    owner, watcher = ensemble.open_session(), ensemble.open_session()
    ephemerals = ["/controller", "/ids/1"]
    apply(
        owner.zk,
        Create("/ids"),
        Create("/persistent"),
        *(Create(path, ephemeral=True) for path in ephemerals),
    )
    both = watcher.zk.get_many(ephemerals, watch=True)
    assert len({node.stat.czxid for node in both if node}) == 1
    watcher.zk.children("/ids", watch=True)
    watcher.zk.get("/persistent", watch=True)
    owner.zk.close()
    watcher.zk.sync()
    assert watcher.zk.get_many([*ephemerals, "/persistent"])[:2] == [None, None]
    assert sorted(watcher.events(), key=str) == sorted(
        [deleted("/controller"), deleted("/ids/1"), children_changed("/ids")], key=str
    )
    assert watcher.zk.get("/persistent") is not None


def test_every_method_of_an_expired_session_raises(ensemble: Ensemble) -> None:
    zk = ensemble.open_session().zk
    zk.close()
    for call in (
        lambda: zk.get("/node"),
        lambda: zk.get_many(["/node"], watch=True),
        lambda: zk.children("/node"),
        lambda: zk.children_many(["/node"]),
        lambda: zk.multi([Create("/node")]),
        lambda: zk.multi_many([[Create("/node")]]),
        zk.sync,
        zk.wait_connected,
    ):
        with pytest.raises(SessionExpiredError):
            call()
    assert ensemble.open_session().zk.get("/node") is None


# --- nodes that may not be read -------------------------------------------------------------------


def test_an_unreadable_node_does_not_affect_reads_of_others(
    ensemble: Ensemble, zk: ZooKeeper
) -> None:
    apply(zk, Create("/a", b"a"), Create("/secret", b"s"), Create("/secret/c"), Create("/z", b"z"))
    ensemble.deny("/secret")
    for watch in (False, True):
        a, secret, absent, z = zk.get_many(["/a", "/secret", "/absent", "/z"], watch=watch)
        assert a is not None
        assert z is not None
        assert absent is None
        assert (a.data, z.data) == (b"a", b"z")
        for refused in (secret, zk.get("/secret", watch=watch)):
            assert isinstance(refused, UnreadableZnode)
            for field in Znode._fields:
                with pytest.raises(UnreadableError, match="/secret: ZooKeeper refuses to show it"):
                    getattr(refused, field)
    assert zk.children_many(["/a", "/secret", "/secret/c"]) == [[], None, []]
    with pytest.raises(UnreadableError, match="/secret: ZooKeeper refuses to show it"):
        zk.children("/secret", watch=True)
    with pytest.raises(UnreadableError, match="/secret"):
        zk.children("/secret")


def test_acls_say_what_everybody_may_do(ensemble: Ensemble, zk: ZooKeeper) -> None:
    apply(zk, Create("/open"), Create("/secret"), Create("/fixed"), Create("/secret/c"))
    ensemble.deny("/secret")
    ensemble.deny_writing("/fixed")
    everything, write = ~Permission(0), Permission.changes()
    assert zk.acls_many(["/open", "/secret", "/absent", "/fixed", "/secret/c"]) == [
        (AclEntry(everything, "world", "anyone"),),
        (AclEntry(write, "world", "anyone"),),
        None,
        (AclEntry(Permission.READ | Permission.ADMIN, "world", "anyone"),),
        (AclEntry(everything, "world", "anyone"),),
    ]


def test_a_watch_on_an_unreadable_node_fires_at_its_deletion(
    ensemble: Ensemble, session: WatchingSession
) -> None:
    zk = session.zk
    apply(zk, Create("/secret", b"s"))
    ensemble.deny("/secret")
    zk.get_many(["/secret"], watch=True)
    apply(zk, Delete("/secret", ANY_VERSION))
    assert session.events() in ([], [deleted("/secret")]), (
        "newer servers notify only sessions that may read it"
    )


def test_an_unwritable_node_refuses_the_whole_multi(ensemble: Ensemble, zk: ZooKeeper) -> None:
    apply(zk, Create("/a", b"a"), Create("/fixed", b"f"), Create("/fixed/c"))
    ensemble.deny_writing("/fixed")
    both = [SetData("/a", b"b", 0), SetData("/fixed", b"g", 0)]
    assert zk.multi(both) == Refused(1, ZkError.NO_AUTH)
    assert zk.multi([SetData("/a", b"b", 7), both[1]]) == Refused(0, ZkError.BAD_VERSION)
    assert zk.multi([SetData("/fixed", b"g", 7)]) == Refused(0, ZkError.NO_AUTH)
    children = Create("/fixed/c"), Create("/fixed/d"), Delete("/fixed/c", 7), Delete("/fixed/d", 7)
    for refused in children:
        assert zk.multi([refused]) == Refused(0, ZkError.NO_AUTH)
    apply(zk, Create("/fixed/c/e"), SetData("/fixed/c", b"c", 0))
    assert (read(zk, "/a").data, read(zk, "/fixed").data) == (b"a", b"f")
    assert (zk.children("/fixed"), read(zk, "/fixed/c").data) == (["c"], b"c")
