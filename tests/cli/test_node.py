"""``node``: its options, the ports of its brokers, and its health."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from regent.broker.metrics.metrics_server import MetricsServer
from regent.cli import node as node_module
from regent.cli.cluster import ClusterOptionsError
from regent.cli.node import NodeProbes, cores, node
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.cluster.cluster_plan import ClusterPlan
from regent.testing.waits import scaled

HOST = "127.0.0.1"


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the function that gives the plan of a command line."""
    plans: list[ClusterPlan] = []

    def run(plan: ClusterPlan, beside: object) -> None:
        plans.append(plan)
        del beside

    monkeypatch.setattr(node_module, "run", run)
    monkeypatch.setattr(node_module, "cores", lambda: 7)

    def plan_of(*arguments: str) -> ClusterPlan:
        data_dir = str(tmp_path / "data")
        options = ["--zookeeper", "zk:2181", "--first-id", "100", "--data-dir", data_dir]
        result = CliRunner().invoke(node, [*options, *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return plans[-1]

    return plan_of


def options_of(plan: ClusterPlan, broker_id: int) -> dict[str, str]:
    command = plan.broker_command(broker_id, plan.broker_ports(broker_id), "zk:2181")
    arguments = command[command.index("broker") + 1 :]
    return {name.removeprefix("--"): v for name, v in zip(*[iter(arguments)] * 2, strict=True)}


def test_a_node_has_a_broker_for_each_pair_of_cores_with_consecutive_ids_and_ports(
    planned: Any, tmp_path: Path
) -> None:
    plan = planned()
    assert list(plan.broker_ids) == [100, 101, 102]
    last = options_of(plan, 102)
    ports = ("port", "control-port", "replication-port", "metrics-port")
    assert [last[name] for name in ports] == ["9094", "10094", "11094", "12094"]
    assert last["data-dir"] == str(tmp_path / "data/broker-102")
    assert last["node-host"] == HOST, "the host that it advertises"
    assert options_of(planned("--node-host", "m1"), 100)["node-host"] == "m1"


def test_later_the_data_folders_say_how_many_brokers_there_are(
    planned: Any, tmp_path: Path
) -> None:
    for broker_id in (100, 101):
        (tmp_path / f"data/broker-{broker_id}").mkdir(parents=True)
    assert list(planned().broker_ids) == [100, 101]
    assert list(planned("--brokers", "3").broker_ids) == [100, 101, 102]
    with pytest.raises(ClusterOptionsError, match=r"has the data of broker 101, and this node has"):
        planned("--brokers", "1")


def test_the_ports_of_the_settings_file_are_those_of_the_first_broker(
    planned: Any, tmp_path: Path
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        """[broker]
host = "127.0.0.1"
listeners = "A://127.0.0.1:9000,B://127.0.0.1:0,C://127.0.0.1:9200"
listener_security_protocol_map = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
inter_broker_listener_name = "C"
advertised_listeners = "A://h.example:7000,C://h.example:9200"
advertised_control_port = 500
"""
    )
    plan = planned("--config", str(file))
    second = options_of(plan, 101)
    assert second["listeners"] == "A://127.0.0.1:9001,B://127.0.0.1:0,C://127.0.0.1:9201"
    assert second["advertised-listeners"] == "A://h.example:7001,C://h.example:9201"
    assert (second["advertised-control-port"], second["port"]) == ("501", "0")
    assert second["node-host"] == "h.example"


def test_wrong_options_are_one_line(planned: Any) -> None:
    for number in ("0", "many", "101"):
        with pytest.raises(AssertionError, match="is neither auto nor a number from 1 to 100"):
            planned("--brokers", number)
    with pytest.raises(ClusterOptionsError, match=r"broker 100: .*node_host must be up to 255"):
        planned("--node-host", "a b")


@pytest.mark.parametrize("name", ["LISTENERS", "ADVERTISED_LISTENERS", "ADVERTISED_PORT"])
def test_ports_of_the_environment_are_refused(
    planned: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"REGENT_{name}", "CLIENTS://h:9092" if "LIST" in name else "9092")
    with pytest.raises(ClusterOptionsError, match=f"REGENT_{name} would give all brokers"):
        planned("--first-id", "0")


def test_a_quota_of_the_control_group_counts(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    unlimited = cores(file)
    for text, expected in (("150000 100000", 1), ("max 100000", unlimited), ("?", unlimited)):
        file.write_text(text)
        assert cores(file) == expected


class Broker:
    """What answers for a broker; ``why_not`` is its answer to ``/ready``."""

    def __init__(self, stack: ExitStack) -> None:
        self.why_not = ""
        self.server = MetricsServer(HOST, 0)
        self.server.probes = self
        stack.callback(self.server.close)

    def why_not_ready(self) -> str:
        return self.why_not

    def is_controller(self) -> bool:
        return False


class Node:
    """The health of a node of the brokers 5 and 6."""

    def __init__(self, stack: ExitStack, data_dir: Path) -> None:
        self.brokers = {broker_id: Broker(stack) for broker_id in (5, 6)}
        self.file = ClusterFile(data_dir / "cluster.json", "zk:1")
        for broker_id, broker in self.brokers.items():
            entry = BrokerEntry(broker_id, 1, "elsewhere", 1, 1, 1, broker.server.port)
            self.file.brokers[broker_id] = entry
        self.file.write()
        self.server = MetricsServer(HOST, 0)
        stack.callback(self.server.close)
        probes = NodeProbes(self.file.path, (5, 6), HOST, has_tls=False)
        self.server.probes, self.server.why_not_healthy = probes, probes.why_not_healthy

    def ask(self, path: str) -> tuple[int, str]:
        with suppress(HTTPError):
            url = f"http://{HOST}:{self.server.port}{path}"
            with urlopen(url, timeout=scaled(10)) as answer:
                return answer.status, answer.read().decode().strip()
        probes = self.server.probes
        why = self.server.why_not_healthy() if path == "/health" else probes.why_not_ready()
        return HTTPStatus.SERVICE_UNAVAILABLE, why


@pytest.fixture
def a_node(tmp_path: Path) -> Iterator[Node]:
    with ExitStack() as stack:
        yield Node(stack, tmp_path)


def test_a_node_is_ready_when_all_its_brokers_are(a_node: Node) -> None:
    assert (a_node.ask("/health"), a_node.ask("/ready")) == ((200, "yes"), (200, "yes"))
    a_node.brokers[6].why_not = "the broker starts or stops"
    assert a_node.ask("/health") == (200, "yes")
    assert a_node.ask("/ready") == (503, "broker 6: the broker starts or stops")


def test_a_node_is_not_healthy_without_one_of_its_brokers(a_node: Node) -> None:
    del a_node.file.brokers[5]
    a_node.file.write()
    assert a_node.ask("/health") == (503, "broker 5: does not run")
    a_node.brokers[6].server.close()
    status, why = a_node.ask("/health")
    assert status == 503
    assert why.startswith("broker 5: does not run; broker 6: does not answer (")
    a_node.file.remove()
    assert a_node.ask("/ready") == (503, "broker 5: does not run; broker 6: does not run")
