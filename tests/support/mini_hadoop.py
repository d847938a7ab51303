"""A real HDFS and a real YARN on loopback, each with one node, from Hadoop's own daemons.

Hadoop's servers come from one jar of Maven Central, its clients from PySpark.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self
from xml.sax.saxutils import escape

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.java import find_java
from regent.testing.waits import eventually, scaled
from tests.support.free_ports import free_ports
from tests.support.maven_jars import MavenJars, spark_jars
from tests.support.own_disks import with_own_disk

HADOOP: Final = MavenJars(
    "hadoop-3.5.0",
    """
    <dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="3.5.0"
                transitive="false"/>
    <dependency org="org.bouncycastle" name="bcpkix-jdk18on" rev="1.82"/>
    """,
    "1d4941f2dbc0fde6b7c218a0b92eb02be7a7cde4751e1e0292a96fcf7fb7339d",
)
_OF_SPARK: Final = (
    *("hadoop-client-api", "hadoop-client-runtime"),
    *("slf4j-api", "jcl-over-slf4j", "log4j-*"),
)
_JVM_OPTIONS: Final = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    "-Djava.net.preferIPv4Stack=true",
)
_START_S: Final = 120.0
_END_S: Final = 20.0
_NAME_NODE: Final = "hdfs.server.namenode.NameNode"
_DATA_NODE: Final = "hdfs.server.datanode.DataNode"
_RESOURCE_MANAGER: Final = "yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER: Final = "yarn.server.nodemanager.NodeManager"
_LOGGING: Final = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
"""


class MiniHadoop:
    """A NameNode and a DataNode, a ResourceManager and a NodeManager, as processes.

    ``configuration`` is a HADOOP_CONF_DIR for clients. The containers of YARN do not see the
    directory ``hidden`` of this machine (None: they see all).

    Raises JavaNotFoundError, JarsUnavailableError.
    """

    def __init__(self, *, hidden: Path | None = None) -> None:
        classpath = [*HADOOP.fetched(), *spark_jars(*_OF_SPARK)]
        with ExitStack() as undo:
            # Not below pytest's folder, which may be hidden.
            home = undo.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="regent-hadoop-", dir="/tmp", ignore_cleanup_errors=True
                )
            )
            self._home = Path(home)
            self._undo = undo
            self._daemons: dict[str, subprocess.Popen[bytes]] = {}
            self.configuration = self._home / "conf"
            self._classpath = ":".join(map(str, [self.configuration, *classpath]))
            ports = free_ports(5)
            self.address = f"hdfs://127.0.0.1:{ports[0]}"
            self._configure(ports)
            self._start(_NAME_NODE, "-format").wait(scaled(_START_S))
            self._start(_NAME_NODE)  # it takes the other's place among the daemons
            self._start(_DATA_NODE)
            self._start(_RESOURCE_MANAGER)
            self._start(_NODE_MANAGER, hidden=hidden)
            self._await(_DATA_NODE, "Successfully sent block report")
            self._await(_NODE_MANAGER, "Registered with ResourceManager")
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes and remove all files."""
        self._undo.close()

    def _configure(self, ports: list[int]) -> None:
        self.configuration.mkdir()
        self._logging.write_text(_LOGGING)
        core = {"fs.defaultFS": self.address, "hadoop.tmp.dir": str(self._home / "data")}
        logs = {"yarn.nodemanager.log-dirs": str(self._home / "containers")}
        self._write("core-site", core | _CORE_SITE)
        self._write("hdfs-site", _HDFS_SITE)
        self._write("yarn-site", logs | _yarn_site(ports[1:]))

    @property
    def _logging(self) -> Path:
        return self._home / "log4j2.properties"

    def _write(self, name: str, properties: Mapping[str, str]) -> None:
        lines = [
            f"<property><name>{key}</name><value>{escape(value)}</value></property>\n"
            for key, value in properties.items()
        ]
        text = f"<configuration>\n{''.join(lines)}</configuration>\n"
        (self.configuration / f"{name}.xml").write_text(text)

    def _log(self, daemon: str) -> Path:
        return self._home / f"{daemon.rpartition('.')[2]}.log"

    def _await(self, daemon: str, line: str) -> None:
        def logged() -> bool:
            for each, process in self._daemons.items():
                assert process.poll() is None, f"{each} ended: {self._log(each).read_text()}"
            return line in self._log(daemon).read_text()

        eventually(logged, f"{daemon}: {line}", _START_S)

    def _start(
        self, daemon: str, *arguments: str, hidden: Path | None = None
    ) -> subprocess.Popen[bytes]:
        java = find_java()
        command: list[str | Path] = [
            *(java.executable, *_JVM_OPTIONS, f"-Dlog4j2.configurationFile={self._logging}"),
            f"-Djava.io.tmpdir={self._home}",  # a killed daemon leaves its web pages there
            *("-cp", self._classpath, f"org.apache.hadoop.{daemon}", *arguments),
        ]
        log = self._undo.enter_context(self._log(daemon).open("ab"))
        process = subprocess.Popen(
            ending_with_this_process(command if hidden is None else with_own_disk(hidden, command)),
            stdout=log,
            stderr=log,
            env={"PATH": os.defpath, "JAVA_HOME": str(java.home)},
            cwd=self._home,
        )
        self._undo.callback(process.wait, scaled(_END_S))
        self._undo.callback(process.kill)
        self._daemons[daemon] = process
        return process


_CORE_SITE: Final = {  # daemons start together, and wait for each other
    "ipc.client.connect.retry.interval": "100",
    "ipc.client.connect.max.retries": "600",
}
_HDFS_SITE: Final = {
    "dfs.replication": "1",
    "dfs.permissions.enabled": "false",
    "dfs.namenode.http-address": "127.0.0.1:0",
    "dfs.datanode.address": "127.0.0.1:0",
    "dfs.datanode.http.address": "127.0.0.1:0",
    "dfs.datanode.ipc.address": "127.0.0.1:0",
}


def _yarn_site(ports: list[int]) -> dict[str, str]:
    managed = ("", ".scheduler", ".resource-tracker", ".admin")
    scheduler = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    return {
        **{
            f"yarn.resourcemanager{name}.address": f"127.0.0.1:{port}"
            for name, port in zip(managed, ports, strict=True)
        },
        "yarn.resourcemanager.webapp.address": "127.0.0.1:0",
        "yarn.resourcemanager.scheduler.class": scheduler,
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
        "yarn.scheduler.minimum-allocation-mb": "128",
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.bind-host": "127.0.0.1",
        "yarn.nodemanager.address": "127.0.0.1:0",
        "yarn.nodemanager.localizer.address": "127.0.0.1:0",
        "yarn.nodemanager.webapp.address": "127.0.0.1:0",
        "yarn.nodemanager.resource.memory-mb": "4096",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.delete.debug-delay-sec": "0",
    }
