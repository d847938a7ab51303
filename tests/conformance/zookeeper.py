"""ZooKeeper as controllers, brokers and tools use it: KafkaZkClientTest, ReplicationUtilsTest.

The keys of a case decide what it calls; where several calls have the same keys, its name does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from regent.core.errors import BrokerIdInUseError, ControllerMovedError, Errors
from regent.core.model import BrokerInfo, ReplicaAssignment
from regent.core.ports import TopicAssignment, WriteError
from regent.core.protocol.controller import AlterPartitionRequest
from regent.zk.client.operations import ANY_VERSION, Committed, Refused, SetData
from regent.zk.codecs.admin_znodes import sequence_number
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.isr_store import ZkIsrStore
from regent.zk.znodes import (
    BrokerIdZNode,
    DeleteTopicsTopicZNode,
    IsrChangeNotificationSequenceZNode,
    LogDirEventNotificationSequenceZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicsZNode,
)
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    assignment,
    check_words,
    one_of,
    partition,
)
from tests.conformance.proposals import T0, proposal
from tests.conformance.zk_client import CODES, Client
from tests.conformance.zk_steps import run_steps
from tests.support.world import broker_info, leadership, topic_id
from tests.support.zookeeper_sessions import Ensemble, fake_ensemble


def zk_operation(case: Case, open_ensemble: Callable[[], Ensemble] = fake_ensemble) -> None:
    """Run a case on a new tree of the fake ZooKeeper, or of another."""
    ensemble = open_ensemble()
    try:
        _play(case, Client(ensemble))
    finally:
        ensemble.close()


def _play(case: Case, client: Client) -> None:
    given = case.take("in", {})
    if isinstance(given, list):
        with case.nested("expect") as expect:
            _listed(client, case, given, expect)
        return
    with Fields(given, "in") as fields, case.nested("expect") as expect:
        if "steps" in case:
            run_steps(client, case.take("steps"))
            return
        for key, run in _BY_KEY.items():
            if key in fields:
                run(client, fields, expect)
                return
    raise UnknownInCaseError(f"no call for the keys {sorted(given)}")


# --- fencing --------------------------------------------------------------------------------------


def _fenced(client: Client, given: Fields, expect: Fields) -> None:
    """Try every fenced write: none may take effect."""
    version = client.epoch_zk_version + one_of(
        given.take("expected_epoch_zk_version"),
        {"current+1": 1, "current": 0, "current-1": -1},
        "the expected version",
    )
    _populate(client)
    before = client.snapshot()
    assert expect.take("raises") == "ControllerMovedException"
    for write in _fenced_writes(client, version):
        with pytest.raises(ControllerMovedError):
            write()
    for unchanged in expect.expected("data_unchanged"):
        assert unchanged in (True, "not asserted")
        assert client.snapshot() == before


def _populate(client: Client) -> None:
    client.put_topic("t", {0: (0, 1)}, topic_id(1))
    client.put_state(T0, 0, (0, 1))
    client.put(DeleteTopicsTopicZNode.path("t"))
    client.put(PreferredReplicaElectionZNode.PATH, PreferredReplicaElectionZNode.encode([T0]))
    client.put(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode({T0: (1,)}))
    client.sequential(
        IsrChangeNotificationSequenceZNode.PATH_PREFIX,
        IsrChangeNotificationSequenceZNode.encode([T0]),
    )
    client.sequential(
        LogDirEventNotificationSequenceZNode.PATH_PREFIX,
        LogDirEventNotificationSequenceZNode.encode(0),
    )
    client.put("/controller", b'{"version":1,"brokerid":0,"timestamp":"0"}')


def _fenced_writes(client: Client, version: int) -> list[Callable[[], object]]:
    store = client.store
    state = leadership(1, (1,))
    topic = client.topic("t")
    other = partition("t-1")
    requests = store.read_topics_to_delete()
    return [
        lambda: store.create_partition_states({other: state}, version),
        lambda: store.update_partition_states({T0: state}, version),
        lambda: store.write_topics({"t": topic}, version),
        lambda: store.delete_topic_deletions(requests, version),
        lambda: store.delete_topics(requests, version),
        lambda: store.remove_reassignments({T0: (1,)}, version),
        lambda: store.delete_preferred_elections(version),
        lambda: store.delete_isr_changes(list(store.read_isr_changes()), version),
        lambda: store.delete_log_dir_events(list(store.read_log_dir_events()), version),
        lambda: store.delete_controller(version),
    ]


# --- partition states -----------------------------------------------------------------------------


def _update_states(client: Client, given: Fields, expect: Fields) -> None:
    wanted = given.take("zk_version", {})
    znodes, actual = given.take("znodes", "present"), given.take("actual", {})
    names = list(wanted) or ["topic1-0", "topic1-1"]
    absent = names if znodes == "absent" else _absent(znodes)
    for said in (absent, actual if isinstance(actual, Mapping) else ()):
        if not set(said) <= set(names):
            raise UnknownInCaseError(f"no state is written: {sorted(set(said) - set(names))}")
    for name in names:
        if name not in absent:
            there = actual.get(name, wanted.get(name, 0)) if isinstance(actual, Mapping) else actual
            client.put_partitions([name], there)
    outcomes = client.store.update_partition_states(
        {
            partition(name): leadership(
                0, (0,), leader_epoch=1, partition_epoch=wanted.get(name, 0)
            )
            for name in names
        },
        client.epoch_zk_version,
    )
    found = {str(name): outcome for name, outcome in outcomes.items()}
    for succeeded in expect.expected("succeeded"):
        versions = {n: o for n, o in found.items() if not isinstance(o, WriteError)}
        if isinstance(succeeded, Mapping):
            assert versions == {n: _version(row) for n, row in succeeded.items()}
        else:
            assert sorted(versions) == sorted(succeeded)
    for retry in expect.expected("retry"):
        assert sorted(n for n, o in found.items() if o is WriteError.BAD_VERSION) == sorted(retry)
    for failed in expect.expected("failed"):
        others = {
            n: CODES[o]
            for n, o in found.items()
            if isinstance(o, WriteError) and o is not WriteError.BAD_VERSION
        }
        assert others == dict(failed)


def _version(row: Mapping[str, Any]) -> int:
    with Fields(row, "succeeded") as fields:
        return int(fields.take("zk_version"))


def _absent(znodes: Any) -> list[str]:
    if znodes == "present":
        return []
    if isinstance(znodes, Mapping):
        return [n for n, s in znodes.items() if one_of(s, {"absent": 1, "present": 0}, "a znode")]
    raise UnknownInCaseError(f"znodes {znodes!r}")


def _read_states(client: Client, given: Fields, expect: Fields) -> None:
    client.put_partitions(given.take("existing"))
    found = client.store.read_partition_states(list(map(partition, given.take("asked"))))
    for names in expect.expected("returned"):
        assert set(found) == set(map(partition, names))
    for name, leader in expect.matching("leader("):
        state = found.get(partition(name.rstrip(")")))
        assert not isinstance(state, Exception)
        assert (None if state is None else state.leader_and_isr.leader) == leader


def _write_isr(client: Client, given: Fields, expect: Fields) -> None:
    """A leader writes its ISR itself."""
    expected, actual = given.take("expected_version"), given.take("actual_version")
    row = proposal(T0, (0, 1), expected)
    isr, epoch = {
        None: ((0,), 0),
        "already identical": ((0, 1), 0),
        "identical": ((0, 1), 0),
        "same": ((0, 1), 0),
    }.get(data := given.take("data", None), ((0, 1), 1))
    if data is not None:
        check_words(data, "data", _DATA)
        if not re.search("identical|same|differ", data):
            raise UnknownInCaseError(f"data {data!r}")
    for _ in range(actual + 1):
        client.put_state(T0, 0, isr, leader_epoch=epoch)
    store = ZkIsrStore(client.session)
    (answer,) = store.alter_partitions(AlterPartitionRequest(0, 1, (row,)), {T0: 1}).partitions
    is_ok = answer.error_code is Errors.NONE
    for ok in expect.expected("ok"):
        assert is_ok is ok
    for version in expect.expected("version"):
        assert (answer.partition_epoch if is_ok else -1) == version
    for error in expect.expected("error"):
        assert answer.error_code.name == error


def _assign_topic(client: Client, given: Fields, expect: Fields) -> None:
    """A topic's assignment is stored with the added and removed replicas."""
    wanted = assignment({key: given.take(key, []) for key in ("replicas", "adding", "removing")})
    client.put_topic("t", {0: (9,)}, topic_id(1))
    written = replace(client.topic("t"), partitions={0: wanted})
    client.store.write_topics({"t": written}, client.epoch_zk_version)
    read = client.store.read_topics(["t"])["t"]
    assert isinstance(read, TopicAssignment)
    found: ReplicaAssignment = read.partitions[0]
    for replicas in expect.expected("replicas"):
        assert list(found.replicas) == replicas
    for adding in expect.expected("adding"):
        assert list(found.adding_replicas) == adding
    for removing in expect.expected("removing"):
        assert list(found.removing_replicas) == removing
    for stored in expect.expected("stored"):
        assert found == (wanted if stored is True else assignment(stored))


_DATA = "already identical same differs differ different stored data only leader epoch leader_epoch"
_INFOS = {
    **dict.fromkeys(("same", "identical", "unchanged", "equal"), False),
    **dict.fromkeys(("different", "changed", "new", "other", "updated"), True),
}
_SESSIONS = (
    "same own other another different former previous expired new old not yet live alive dead"
    " closed broker broker's process client life registration session owner"
)


# --- brokers --------------------------------------------------------------------------------------


def _register(client: Client, given: Fields, expect: Fields) -> None:
    """A broker registers while its id may be registered already."""
    info = broker_info(1)
    is_registered = given.take("registered", True)
    owner = given.take("existing_owner", None)
    session = given.take("session", owner or "same")
    check_words(session, "the session", _SESSIONS)
    if isinstance(is_registered, list):
        for broker_id in is_registered:
            client.register(broker_id)
        assert list(client.store.read_brokers()) == expect.take("brokers")
        return
    if "registered" in given:
        one_of(given.take("info", "changed"), _INFOS, "info")
        _update_info(client, info, is_registered, expect)
        return
    first = epoch = client.store.register_broker(info)
    changed = one_of(given.take("info", "same"), _INFOS, "info")
    again = broker_info(1, incarnation=2) if changed else info
    if any(word in session for word in ("expire", "former", "previous")):
        client.renew_session()
        epoch = client.store.register_broker(again)
    elif any(word in session for word in ("other", "different")):
        error = expect.take("raises", expect.take("error", "NODEEXISTS"))
        assert one_of(error, {"NODEEXISTS": True}, "what is raised")
        with pytest.raises(BrokerIdInUseError):
            ZkControllerStore(client.another_session()).register_broker(again)
    elif "same" in session:
        epoch = client.store.register_broker(again)
    else:
        raise UnknownInCaseError(f"session {session!r}")
    for czxid in expect.expected("czxid"):
        is_kept = one_of(czxid, {"unchanged": True, "same": True, "new": False}, "czxid")
        assert (epoch == first) is is_kept
    for stored in expect.expected("stored"):
        kept = one_of(stored, {"original": info, "unchanged": info, "new": again}, "stored")
        assert client.store.read_broker(1).info == kept  # type: ignore[union-attr]


def _update_info(client: Client, info: BrokerInfo, is_registered: bool, expect: Fields) -> None:
    """Replace the content of a registration."""
    changed = broker_info(1, incarnation=2)
    write = SetData(BrokerIdZNode.path(1), BrokerIdZNode.encode(changed), ANY_VERSION)
    if is_registered:
        client.store.register_broker(info)
    result = client.session.multi([write])
    for stored in expect.expected("stored"):
        kept = one_of(stored, {"original": info, "new": changed, "changed": changed}, "stored")
        assert client.store.read_broker(1).info == kept  # type: ignore[union-attr]
    for raises in expect.expected("raises"):
        assert isinstance(result, Refused)
        assert result.error.name.replace("_", "") == raises
    for ok in expect.expected("ok"):
        assert isinstance(result, Committed) is ok


# --- lists ----------------------------------------------------------------------------------------


def _listed(client: Client, case: Case, given: list[Any], expect: Fields) -> None:
    if all(isinstance(batch, list) for batch in given):
        for batch in given:
            client.sequential(
                IsrChangeNotificationSequenceZNode.PATH_PREFIX,
                IsrChangeNotificationSequenceZNode.encode(map(partition, batch)),
            )
        found = client.store.read_isr_changes()
        for sequence in expect.expected("sequence"):
            assert [f"{sequence_number(name):010d}" for name in found] == sequence
        for names in expect.expected("partitions"):
            assert [str(name) for batch in found.values() for name in batch] == names
        _assert_deletable(client.store.read_isr_changes, client.store.delete_isr_changes, client)
    elif "dir" in case.meaning:
        for broker_id in given:
            client.sequential(
                LogDirEventNotificationSequenceZNode.PATH_PREFIX,
                LogDirEventNotificationSequenceZNode.encode(broker_id),
            )
        for brokers in expect.expected("brokers"):
            assert list(client.store.read_log_dir_events().values()) == brokers
        store = client.store
        _assert_deletable(store.read_log_dir_events, store.delete_log_dir_events, client)
    else:
        for broker_id in given:
            client.register(broker_id)
        for brokers in expect.expected("brokers"):
            assert list(client.store.read_brokers()) == brokers


def _assert_deletable(read: Callable[[], Mapping[str, Any]], delete: Any, client: Client) -> None:
    """One, then all, then already deleted ones."""
    names = list(read())
    delete(names[:1], client.epoch_zk_version)
    assert list(read()) == names[1:]
    for _ in range(2):
        delete(names, client.epoch_zk_version)
        assert not read()


def _watch_topics(client: Client, given: Fields, expect: Fields) -> None:
    if given.take("register_watch"):
        client.store.read_topic_names()
    if given.take("then_list_without_watch", False):
        client.session.children(TopicsZNode.PATH)
    assert given.take("then", "topic created") == "topic created"
    client.put_topic("t", {0: (0,)})
    for is_told in expect.expected("child_event"):
        assert (TopicsZNode.PATH in client.events()) is is_told


_BY_KEY: Mapping[str, Callable[[Client, Fields, Fields], None]] = {
    "expected_epoch_zk_version": _fenced,
    "register_watch": _watch_topics,
    "asked": _read_states,
    "actual_version": _write_isr,
    "replicas": _assign_topic,
    "znodes": _update_states,
    "zk_version": _update_states,
    "registered": _register,
    "session": _register,
    "existing_owner": _register,
    "info": _register,
}
