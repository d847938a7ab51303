"""Three brokers of Kafka under a controller of Kafka and under ours.

The same brokers and partitions, one ZooKeeper server, everything on this machine, replication
factor 3. Ours are two brokers of Regent with ``no_replicas``.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Final

from confluent_kafka import ElectionType
from confluent_kafka.admin import NewTopic

from bench.clients import new_admin
from bench.frame import benchmark, sizes
from bench.kafka_connection import Address, KafkaConnection
from bench.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, sample
from bench.result import Case
from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.config.command_line import COMMAND
from regent.core.model import BrokerId
from regent.testing.waits import eventually, next_line
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import BrokerIdZNode
from tests.kafka_brokers.genuine_broker import GenuineBroker
from tests.support.free_ports import free_ports

KAFKA: Final = (1, 2, 3)
OURS: Final = (10, 11)
SESSION_MS: Final = 6_000
TIMEOUT_S: Final = 240.0
ASK_EVERY_S: Final = 0.01


@benchmark()
@sizes(200, 10)
def kafka_controllers(topics: int, partitions: int) -> Iterator[Case]:
    """Kill -9 of the controller, and of a broker of Kafka that is not the controller.

    ``gone_s`` is until ZooKeeper has ended the session of the killed process; brokers of Kafka have
    sessions of 6 s here. ``seconds`` is from then until every remaining broker of Kafka tells
    clients the right controller, and a live leader for every partition of up to 50 topics. Only
    under Kafka the controller leads partitions itself. ``next`` is the next controller; under ours,
    clients must be told the other of ours, even if a broker of Kafka was elected before.
    """
    with Mixed() as mixed:
        names = mixed.create(topics, partitions)
        shape = {"partitions": topics * partitions}
        for rules in ("regent", "kafka"):
            for killed in ("broker", "controller"):
                mixed.let_rule(rules)
                figures = mixed.kill(killed, sample(names))
                yield Case({"controller": rules, "killed": killed, **shape}, figures)
                mixed.recover(names)


class Mixed:
    """Three brokers of Kafka and up to two of ours."""

    def __enter__(self) -> Mixed:
        self._open = ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._folder = folder
        server = EmbeddedZooKeeper(folder / "zookeeper")
        server.start()
        self._open.callback(server.stop)
        self._zookeeper = server.address
        settings = {"zookeeper.session.timeout.ms": SESSION_MS}
        self._kafka = {
            b: GenuineBroker(folder / f"kafka-{b}", b, server.address, settings=settings)
            for b in KAFKA
        }
        for broker in self._kafka.values():
            log4j = broker.directory / "log4j.properties"
            log4j.write_text(log4j.read_text().replace("TRACE", "INFO"))  # as Kafka's own file
            self._open.enter_context(broker)
        for broker in self._kafka.values():
            broker.await_serving()
        self._await_metadata(KAFKA, [], lambda row: True)  # all know the controller
        client = ZooKeeperClient(server.address, 10_000, on_watch=lambda _: None)
        client.start(10.0, create_chroot=False)
        self._open.callback(client.close, timeout_s=1.0)
        self._client, self._admin = client, ZkAdminStore(client)
        self._ours: dict[BrokerId, subprocess.Popen[str]] = {}
        self._ports = dict(zip(OURS, free_ports(len(OURS)), strict=True))
        self._open.callback(self._stop_ours, signal.SIGKILL)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._open.close()

    def create(self, topics: int, partitions: int) -> list[str]:
        """Create the topics; each begins with the next broker."""
        names = [f"topic-{number:05d}" for number in range(topics)]
        new = [
            NewTopic(
                name,
                partitions,
                replica_assignment=[
                    [KAFKA[(first + number + j) % 3] for j in range(3)]
                    for number in range(partitions)
                ],
            )
            for first, name in enumerate(names)
        ]
        admin = new_admin(self._bootstrap)  # it must live until the last answer
        for made in admin.create_topics(new).values():
            made.result(TIMEOUT_S)
        self._await_metadata(KAFKA, names, lambda row: len(row.isr_nodes) == 3)
        return names

    def let_rule(self, who: str) -> None:
        """Make one of ours the controller, or stop them so that Kafka's brokers elect one."""
        if who == "kafka":
            self._stop_ours(signal.SIGTERM)
            eventually(lambda: self._controller() in KAFKA, "a broker of Kafka rules", TIMEOUT_S)
            return
        for broker_id in OURS:
            if broker_id not in self._ours:
                self._start(broker_id)
        eventually(lambda: self._controller() in OURS, "a broker of ours rules", TIMEOUT_S)

    def kill(self, killed: str, names: list[str]) -> dict[str, Any]:
        """End a process by kill -9, and measure until clients are told."""
        ruler = self._controller()
        self._await_metadata(KAFKA, names, lambda row: True, ruler)
        victim = ruler if killed == "controller" else next(b for b in KAFKA if b != ruler)
        remaining = [b for b in KAFKA if b != victim]
        told = ruler if victim != ruler else next((b for b in self._ours if b != victim), None)
        began = monotonic()
        if victim in OURS:
            self._ours.pop(victim).kill()
        else:
            self._kafka[victim].signal(signal.SIGKILL)
        path = BrokerIdZNode.path(victim)
        eventually(lambda: self._client.get(path) is None, "it is gone", TIMEOUT_S)
        gone = monotonic()
        self._await_metadata(
            remaining,
            names,
            lambda row: row.leader_id not in (victim, -1),
            told,
            other_than=victim,
        )
        ended = monotonic()
        after = self._controller()
        return {
            "gone_s": round(gone - began, 3),
            "seconds": round(ended - gone, 3),
            "next": "regent" if after in OURS else "kafka",
        }

    def recover(self, names: list[str]) -> None:
        """Start again what was killed, wait for all replicas, and elect the preferred leaders."""
        for broker_id, broker in self._kafka.items():
            if self._client.get(BrokerIdZNode.path(broker_id)) is None:
                broker.kill()
                broker.start()
                broker.await_serving()
        self._await_metadata(KAFKA, names, lambda row: len(row.isr_nodes) == 3)
        admin = new_admin(self._bootstrap)
        admin.elect_leaders(ElectionType.PREFERRED, None).result(TIMEOUT_S)
        self._await_metadata(KAFKA, names, lambda row: row.leader_id == row.replica_nodes[0])

    # --- inside ---

    @property
    def _bootstrap(self) -> str:
        return ",".join(broker.bootstrap_server for broker in self._kafka.values())

    def _controller(self) -> BrokerId:
        found = self._admin.read_controller()
        return -1 if found is None else found.broker_id

    def _start(self, broker_id: BrokerId) -> None:
        command = [*COMMAND, "broker", "--id", str(broker_id), "--no-replicas"]
        command += [
            "--zookeeper",
            self._zookeeper,
            "--data-dir",
            str(self._folder / f"regent-{broker_id}"),
        ]
        command += ["--listeners", f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}"]
        command += ["--control-port", "0", "--metrics-port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._ours[broker_id] = process
        next_line(process, f"broker {broker_id} is ready", TIMEOUT_S)

    def _stop_ours(self, number: signal.Signals) -> None:
        for process in self._ours.values():
            process.send_signal(number)
        for process in self._ours.values():
            process.wait(TIMEOUT_S)
        self._ours.clear()

    def _await_metadata(
        self,
        brokers: Collection[BrokerId],
        names: list[str],
        is_so: Callable[[Any], bool],
        ruler: BrokerId | None = None,
        other_than: BrokerId | None = None,
    ) -> None:
        """Wait until these brokers tell clients so of all partitions, and of the controller."""
        ends = monotonic() + TIMEOUT_S

        def is_told(answer: MetadataResponse) -> bool:
            rows = [row for topic in answer.topics for row in topic.partitions]
            told = answer.controller_id
            is_ruler = told >= 0 and told != other_than if ruler is None else told == ruler
            return is_ruler and len(rows) >= len(answer.topics) and all(map(is_so, rows))

        async def wait(broker_id: BrokerId) -> None:
            address = Address.of(self._kafka[broker_id].bootstrap_server)
            async with await KafkaConnection.to(address) as connection:
                for asked in (names[:1], names):
                    topics = tuple(MetadataRequestTopic(name=name) for name in asked)
                    while not is_told(await connection.ask(MetadataRequest(topics=topics))):
                        assert monotonic() < ends, f"broker {broker_id} is not told"
                        await asyncio.sleep(ASK_EVERY_S)

        async def wait_for_all() -> None:
            await asyncio.gather(*map(wait, brokers))

        asyncio.run(wait_for_all())
