"""``restart --rolling``: the sequence of the brokers, and what stops it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from regent.cli import restart
from regent.core.errors import Errors
from regent.core.model import BrokerId, BrokerInfo
from regent.core.protocol.broker import ShutdownBrokerRequest, ShutdownBrokerResponse
from regent.testing.waits import eventually, scaled
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import FakeCluster, failing
from tests.support.world import T0

ROLLING = ("restart", "--rolling", "--start", ":", "--timeout-ms", "3000")
EARLIER = "2026-01-01T00:00:00.000Z"
SOON = ("--timeout-ms", "300")
TIMEOUT_S = scaled(20)


class Brokers:
    """Three brokers that end when they are asked to, and are back at once, unless ``stay_away``."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.hosts: dict[BrokerId, str] = {}
        self.stopped: list[BrokerId] = []
        self.stay_away: set[BrokerId] = set()
        self._cluster = cluster
        self._processes: dict[BrokerId, tuple[str, int]] = {}
        self._now_ms = count(1_796_072_361_811)
        for broker_id in (0, 1, 2):
            self.start(broker_id)
        cluster.put_topic("t", {0: (0, 1, 2)})
        cluster.put_state(T0, 0, (0, 1, 2))

    def start(self, broker_id: BrokerId) -> None:
        def shut_down(request: Request) -> Response:
            assert isinstance(request, ShutdownBrokerRequest)
            self.stopped.append(broker_id)
            was_controller = self._cluster.controller_id() == broker_id
            self._cluster.unregister(broker_id)
            if broker_id not in self.stay_away:
                self.start(broker_id)
            if was_controller:
                self._cluster.elect(min(self._cluster.sessions))
            return ShutdownBrokerResponse(Errors.NONE)

        self._processes[broker_id] = self._cluster.serve(shut_down), next(self._now_ms)
        self.register(broker_id)

    def register(self, broker_id: BrokerId) -> None:
        """Register the process of a broker."""
        endpoint, started_ms = self._processes[broker_id]
        self._cluster.add_broker(
            broker_id,
            control_endpoint=endpoint,
            node_host=self.hosts.get(broker_id),
            started_ms=started_ms,
        )


@pytest.fixture
def brokers(cluster: FakeCluster) -> Brokers:
    """Broker 1 is the controller."""
    brokers = Brokers(cluster)
    cluster.elect(1)
    return brokers


def time_to_go_on(message: str) -> str:
    found = re.search(r"; to go on, repeat the command with --after ([-0-9T:.]+Z)$", message)
    assert found is not None, message
    return found[1]


def test_the_controller_is_the_last(cluster: FakeCluster, brokers: Brokers) -> None:
    result = cluster.run(*ROLLING)
    assert (result.exit_code, result.stdout) == (0, "Restarted 0, 2, 1.\n"), result.stderr
    assert brokers.stopped == [0, 2, 1]
    assert cluster.run(*ROLLING, "2").stdout == "Restarted 2.\n"


def test_the_brokers_of_a_host_come_one_after_the_other(
    cluster: FakeCluster, brokers: Brokers
) -> None:
    brokers.hosts = {0: "m0", 1: "m1", 2: "m1", 3: "m0"}
    for broker_id in (0, 1, 2, 3):
        if broker_id < 3:
            cluster.unregister(broker_id)
        brokers.start(broker_id)
    cluster.elect(1)
    result = cluster.run(*ROLLING)
    assert result.stdout == "Restarted 0, 3, 2, 1.\n", result.stderr
    assert brokers.stopped == [0, 3, 2, 1]


def test_the_command_stops_at_a_broker_that_does_not_return_and_goes_on_later(
    cluster: FakeCluster, brokers: Brokers
) -> None:
    brokers.stay_away.add(2)
    message = last_line(cluster.run(*ROLLING, *SOON).stderr)
    assert "broker 2 was started, but has not registered within" in message
    assert brokers.stopped == [0, 2]
    assert "broker 2 is not registered: start it first" in last_line(cluster.run(*ROLLING).stderr)
    brokers.stay_away.clear()
    brokers.start(2)
    result = cluster.run(*ROLLING, "--after", time_to_go_on(message))
    assert (result.exit_code, result.stdout) == (0, "Restarted 1.\n"), result.stderr
    assert brokers.stopped == [0, 2, 1]


@pytest.mark.parametrize("is_back", [True, False])
def test_a_broker_in_another_session_has_not_restarted(
    cluster: FakeCluster, brokers: Brokers, tmp_path: Path, *, is_back: bool
) -> None:
    brokers.stay_away.add(2)
    after = time_to_go_on(last_line(cluster.run(*ROLLING, *SOON).stderr))
    brokers.stay_away.clear()
    brokers.start(2)
    cluster.unregister(1)
    ids = tmp_path / "ids"
    start = f"echo {{id}} >> {ids}"
    with ThreadPoolExecutor(1) as thread:
        if is_back:
            brokers.register(1)
            cluster.elect(1)
        else:
            cluster.elect(0)
        rolling = ("restart", "--rolling", "--start", start, "--timeout-ms", "3000")
        running = thread.submit(cluster.run, *rolling, "--after", after)
        if not is_back:
            eventually(partial(has_started, ids, 1), "broker 1 is started, but runs already")
            brokers.register(1)
        assert running.result(TIMEOUT_S).stdout == "Restarted 1.\n"
    assert brokers.stopped == [0, 2, 1]


def test_a_broker_that_does_not_run_is_started_when_the_command_goes_on(
    cluster: FakeCluster, brokers: Brokers, tmp_path: Path
) -> None:
    brokers.stay_away.add(2)
    after = time_to_go_on(last_line(cluster.run(*ROLLING, *SOON).stderr))
    ids = tmp_path / "ids"
    start = f"echo {{id}} $REGENT_BROKER_ID >> {ids}"
    cluster.run("restart", "--rolling", "--start", start, "--after", after, *SOON)
    assert ids.read_text() == "2 2\n"


def test_all_brokers_that_do_not_run_are_started_before_their_replicas_are_awaited(
    cluster: FakeCluster, brokers: Brokers, tmp_path: Path
) -> None:
    for broker_id in (0, 2):
        cluster.unregister(broker_id)
    ids = tmp_path / "ids"
    start = f"echo {{id}} >> {ids}"
    rolling = ("restart", "--rolling", "--start", start, "--after", EARLIER, "--timeout-ms", "3000")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(cluster.run, *rolling)
        for broker_id in (0, 2):
            eventually(partial(has_started, ids, broker_id), f"broker {broker_id} is started")
            brokers.start(broker_id)
        assert "Restarted 0, 2" in running.result(TIMEOUT_S).stdout


def test_the_command_to_start_a_broker_is_run_again_as_long_as_it_does_not_register(
    cluster: FakeCluster, brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`systemctl start` does nothing while the former process has not ended."""
    monkeypatch.setattr(restart, "_START_AGAIN_S", 0.1)
    brokers.stay_away.add(2)
    ids = tmp_path / "ids"
    start = f"echo {{id}} >> {ids}"
    cluster.run("restart", "--rolling", "--start", start, "--timeout-ms", "1000", "2")
    assert read(ids).count("2\n") > 1


def has_started(ids: Path, broker_id: BrokerId) -> bool:
    return f"{broker_id}\n" in read(ids)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_no_broker_is_stopped_while_replicas_are_behind(
    cluster: FakeCluster, brokers: Brokers
) -> None:
    cluster.put_state(T0, 0, (0, 1))
    message = last_line(cluster.run(*ROLLING, *SOON).stderr)
    assert "before broker 0 is stopped: not all replicas are in sync: t-0" in message
    assert brokers.stopped == []


def test_no_broker_is_stopped_without_a_controller(cluster: FakeCluster, brokers: Brokers) -> None:
    cluster.zookeeper.expire(cluster.sessions[1].session_id)
    cluster.add_broker(1, control_endpoint="tcp://127.0.0.1:1")
    assert "there is no controller" in last_line(cluster.run(*ROLLING, *SOON).stderr)
    assert brokers.stopped == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--rolling",), "does not belong to a cluster on this machine: say with --start"),
        (("--rolling", "--start", ":", "7"), "broker 7 is not registered"),
    ],
)
def test_what_cannot_be_started_again_is_not_stopped(
    cluster: FakeCluster, brokers: Brokers, words: tuple[str, ...], expected: str
) -> None:
    assert expected in failing(cluster.run("restart", *words))
    assert brokers.stopped == []


def test_brokers_of_kafka_are_left_to_their_tools(cluster: FakeCluster, brokers: Brokers) -> None:
    cluster.add_broker(5)
    assert "broker 5 is one of Kafka" in failing(cluster.run(*ROLLING))
    assert cluster.run(*ROLLING, "0").stdout == "Restarted 0.\n"


def test_a_command_that_fails_stops_the_restart(cluster: FakeCluster, brokers: Brokers) -> None:
    result = cluster.run("restart", "--rolling", "--start", "exit 3")
    assert "broker 0 has not started: 'exit 3' ended with 3; to go on, " in last_line(result.stderr)
    assert brokers.stopped == [0]


def test_the_way_must_be_named(cluster: FakeCluster) -> None:
    assert cluster.run("restart").exit_code == 2


def last_line(text: str) -> str:
    return text.splitlines()[-1]


@pytest.mark.parametrize(("release", "named"), [(None, "0.3.0 or earlier"), ("9.0", "9.0")])
def test_brokers_that_would_refuse_those_of_this_release_are_not_restarted_one_by_one(
    cluster: FakeCluster, brokers: Brokers, release: str | None, named: str
):
    """The first would get no LeaderAndIsr from the others' controller, and never be in sync."""
    cluster.unregister(2)
    version = release and "9.0"
    cluster.register_as(
        BrokerInfo(2, (), None, "tcp://h:1", release=release, control_version=version)
    )
    result = cluster.run(*ROLLING)
    assert result.exit_code == 1
    assert f"broker 2 of release {named} takes no control requests" in result.stderr
    assert "stop all brokers, and start all with" in result.stderr
    assert "--after" not in result.stderr
    assert brokers.stopped == []
