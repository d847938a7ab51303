"""Brokers and ZooKeeper on separate machines, simulated by network namespaces.

Links are cut in one direction: packets from one machine are lost, those of the other arrive.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.command_line import COMMAND
from regent.core.model import BrokerId, TopicPartition
from regent.testing.cluster_observer import ClusterObserver
from regent.testing.regent_cluster import START_TIMEOUT_S
from regent.testing.waits import await_end, eventually, next_line, scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.support.breakable_cluster import read_log
from tests.support.histories import Logs, check, summary
from tests.support.load import Load
from tests.support.network_namespaces import Host, HostNetwork, NamespacesUnavailableError

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

BROKERS = (0, 1, 2)
TIMEOUT_S = scaled(60.0)
ZOOKEEPER_PORT, KAFKA_PORT = 2181, 9092
SETTINGS = """
[broker]
allow_unauthenticated = true
replica_lag_time_max_ms = 2000
[zookeeper]
session_timeout_ms = 2000
"""


class SeveralMachines(ClusterObserver):
    """ZooKeeper, three brokers and a client, each on a host; the caller is inside the client's.

    One broker listens on all addresses and advertises one, another on an IPv4 address, the third on
    an IPv6 address.
    """

    def __init__(self, directory: Path, network: HostNetwork) -> None:
        self.network = network
        self.zookeeper_host, *self.brokers, _client = network.hosts
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        config = directory / "broker.toml"
        config.write_text(SETTINGS)
        with ExitStack() as undo:
            undo.callback(self._end)
            self._start(self.zookeeper_host, "zookeeper", "--host", "::", "--port", "2181")
            listening = [
                ("--host", "0.0.0.0", "--advertised-host", self.brokers[0].ipv4),
                ("--host", self.brokers[1].ipv4),
                ("--host", self.brokers[2].ipv6),
            ]
            for broker_id, hosts in enumerate(listening):
                server = self.zookeeper_host.ipv4 if broker_id < 2 else f"[{self._ipv6}]"
                options = ("--zookeeper", f"{server}:{ZOOKEEPER_PORT}", "--config", str(config))
                identity = ("broker", "--id", str(broker_id))
                self._start(self.brokers[broker_id], *identity, *hosts, *options)
            address = f"{self.zookeeper_host.ipv4}:{ZOOKEEPER_PORT}"
            self._session = ZooKeeperClient(address, 10_000, on_watch=lambda _: None)
            self._session.start(scaled(10))
            self._undo = undo.pop_all()

    @property
    def zookeeper(self) -> ZooKeeperClient:
        """See ``ClusterObserver.zookeeper``."""
        return self._session

    @property
    def _ipv6(self) -> str:
        return self.zookeeper_host.ipv6

    @property
    def bootstrap_servers(self) -> str:
        """The address for Kafka's clients."""
        first, second, third = self.brokers
        hosts = (first.ipv4, second.ipv4, f"[{third.ipv6}]")
        return ",".join(f"{host}:{KAFKA_PORT}" for host in hosts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.zookeeper.close()
        self._undo.close()

    def _start(self, host: Host, *command: str) -> None:
        data_dir = self._directory / f"{command[0]}-{len(self._processes)}"
        with host.inside():
            process = subprocess.Popen(
                ending_with_this_process([*COMMAND, *command, "--data-dir", str(data_dir)]),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._processes.append(process)
        ready = next_line(process, f"{command[0]} is ready", START_TIMEOUT_S)
        assert ready.startswith("ready: "), f"{ready!r} {await_end(process, command[0])}"

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                await_end(process, "a process of a machine")
            except AssertionError:
                process.kill()
                await_end(process, "a killed process of a machine")

    def create_topic(self, topic: str, partitions: int) -> list[TopicPartition]:
        """Create a topic with three replicas and min.insync.replicas 2."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        wanted = NewTopic(topic, partitions, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([wanted])[topic].result(TIMEOUT_S)
        eventually(lambda: len(self.partition_states(topic)) == partitions, f"{topic} has leaders")
        return [TopicPartition(topic, number) for number in range(partitions)]

    def logs(self, partitions: Sequence[TopicPartition]) -> Logs:
        """Return the records on the disks now."""
        return {
            p: {
                broker: read_log(
                    self._directory / f"broker-{broker + 1}/log/{p.topic}-{p.partition}"
                )
                for broker in BROKERS
            }
            for p in partitions
        }

    def agreed_logs(self, partitions: Sequence[TopicPartition]) -> Logs:
        """Wait until the logs of all replicas are equal; return their records."""

        def is_agreed() -> bool:
            replicas = self.logs(partitions).values()
            return all(log == logs[0] for logs in replicas for log in logs.values())

        eventually(is_agreed, "all replicas have the same")
        return self.logs(partitions)

    def await_missing_in_isr(self, broker_id: BrokerId) -> None:
        """Wait until a broker has left an ISR."""

        def is_missing() -> bool:
            states = [state.leader_and_isr for state in self.partition_states("orders").values()]
            return any(broker_id not in state.isr for state in states)

        eventually(is_missing, f"broker {broker_id} has left an ISR")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[SeveralMachines]:
    with ExitStack() as stack:
        try:
            network = stack.enter_context(HostNetwork(5))
        except NamespacesUnavailableError as error:
            pytest.skip(str(error))
        stack.enter_context(network.hosts[-1].inside())
        yield stack.enter_context(SeveralMachines(tmp_path, network))


def test_one_way_cuts_between_machines_lose_no_record(machines: SeveralMachines) -> None:
    partitions = machines.create_topic("orders", 6)
    cut, zookeeper, hosts = machines.network.cut, machines.zookeeper_host, machines.brokers
    machines.await_isr("orders", set(BROKERS))
    with Load(machines.bootstrap_servers, partitions) as load:
        load.await_progress()

        controller = machines.await_controller()
        other = (controller + 1) % 3
        with cut(hosts[other], [hosts[controller]]):
            machines.await_missing_in_isr(other)
            load.await_progress()
        machines.await_isr("orders", set(BROKERS))

        with cut(hosts[controller], [hosts[other]]):
            load.await_progress()
        machines.await_isr("orders", set(BROKERS))

        with cut(hosts[other], [zookeeper]):
            eventually(lambda: machines.broker_epoch(other) is None, "its session has ended")
            load.await_progress()
        machines.await_isr("orders", set(BROKERS))

        controller, epoch = machines.await_controller(), machines.controller_epoch()
        with cut(zookeeper, [hosts[controller]]):
            eventually(lambda: machines.controller_epoch() > epoch, "there is another controller")
            load.await_progress()
        machines.await_isr("orders", set(BROKERS))

        alone = machines.await_controller()
        with cut(hosts[alone], [zookeeper, *(h for h in hosts if h is not hosts[alone])]):
            eventually(
                lambda: machines.controller() not in (None, alone), "there is another controller"
            )
            load.await_progress()
        machines.await_isr("orders", set(BROKERS))

        load.stop_producers()
        logs = machines.agreed_logs(partitions)
        load.finish_consumers({p: len(logs[p][0]) for p in partitions})
    assert load.acknowledged
    broken = summary(check(load.history, logs))
    assert not broken, broken
