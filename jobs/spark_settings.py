"""The settings with which a JVM of Spark starts: of a private session, or of a job of a user.

A *private* session (the placement service, the tests) is the same on every machine: it ignores the
user's environment and uses little memory. The session of a *job* is the user's: the environment
(``SPARK_HOME``, ``SPARK_CONF_DIR``, ``HADOOP_CONF_DIR``, ``PYSPARK_PYTHON`` …), the file
``spark-defaults.conf`` and the settings of ``--conf`` are respected. What is chosen here is only
for a local master, and only where the user has chosen nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark import SparkConf

from regent.config.java import OPTION_VARIABLES, JavaRuntime
from regent.jobs.spark_home import class_archives, spark_home

QUICK_START: Final = ("-XX:TieredStopAtLevel=1",)
"""JVM options that shorten the start by a second, but slow down jobs of millions of rows."""

_SCRUBBED: Final = re.compile(
    r"(PY)?SPARK_.*|_PYSPARK_.*|(HADOOP|YARN|HIVE)_CONF_DIR|CLASSPATH|" + "|".join(OPTION_VARIABLES)
)
"""Variables that would change a private session from machine to machine."""

_CONNECTION: Final = "connection"
_LOOPBACK: Final = "127.0.0.1"
_LOGGING_FILE: Final = "log4j2.properties"
_PRIVATE_OPTIONS: Final = ("-XX:+UseSerialGC", "-Xss512k")  # few cores, small heap
_PRIVATE_ENVIRONMENT: Final = {
    "SPARK_LOCAL_IP": _LOOPBACK,
    "MALLOC_ARENA_MAX": "2",  # glibc's arenas take memory
}
_PRIVATE_CONF: Final = {
    "spark.master": "local[2]",
    "spark.driver.memory": "512m",
    "spark.ui.retainedJobs": "10",  # kept even without the UI
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "10",
    "spark.sql.ui.retainedExecutions": "1",
}
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How to start the JVM of a session, and the session in it.

    Its temporary files are in ``directory``.
    """

    command: Sequence[str | Path]
    environment: Mapping[str, str]
    working_directory: Path
    directory: Path
    hidden: re.Pattern[str] | None  # variables that the session must not see

    @property
    def connection_file(self) -> Path:
        """Where the JVM writes how to connect to it."""
        return self.directory / _CONNECTION

    def complete(self, conf: SparkConf) -> SparkConf:
        """Add defaults to the settings with which the JVM has started, where nothing is set."""
        master = conf.get("spark.master") or ""
        defaults = {}
        if (local := re.match(r"local(?:\[(\d+)?.*)?$", master)) is not None:
            cores = local[1] or (os.cpu_count() if "[" in master else 1)
            defaults = {
                "spark.local.dir": str(self.directory),
                "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
                "spark.sql.adaptive.enabled": "false",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": str(cores),
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
            }
        if re.match(r"local\b|spark://(127\.|localhost\b)", master):
            defaults |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        for name, value in defaults.items():
            conf.setIfMissing(name, value)
        return conf


def spark_settings(
    java: JavaRuntime,
    directory: Path,
    conf: Mapping[str, str],
    jvm_options: Sequence[str],
    *,
    is_private: bool,
) -> SparkSettings:
    """Return the settings of a private session or of a user's job; its files: ``directory``."""
    environment = dict(os.environ)
    if is_private:
        kept = {k: v for k, v in environment.items() if not _SCRUBBED.fullmatch(k)}
        environment = kept | _PRIVATE_ENVIRONMENT
        conf, jvm_options = {**_PRIVATE_CONF, **conf}, [*_PRIVATE_OPTIONS, *jvm_options]
    home = Path(environment.get("SPARK_HOME") or spark_home())
    logs = not (Path(environment.get("SPARK_CONF_DIR") or home / "conf") / _LOGGING_FILE).exists()
    options = shlex.join([*_java_options(java, directory, logs=logs), *jvm_options])
    settings = (part for key, value in conf.items() for part in ("--conf", f"{key}={value}"))
    arguments = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    environment |= {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        # Of two options the JVM takes the last one, which is the user's.
        "SPARK_SUBMIT_OPTS": f"{options} {environment.get('SPARK_SUBMIT_OPTS', '')}".strip(),
        # For the short-lived JVM that only builds the command line of the other.
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        "SPARK_CONNECT_MODE": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(directory / _CONNECTION),
    }
    return SparkSettings(
        command=(home / "bin" / "spark-submit", *settings, *arguments),
        environment=environment,
        working_directory=directory if is_private else Path.cwd(),  # settings may have paths
        directory=directory,
        hidden=_SCRUBBED if is_private else None,
    )


def _java_options(java: JavaRuntime, directory: Path, *, logs: bool) -> list[str]:
    """Return options for a quick start; with ``logs``, errors are logged to stderr."""
    options = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={directory}"]
    archives = [str(path) for path in class_archives(java) if path.exists()]
    if archives:
        options.append(f"-XX:SharedArchiveFile={':'.join(archives)}")
    if logs:
        file = directory / _LOGGING_FILE
        file.write_text(_LOGGING)
        options.append(f"-Dlog4j2.configurationFile={file}")
    return options
