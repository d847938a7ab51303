"""Three brokers in one ZooKeeper, each Kafka's or ours, moved by the commands of a page."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Self

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, OffsetSpec, ResourceType
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from regent.config.command_line import COMMAND
from regent.config.private_files import write_private
from regent.core.model import BrokerId
from regent.testing.waits import eventually, next_line, scaled
from tests.kafka_brokers.genuine_broker import VERSION, GenuineBroker
from tests.kafka_brokers.moving_load import COMPACTED, COPIES, PARTITIONS, TOPICS, Settings
from tests.kafka_brokers.secured import (
    APP,
    BROKER,
    PROTOCOL,
    STRANGER,
    Secured,
    acl,
    add_first_user,
    filter_of,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "migration.md"
BROKERS: Final = (1, 2, 3)
WAIT_S: Final = scaled(90.0)
_REFUSED_S: Final = scaled(1.0)
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


def shows(client: AdminClient, topics: set[str]) -> bool:
    """Whether these are the topics that a client may see."""
    return {*client.list_topics(timeout=WAIT_S).topics} == topics


class MovedCluster:
    """Brokers that run as one kind or the other; their ids, addresses and logs stay."""

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        *,
        version: str = VERSION,
        secured: Secured | None = None,
        settings: Mapping[str, object] | None = None,
        log_dirs: Sequence[str] = ("data",),
        more_listeners: str = "",
    ) -> None:
        self.zookeeper = zookeeper
        self._log_dirs = log_dirs
        self._secured = secured
        self._version = version
        protocol, login = "PLAINTEXT", {}
        if secured is not None:
            protocol, login = PROTOCOL, secured.client(BROKER)
        self._keys = directory / "keys"
        self.kafkas = {
            broker: GenuineBroker(
                *(directory / f"broker-{broker}", broker, zookeeper),
                version=version,
                settings={
                    **_SETTINGS,
                    "log.dirs": ",".join(
                        str(directory / f"broker-{broker}" / name) for name in log_dirs
                    ),
                    **(settings or {}),
                    **({} if secured is None else secured.broker),
                },
                protocol=protocol,
                more_listeners=more_listeners,
                login=login,
            )
            for broker in BROKERS
        }
        if secured is not None:
            for kafka in self.kafkas.values():
                text = secured.command_config(BROKER)
                write_private(kafka.directory / "admin.properties", text)
        self.processes: dict[BrokerId, subprocess.Popen[str]] = {}
        self._stack = ExitStack()
        self._page = PAGE.read_text()
        self._public_key = ""
        address, slash, name = zookeeper.partition("/")
        self.chroot = slash + name
        self.znodes = KazooClient(address)

    def __enter__(self) -> Self:
        self.znodes.start(timeout=WAIT_S)
        self._stack.callback(self.znodes.close)
        self._stack.callback(self.znodes.stop)
        if self._secured is not None:
            self.znodes.ensure_path(self.chroot)
            add_first_user(self.zookeeper, self._version)
        for kafka in self.kafkas.values():
            self._stack.callback(kafka.close)
            kafka.start()
        for kafka in self.kafkas.values():
            kafka.await_serving()
        admin = self.admin()
        eventually(lambda: len(admin.list_topics(timeout=WAIT_S).brokers) == 3, "three", WAIT_S)
        (self._public_key,) = re.findall(r"\b[0-9a-f]{64}\b", self.follow("key", BROKERS[0])[0])
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate(timeout=WAIT_S)
        self._stack.close()

    @property
    def clients(self) -> Settings:
        """What a client of the load needs."""
        return self.clients_of(APP)

    def clients_of(self, user: str, *brokers: BrokerId) -> dict[str, str]:
        """Return what a client of a user needs; at first it connects to the brokers named."""
        servers = ",".join(self.kafkas[one].bootstrap_server for one in brokers or BROKERS)
        login = {} if self._secured is None else self._secured.client(user)
        return {"bootstrap.servers": servers, **login}

    def admin(self, *brokers: BrokerId) -> AdminClient:
        """Return a client that may do everything."""
        return AdminClient({**self.clients_of(BROKER, *brokers)})

    def create_topics(self) -> None:
        """Create the topics of the load, and wait until each partition has a leader that serves it.

        Kafka takes the first batch of a producer that it does not know with any sequence number. If
        the leader begins between two batches, those before are refused, and "duplicates" then.
        """
        admin = self.admin()
        safe = {"min.insync.replicas": "2"}
        topics = [
            NewTopic(
                *(topic, PARTITIONS, len(BROKERS)),
                config={**safe, **(_COMPACTED if topic == COMPACTED else {})},
            )
            for topic in TOPICS
        ]
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {
            TopicPartition(topic, number): latest
            for topic in TOPICS
            for number in range(PARTITIONS)
        }

        def are_served() -> bool:
            found = admin.list_offsets(wanted, request_timeout=WAIT_S)
            return all(each.exception(WAIT_S) is None for each in found.values())

        eventually(are_served, "each partition has a leader", WAIT_S)

    def allow_stranger(self, is_allowed: bool) -> None:
        """Give a user the right to see a topic, or take it; all brokers must follow.

        No broker lets a wrong password in.
        """
        assert self._secured is not None
        right = acl(STRANGER, ResourceType.TOPIC, COPIES, AclOperation.DESCRIBE)
        admin = self.admin()
        if is_allowed:
            admin.create_acls([right])[right].result(WAIT_S)
        else:
            (deleted,) = admin.delete_acls([filter_of(right)]).values()
            assert deleted.result(WAIT_S) == [right]
        expected = {COPIES} if is_allowed else set()
        for broker in BROKERS:
            server = self.kafkas[broker].bootstrap_server
            client = AdminClient({**self.clients_of(STRANGER, broker)})
            what = f"broker {broker} shows {STRANGER} {expected}"
            eventually(partial(shows, client, expected), what, WAIT_S)
            logins = {"bootstrap.servers": server, **self._secured.client(STRANGER, "wrong")}
            with pytest.raises(KafkaException):
                AdminClient({**logins, "log_level": 0}).list_topics(timeout=_REFUSED_S)

    # --- the commands of the page ---

    def follow(self, block: str, broker: BrokerId, *, has_ended: bool = False) -> list[str]:
        """Run the commands of a block of the page on the machine of a broker.

        The first one is not run if the former process of this broker ``has_ended``. Returns the
        output of each.
        """
        lines = self._lines_of(block, broker)[int(has_ended) :]
        return [self._perform(line, broker) for line in lines]

    def _lines_of(self, block: str, broker: BrokerId) -> list[str]:
        found = re.search(_BLOCK.format(name=block), self._page, re.DOTALL)
        assert found is not None, f"{PAGE} has no block {block}"
        text = found[1]
        for of_page, here in {
            _ZOOKEEPER: self.zookeeper,
            "~/regent-keys": str(self._keys),
            "PUBLIC_KEY": self._public_key,
            "/etc/kafka/": f"{self.kafkas[broker].directory}/",
            "/var/lib/kafka/regent-1": f"regent-{broker}",
            "/var/lib/kafka/stray-logs": "stray-logs",
            "shutdown 1": f"shutdown {broker}",
        }.items():
            text = text.replace(of_page, here)
        return text.splitlines()

    def _perform(self, line: str, broker: BrokerId) -> str:
        kafka = self.kafkas[broker]
        if line.startswith("kafka-server-stop.sh"):
            kafka.signal(signal.SIGTERM)  # as the script, which does not wait
        elif line.startswith("while pgrep"):
            self._shell(line, kafka.directory)
            kafka.await_end()
        elif line.startswith("kafka-server-start.sh"):
            kafka.start()
            kafka.await_serving(WAIT_S)
        elif line.startswith("regent broker "):
            return self._start(shlex.split(line.removesuffix(" &"))[1:], broker)
        else:
            output = self._shell(line, kafka.directory)
            if line.startswith("regent brokers shutdown"):
                self.processes.pop(broker).communicate(timeout=WAIT_S)
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
                [*COMMAND, *words, "--control-port", "0", "--metrics-port", "0"],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.processes[broker] = process
        line = next_line(process, f"broker {broker} is ready", WAIT_S)
        assert line.startswith("ready: "), (folder / "regent.out").read_text()
        return line

    # --- the deaths of brokers ---

    @property
    def ours(self) -> set[BrokerId]:
        """Return the brokers that are of this project now."""
        return {*self.processes}

    @property
    def controller(self) -> BrokerId | None:
        """Return the controller that ZooKeeper names; None: there is none."""
        try:
            return int(json.loads(self.znodes.get(f"{self.chroot}/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def kill(self, broker: BrokerId) -> None:
        """End a broker by ``kill -9``, and wait until the others lead all that it led."""
        self.end(broker)
        self._await_absence(broker)

    def kill_controller(self) -> BrokerId:
        """End the controller by ``kill -9``; a broker of the other kind is elected.

        Meanwhile the others of its kind are paused. Returns which one has ended.
        """
        broker = self.controller
        assert broker is not None
        kind = self.ours if broker in self.ours else {*BROKERS} - self.ours
        others = kind - {broker}
        for other in others:
            self.signal(other, signal.SIGSTOP)
        try:
            self.end(broker)
            eventually(lambda: self.controller not in (None, broker), "another one rules", WAIT_S)
            assert self.controller not in kind
        finally:
            for other in others:
                self.signal(other, signal.SIGCONT)
        self._await_absence(broker)
        return broker

    def let_rule(self, broker: BrokerId, *live: BrokerId) -> None:
        """Let a broker be elected as the controller; meanwhile all other ``live`` ones are paused.

        Then wait until all know it: clients ask one of them who it is.
        """
        others = [other for other in live if other != broker]
        for other in others:
            self.signal(other, signal.SIGSTOP)
        try:
            if self.controller != broker:
                self.znodes.delete(f"{self.chroot}/controller")
            eventually(lambda: self.controller == broker, f"broker {broker} rules", WAIT_S)
        finally:
            for other in others:
                self.signal(other, signal.SIGCONT)
        for one in live:
            admin = self.admin(one)
            eventually(
                lambda admin=admin: admin.list_topics(timeout=WAIT_S).controller_id == broker,  # type: ignore[misc]
                f"broker {one} knows that {broker} rules",
                WAIT_S,
            )

    def start(self, broker: BrokerId, *, is_ours: bool) -> None:
        """Start a broker that has ended, and wait until it serves."""
        for line in self._lines_of("move" if is_ours else "back", broker)[1:-1]:
            self._perform(line, broker)

    def shut_down(self, broker: BrokerId) -> None:
        """End a broker in the controlled way."""
        if broker in self.processes:
            self._perform(self._lines_of("back", broker)[0], broker)
        else:
            self.kafkas[broker].stop()

    def restart(self, broker: BrokerId, *, is_ours: bool) -> None:
        """Start a broker that was killed, as the page does, and wait until all is in sync."""
        self.follow("move" if is_ours else "back", broker, has_ended=True)

    def signal(self, broker: BrokerId, number: signal.Signals) -> None:
        process = self.processes.get(broker)
        if process is None:
            self.kafkas[broker].signal(number)
        else:
            process.send_signal(number)

    def end(self, broker: BrokerId) -> None:
        """Kill a broker, and remove what the session of one of Kafka's leaves for four seconds.

        The guardian of one of ours ends its session. So no paused broker loses its session.
        """
        process = self.processes.pop(broker, None)
        if process is not None:
            process.kill()
            process.communicate(timeout=WAIT_S)
            return
        is_controller = self.controller == broker
        self.kafkas[broker].kill()
        for path in (f"/brokers/ids/{broker}", *(("/controller",) if is_controller else ())):
            self.znodes.delete(self.chroot + path)

    def _await_absence(self, broker: BrokerId) -> None:
        admin = self.admin()

        def is_away() -> bool:
            seen = admin.list_topics(timeout=WAIT_S)
            partitions = [p for topic in seen.topics.values() for p in topic.partitions.values()]
            led = {p.leader for p in partitions}
            return broker not in seen.brokers and led <= {*seen.brokers}

        eventually(is_away, f"broker {broker} is away", WAIT_S)

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
            if len({self.log_of(broker, f"{topic}-{number}") for broker in BROKERS}) != 1
        ]

    def log_of(self, broker: BrokerId, name: str) -> bytes:
        """Return all record batches that a broker has of a partition, such as ``t-0``."""
        return b"".join(
            segment.read_bytes()
            for folder in self.folders_of(broker, name)
            for segment in sorted(folder.glob("*.log"))
        )

    def folders_of(self, broker: BrokerId, name: str) -> list[Path]:
        """Return where a broker has a partition: several while it moves to another directory."""
        folder = self.kafkas[broker].directory
        paths = (folder / log_dir / name for log_dir in self._log_dirs)
        return [path for path in paths if path.is_dir()]
