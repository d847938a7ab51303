"""The file of brokers for a job."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regent.cli.brokers import broker_json
from regent.core.errors import BadDataError
from regent.core.model import BrokerInfo, BrokerRegistration, EndPoint
from regent.jobs.brokers_file import (
    PlannedBroker,
    read_brokers,
    read_brokers_file,
    read_registered_brokers,
    takers_of,
)
from regent.jobs.command import InputError
from regent.zk import znodes
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.stores.znode_store import NoClusterError
from tests.jobs.local_files import LOCAL_FILES
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

OF_A_BROKER = BrokerInfo(1, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),), "a")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "brokers.json"


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    for path in znodes.PERSISTENT_PATHS:
        server.put(path)
    return server


def registered(server: FakeZooKeeperServer) -> tuple[PlannedBroker, ...]:
    return read_registered_brokers(ZkAdminStore(FakeZooKeeper(server)))


def test_ids_and_objects_in_any_order_are_sorted(file: Path):
    brokers: list[Any] = [
        {"id": 20, "rack": "b", "replica_count": 7, "capacity": 100, "host": "example.org"},
        3,
        {"id": 11, "rack": None, "replica_count": None, "capacity": None},
    ]
    file.write_text(json.dumps(brokers))
    assert read_brokers_file(str(file), LOCAL_FILES) == (
        PlannedBroker(3, None, 0, None),
        PlannedBroker(11, None, 0, None),
        PlannedBroker(20, "b", 7, 100),
    )


@pytest.mark.parametrize(
    "entry",
    [
        {**broker_json(BrokerRegistration(OF_A_BROKER, 7), 1), "rack": "a"},
        {**json.loads(znodes.BrokerIdZNode.encode(OF_A_BROKER)), "id": 1},
        {"id": 1, "idString": "1", "host": "a", "port": 9092, "rack": "a", "isFenced": False},
        {"id": 1, "name": "a:9092", "rack": "a"},
    ],
    ids=["regent brokers list", "znode", "AdminClient", "kcat"],
)
def test_lists_that_other_programs_write_are_read(file: Path, entry: dict[str, Any]):
    file.write_text(json.dumps([entry]))
    assert read_brokers_file(str(file), LOCAL_FILES) == (PlannedBroker(1, "a", 0, None),)


@pytest.mark.parametrize("mark", ["", "\N{ZERO WIDTH NO-BREAK SPACE}"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_mark_in_front_and_compression_do_not_matter(tmp_path: Path, mark: str, compressed: bool):
    data = f"{mark}[1, 2]".encode()
    file = tmp_path / ("brokers.json.gz" if compressed else "brokers.json")
    file.write_bytes(gzip.compress(data) if compressed else data)
    assert [b.broker_id for b in read_brokers_file(str(file), LOCAL_FILES)] == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[1,]", "is not JSON"),
        ("[NaN]", "is not JSON"),
        ("\N{SNOWMAN}", "is not JSON"),
        ("[]", "must be a JSON list with at least one broker"),
        ('{"id": 1}', "must be a JSON list"),
        ("[1, 2, 1]", "entry 2: broker 1 is listed more than once"),
        ('[1, {"id": 1}]', "entry 1: broker 1 is listed more than once"),
        ('["1"]', "entry 0 must be a broker id or an object, not '1'"),
        ("[1.5]", "entry 0 must be a broker id"),
        ("[null]", "entry 0 must be a broker id"),
        ("[true]", "id must be a number from 0 to 2147483647, not True"),
        ("[-1]", "id must be a number from 0 to 2147483647, not -1"),
        ("[2147483648]", "not 2147483648"),
        ('[{"rack": "a"}]', "a broker needs an id"),
        ('[{"id": "1"}]', "id must be a number"),
        ('[{"id": 1, "rack": 5}]', "rack must be a text, not 5"),
        ('[{"id": 1, "rack": ""}]', "rack must be a text"),
        ('[{"id": 1, "replica_count": -1}]', "replica_count must be a number"),
        ('[{"id": 1, "capacity": 1.0}]', "capacity must be a number"),
        ('[{"id": 1, "capacity": 1e99}]', "capacity must be a number"),
        ('[{"id": 1, "rak": "a"}]', "entry 0: 'rak' is unknown; did you mean rack?"),
        ('[1, {"id": 2, "Rack": "a"}]', "entry 1: 'Rack' is unknown; did you mean rack?"),
        ('[{"id": 1, "replicas": 7}]', "'replicas' is unknown; did you mean replica_count?"),
        ('[{"id": 1, "zone": "a"}]', "'zone' is unknown; those are capacity, id, node_host, rack"),
    ],
)
def test_an_invalid_file_is_one_line_that_names_the_problem(file: Path, content: str, message: str):
    file.write_text(content)
    with pytest.raises(InputError) as caught:
        read_brokers_file(str(file), LOCAL_FILES)
    assert str(file) in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(file: Path):
    with pytest.raises(InputError, match=r"brokers.json cannot be read: No such file"):
        read_brokers_file(str(file), LOCAL_FILES)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_brokers_file(str(file.parent), LOCAL_FILES)


def test_a_long_value_is_cut_short(file: Path):
    file.write_text(json.dumps([{"id": 1, "rack": ["r" * 10_000] * 100}]))
    with pytest.raises(InputError) as caught:
        read_brokers_file(str(file), LOCAL_FILES)
    assert len(str(caught.value)) < 500


def test_registered_brokers_are_those_in_zookeeper(server: FakeZooKeeperServer):
    for broker_id, rack in ((10, "a"), (2, None)):
        info = BrokerInfo(broker_id, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),), rack)
        server.put(znodes.BrokerIdZNode.path(broker_id), znodes.BrokerIdZNode.encode(info))
    assert registered(server) == (PlannedBroker(2, None, 0, None), PlannedBroker(10, "a", 0, None))


def test_the_machine_that_brokers_share_is_read(server: FakeZooKeeperServer, file: Path):
    info = BrokerInfo(2, (), node_host="m")
    server.put(znodes.BrokerIdZNode.path(2), znodes.BrokerIdZNode.encode(info))
    assert registered(server) == (PlannedBroker(2, None, 0, None, "m"),)
    file.write_text('[{"id": 2, "node_host": "m"}]')
    assert read_brokers_file(str(file), LOCAL_FILES) == registered(server)


def test_brokers_that_take_no_replicas_are_left_out(server: FakeZooKeeperServer, file: Path):
    for broker_id in (1, 2):
        info = BrokerInfo(broker_id, (), no_replicas=broker_id == 1)
        server.put(znodes.BrokerIdZNode.path(broker_id), znodes.BrokerIdZNode.encode(info))
    both = (PlannedBroker(1, None, 0, None, no_replicas=True), PlannedBroker(2, None, 0, None))
    assert registered(server) == both
    file.write_text('[{"id": 1, "no_replicas": true}, {"id": 2, "no_replicas": false}]')
    assert read_brokers_file(str(file), LOCAL_FILES) == both
    assert read_brokers(str(file), lambda: "", LOCAL_FILES, with_no_replicas=True) == both
    assert read_brokers(str(file), lambda: "", LOCAL_FILES) == takers_of(both) == both[1:]
    file.write_text('[{"id": 1, "no_replicas": true}]')
    with pytest.raises(InputError, match="all brokers have no_replicas: name or start others"):
        read_brokers(str(file), lambda: "", LOCAL_FILES)


def test_without_a_broker_or_a_cluster_there_is_an_error(server: FakeZooKeeperServer):
    with pytest.raises(InputError, match="no broker is registered"):
        registered(server)
    with pytest.raises(NoClusterError):
        registered(FakeZooKeeperServer())


def test_an_unreadable_registration_is_an_error(server: FakeZooKeeperServer):
    server.put(znodes.BrokerIdZNode.path(4), b"garbage")
    with pytest.raises(BadDataError, match="broker 4"):
        registered(server)
