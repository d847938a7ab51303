"""What Regent adds to the settings with which Spark starts, where the user has set nothing.

The environment (``SPARK_HOME``, ``SPARK_CONF_DIR``, ``HADOOP_CONF_DIR``, ``PYSPARK_PYTHON`` …), the
file ``spark-defaults.conf`` and the settings of ``--conf`` are respected.
"""

from __future__ import annotations

import os
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf

from regent.config.java import (
    OPTION_VARIABLES,
    JavaRuntime,
    derived_directory,
    java_cache,
    java_environment,
)

QUICK_START: Final = ("-XX:TieredStopAtLevel=1",)
"""JVM options that shorten the start by a second, but slow down jobs of millions of rows."""

_OF_THE_USER: Final = re.compile(
    r"(PY)?SPARK_.*|_PYSPARK_.*|(HADOOP|YARN|HIVE)_CONF_DIR|CLASSPATH|" + "|".join(OPTION_VARIABLES)
)
_LOOPBACK: Final = "127.0.0.1"
_AUTHENTICATION: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
}
"""A process that reaches the ports of a driver can have it run commands. On loopback every user of
the machine does. With a local master Spark makes a secret itself, which no other process needs."""
_QUIET: Final = {"spark.ui.showConsoleProgress": "false"}
"""Spark shows a bar by default. It would be the last line of the JVM's log, beside its errors."""
_INSTALLED: Final = Path(pyspark.__file__).parent


def ignore_user_settings() -> None:
    """Remove what would make the sessions of this process differ from machine to machine."""
    for name in filter(_OF_THE_USER.fullmatch, list(os.environ)):
        del os.environ[name]
    os.environ["SPARK_LOCAL_IP"] = _LOOPBACK


def submit_command(home: str, conf: Mapping[str, str]) -> list[str]:
    """Return the command that starts the JVM of a session."""
    conf = _QUIET | dict(conf)
    settings = (part for key, value in conf.items() for part in ("--conf", f"{key}={value}"))
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    return [f"{home}/bin/spark-submit", *settings, *arguments]


def submit_environment(
    java: JavaRuntime, directory: Path, jvm_options: Sequence[str]
) -> dict[str, str]:
    """Return the environment of that command; the JVM's temporary files are in ``directory``."""
    options = ["-XX:-UsePerfData", f"-Djava.io.tmpdir={directory}", *jvm_options]
    home = os.environ.get("SPARK_HOME")
    archive = class_archive_path(java)
    if not home and archive.exists():  # it is of our jars; the JVM would warn about others
        options.append(f"-XX:SharedArchiveFile={archive}")
    return {
        **java_environment(),
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": home or str(_spark_home()),
        # Of two options the JVM takes the last one, which is the user's.
        "SPARK_SUBMIT_OPTS": f"{shlex.join(options)} {os.environ.get('SPARK_SUBMIT_OPTS', '')}",
        # For the short-lived JVM that only builds the command line of the other.
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        "SPARK_CONNECT_MODE": "0",
    }


def add_defaults(conf: SparkConf) -> None:
    """Add what is chosen for every master: jobs say themselves what fits into the driver."""
    conf.setIfMissing("spark.driver.maxResultSize", "0")


def add_local_defaults(conf: SparkConf, directory: Path) -> None:
    """Add what is chosen for a local master, to the settings with which the JVM has started."""
    master = conf.get("spark.master") or ""
    defaults: dict[str, str] = {}
    if (local := re.match(r"local(?:\[(\d+)?.*)?$", master)) is not None:
        cores = local[1] or (os.cpu_count() if "[" in master else 1)
        defaults |= {
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(cores),
            "spark.ui.enabled": "false",
        }
    if re.match(r"local\b|spark://(127\.|localhost\b)", master):
        defaults |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if local is not None and not conf.contains("spark.authenticate"):
        defaults |= _AUTHENTICATION
    for name, value in defaults.items():
        conf.setIfMissing(name, value)


def class_archive_path(java: JavaRuntime) -> Path:
    """Return the path of the file that ``jobs.class_archive`` makes for a runtime."""
    return java_cache() / f"spark-{pyspark.__version__}-java-{java.version}.jsa"


def _spark_home() -> Path:
    """Return the installed Spark without MLlib; with it, if no copy can be made.

    With MLlib every session registers its two SQL functions by Scala's reflection, which takes most
    of a second. No job uses MLlib.
    """
    name = f"spark-{pyspark.__version__}-{zlib.crc32(bytes(_INSTALLED)):08x}"
    with suppress(OSError):
        return derived_directory(name, _link)
    return _INSTALLED


def _link(home: Path) -> None:
    jars = home / "jars"
    jars.mkdir()
    for path in _INSTALLED.iterdir():
        if path.name != jars.name:
            (home / path.name).symlink_to(path)
    for jar in (_INSTALLED / jars.name).iterdir():
        if not jar.name.startswith("spark-mllib_"):
            (jars / jar.name).symlink_to(jar)
