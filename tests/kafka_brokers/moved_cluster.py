"""Three brokers in one ZooKeeper, each Kafka's or ours, moved by the commands of a page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from confluent_kafka.admin import AdminClient, NewTopic

from regent.config.command_line import COMMAND
from regent.core.model import BrokerId
from regent.testing.waits import eventually, next_line, scaled
from tests.kafka_brokers.genuine_broker import VERSION, GenuineBroker
from tests.kafka_brokers.moving_load import COMPACTED, COPIES, PARTITIONS, TOPICS, Settings

PAGE: Final = Path(__file__).parents[2] / "docs" / "migration.md"
BROKERS: Final = (1, 2, 3)
WAIT_S: Final = scaled(90.0)
_BLOCK: Final = r"<!-- {name} -->\n```\n(.*?)```"
_ZOOKEEPER: Final = "zk1:2181/kafka"
_SETTINGS: Final[Mapping[str, object]] = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "log.cleaner.backoff.ms": 500,
    "replica.lag.time.max.ms": 5_000,
    "default.replication.factor": 3,
}
_COMPACTED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}


class MovedCluster:
    """Brokers that run as one kind or the other; their ids, addresses and logs stay."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        version: str = VERSION,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.zookeeper = zookeeper
        self._keys = directory / "keys"
        self.kafkas = {
            broker: GenuineBroker(
                *(directory / f"broker-{broker}", broker, zookeeper),
                version=version,
                settings={**_SETTINGS, **(settings or {})},
            )
            for broker in BROKERS
        }
        self.ours: dict[BrokerId, subprocess.Popen[str]] = {}
        self._stack = ExitStack()
        self._page = PAGE.read_text()
        self._public_key = ""

    def __enter__(self) -> Self:
        for kafka in self.kafkas.values():
            self._stack.callback(kafka.close)
            kafka.start()
        for kafka in self.kafkas.values():
            kafka.await_serving()
        (self._public_key,) = re.findall(r"\b[0-9a-f]{64}\b", self.follow("key", BROKERS[0])[0])
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.ours.values():
            process.kill()
            process.communicate(timeout=WAIT_S)
        self._stack.close()

    @property
    def clients(self) -> Settings:
        """What a client needs."""
        servers = ",".join(kafka.bootstrap_server for kafka in self.kafkas.values())
        return {"bootstrap.servers": servers}

    def create_topics(self, settings: Settings | None = None) -> None:
        """Create the topics of the load."""
        admin = AdminClient({**self.clients, **(settings or {})})
        safe = {"min.insync.replicas": "2"}
        topics = [
            NewTopic(
                *(topic, PARTITIONS, len(BROKERS)),
                config={**safe, **(_COMPACTED if topic == COMPACTED else {})},
            )
            for topic in TOPICS
        ]
        eventually(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) == 3, "three", WAIT_S)
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)

    # --- the commands of the page ---

    def follow(self, block: str, broker: BrokerId) -> list[str]:
        """Run the commands of a block of the page on the machine of a broker.

        Returns the output of each.
        """
        found = re.search(_BLOCK.format(name=block), self._page, re.DOTALL)
        assert found is not None, f"{PAGE} has no block {block}"
        text = found[1]
        for of_page, here in {
            _ZOOKEEPER: self.zookeeper,
            "~/regent-keys": str(self._keys),
            "PUBLIC_KEY": self._public_key,
            "/etc/kafka/": "",
            "/var/lib/kafka/regent-1": f"regent-{broker}",
            "shutdown 1": f"shutdown {broker}",
        }.items():
            text = text.replace(of_page, here)
        lines = text.splitlines()
        return [self._perform(line, broker) for line in lines]

    def _perform(self, line: str, broker: BrokerId) -> str:
        kafka = self.kafkas[broker]
        if line.startswith("kafka-server-stop.sh"):
            kafka.stop()
        elif line.startswith("kafka-server-start.sh"):
            kafka.start()
            kafka.await_serving(WAIT_S)
        elif line.startswith("regent broker "):
            return self._start(shlex.split(line.removesuffix(" &"))[1:], broker)
        else:
            output = self._shell(line, kafka.directory)
            if line.startswith("regent brokers shutdown"):
                self.ours.pop(broker).communicate(timeout=WAIT_S)
            return output
        return ""

    def _shell(self, line: str, folder: Path) -> str:
        functions = f'regent() {{ {shlex.join(COMMAND)} "$@"; }}\n'
        ended = subprocess.run(
            ["bash", "-c", functions + line],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("REGENT_")},
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def _start(self, words: list[str], broker: BrokerId) -> str:
        folder = self.kafkas[broker].directory
        with (folder / "regent.out").open("ab") as errors:
            process = subprocess.Popen(
                [*COMMAND, *words],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.ours[broker] = process
        line = next_line(process, f"broker {broker} is ready", WAIT_S)
        assert line.startswith("ready: "), (folder / "regent.out").read_text()
        return line

    # --- what is on the disks ---

    def differing_logs(self) -> list[str]:
        """Return the partitions whose replicas have not the same bytes.

        Logs that are compacted, each broker for itself, are not compared.
        """
        topics = (*(t for t in TOPICS if t != COMPACTED),)
        assert COPIES in topics
        return [
            f"{topic}-{number}"
            for topic in topics
            for number in range(PARTITIONS)
            if len({self._log(broker, f"{topic}-{number}") for broker in BROKERS}) != 1
        ]

    def _log(self, broker: BrokerId, name: str) -> bytes:
        folder = self.kafkas[broker].directory / "data" / name
        return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))
