"""A genuine broker of Kafka in ZooKeeper mode, as a process with a small heap."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Self

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from regent.cluster.embedded_zookeeper import LOOPBACK
from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.java import find_java
from regent.config.private_files import write_private
from regent.core.model import BrokerId
from regent.testing.waits import eventually, scaled
from tests.support.free_ports import free_ports
from tests.support.maven_jars import MavenJars

VERSION: Final = "3.9.1"
JARS: Final[Mapping[str, MavenJars]] = {
    version: MavenJars(
        f"kafka-broker-{version}",
        f'<dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}"'
        ' conf="default->default,runtime"/>'
        '<dependency org="org.slf4j" name="slf4j-reload4j" rev="1.7.36"/>',
        sha256,
        types=("jar", "bundle"),
    )
    for version, sha256 in {
        VERSION: "4a7187d76d86960c8cc101e20d6701170ab2b03708681e112fea247f3bd8e3a1",
        "3.5.2": "b606a91bb5654925b5a99c5614517506d03312be4bf91cb886a8e0dfbd68ce40",
        "2.8.2": "1f974d34cf86e7ddbaf52548e991144693df41707ca978aad876bd082034a182",
    }.items()
}
"""The jars of the brokers by version."""
EACH_VERSION: Final = tuple(
    pytest.param(
        version, marks=[] if version == VERSION else [pytest.mark.nightly, pytest.mark.slow]
    )
    for version in JARS
)
"""The default tier has one."""
TOOLS: Final = MavenJars(
    f"kafka-tools-{VERSION}",
    f'<dependency org="org.apache.kafka" name="kafka-tools" rev="{VERSION}" transitive="false"/>',
    "efd2bf4759b96d101c1041e22d7b0f501a414fcb7b45d4cb8c2432939bce3683",
)
"""Since 3.9 most tools are in a jar of their own."""
_OF_TOOLS: Final[Mapping[str, str]] = {
    "ConsumerGroupCommand": "consumer.group.",
    "DeleteRecordsCommand": "",
    "LeaderElectionCommand": "",
    "LogDirsCommand": "",
    "ReassignPartitionsCommand": "reassign.",
    "TopicCommand": "",
}
"""Their packages there."""

STOP_S: Final = 30.0
_JVM_OPTIONS: Final = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Dzookeeper.fips-mode=false",  # so that it may log in to ZooKeeper by DIGEST-MD5
)
_SETTINGS: Final[Mapping[str, object]] = {
    "num.network.threads": 1,
    "num.io.threads": 4,
    "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
    "log.cleaner.threads": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
    "controlled.shutdown.max.retries": 3,
    "zookeeper.session.timeout.ms": 4_000,
    "num.recovery.threads.per.data.dir": 2,
}
_LOG4J: Final = """\
log4j.rootLogger=INFO, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File={file}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n
log4j.logger.state.change.logger=TRACE
"""


def command_of_kafka(version: str, *words: str) -> list[str]:
    """Return the command line of a class of Kafka's with its arguments.

    Raises ``JavaNotFoundError``, and ``JarsUnavailableError`` if the jars cannot be fetched.
    """
    jars = [*JARS[version].fetched(), *(TOOLS.fetched() if version == VERSION else [])]
    return [str(find_java().executable), *_JVM_OPTIONS, "-cp", ":".join(map(str, jars)), *words]


def command_of_tool(version: str, tool: str, *options: str) -> list[str]:
    """Return the command line of a tool for operators, such as ``TopicCommand``."""
    package = "kafka.admin."
    if version == VERSION and tool in _OF_TOOLS:
        package = f"org.apache.kafka.tools.{_OF_TOOLS[tool]}"
    return command_of_kafka(version, package + tool, *options)


class GenuineBroker:
    """A broker of Kafka: ``start`` and ``stop`` it as often as you like, on the same data.

    ``settings`` are Kafka's. ``jaas``: the file with the login of ZooKeeper, if it has one.
    ``login``: librdkafka's settings of a client of its listener, whose protocol is ``protocol``.
    ``more_listeners``: others, each after a comma. ``jvm_options``: other ones than those for a
    small broker that starts quickly.
    """

    def __init__(
        self,
        directory: Path,
        broker_id: BrokerId,
        zookeeper: str,
        *,
        version: str = VERSION,
        jaas: Path | None = None,
        settings: Mapping[str, object] | None = None,
        protocol: str = "PLAINTEXT",
        more_listeners: str = "",
        login: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = _JVM_OPTIONS,
    ) -> None:
        self.broker_id = broker_id
        self.directory = directory
        (self.port,) = free_ports(1)
        self._version = version
        self._jaas = jaas
        self._login = login or {}
        self._jvm_options = jvm_options
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._output: IO[bytes] = (directory / "output.log").open("ab")
        (directory / "log4j.properties").write_text(_LOG4J.format(file=self.log))
        named: dict[str, object] = {
            "broker.id": broker_id,
            "listeners": f"{protocol}://{LOOPBACK}:{self.port}{more_listeners}",
            "zookeeper.connect": zookeeper,
            "zookeeper.set.acl": str(jaas is not None).lower(),
            "log.dirs": directory / "data",
            "regent.control.port": 0,
            "regent.metrics.port": 0,
            **_SETTINGS,
            **(settings or {}),
        }
        text = "".join(f"{name}={value}\n" for name, value in named.items())
        write_private(directory / "server.properties", text)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def bootstrap_server(self) -> str:
        """Where clients find it."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """What it logs."""
        return self.directory / "kafka.log"

    def start(self) -> None:
        """Start the process, without waiting.

        Raises ``JavaNotFoundError``, and ``JarsUnavailableError`` if the jars cannot be fetched.
        """
        classpath = ":".join(map(str, JARS[self._version].fetched()))
        login = () if self._jaas is None else (f"-Djava.security.auth.login.config={self._jaas}",)
        command = [
            *(str(find_java().executable), *self._jvm_options, *login),
            f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}",
            *("-cp", classpath, "kafka.Kafka", str(self.directory / "server.properties")),
        ]
        self._process = subprocess.Popen(
            ending_with_this_process(command),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )

    def await_serving(self, timeout_s: float = STOP_S) -> None:
        """Wait until it serves, and a controller has told it the brokers.

        A client that asks before for a coordinator may wait until the end of its time. Raises
        ``AssertionError``, at once if the process has ended.
        """

        def serves() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, (self.directory / "output.log").read_text()
            server = self.bootstrap_server
            admin = AdminClient({"bootstrap.servers": server, "log_level": 0, **self._login})
            try:
                return self.broker_id in admin.list_topics(timeout=scaled(5.0)).brokers
            except KafkaException:
                return False

        eventually(serves, f"broker {self.broker_id} of Kafka serves", timeout_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Shut it down in the controlled way, and wait until it has ended."""
        self.signal(signal.SIGTERM)
        self.await_end()

    def kill(self) -> None:
        """End it by ``kill -9``."""
        self.signal(signal.SIGKILL)
        self.await_end()

    def close(self) -> None:
        """End the process in any state."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._output.close()

    def await_end(self) -> None:
        """Wait until it has ended, after a signal."""
        assert self._process is not None
        self._process.wait(scaled(STOP_S))
