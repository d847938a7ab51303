"""The files that a Python process of Spark reads: local ones, and those of Hadoop's file systems.

Such a process has no access to the JVM that started it. For a remote file it starts a JVM of its
own, with the same classes, which ends with the process. A file is copied to this machine for as
long as it is read, so a task needs room for one file on the disk of ``TMPDIR``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from regent.jobs.command import InputError
from regent.jobs.files import Entry, JobFiles, is_remote, local_path

_OPTIONS_OF_SPARK: Final = ("--add-opens", "-Djava.security.", "-Djava.net.")
_OWN_OPTIONS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class WorkerFiles:
    """Reads files in any process of Spark.

    ``hadoop`` has settings of Hadoop beside those of ``HADOOP_CONF_DIR``, and ``jars`` the jars of
    file systems, separated by commas, as ``spark.jars`` has them; the others that Spark has sent
    its executors are used as well.
    """

    hadoop: Mapping[str, str] = field(default_factory=dict)
    jars: str = ""

    def entries(self, directory: str) -> list[Entry]:
        """Return what is in a directory, sorted by name. Raises ``InputError``."""
        with closing(JobFiles(self._session)) as files:
            return files.entries(directory)

    def is_directory(self, location: str) -> bool:
        """Return whether there is a directory. Raises ``InputError``."""
        with closing(JobFiles(self._session)) as files:
            entry = files.entry(location)
        return entry is not None and entry.is_directory

    @contextmanager
    def here(self, location: str) -> Iterator[Path]:
        """Yield the path of a file on this machine for the block: itself, or a copy.

        Raises ``InputError`` if a remote file cannot be read.
        """
        if not is_remote(location):
            yield local_path(location)
            return
        with closing(JobFiles(self._session)) as files:
            yield files.copy(location)

    def _session(self) -> SparkSession:
        """Return what ``JobFiles`` needs of a session."""
        hadoop = _hadoop(self.jars)
        settings = hadoop.configured(self.hadoop)
        java = SimpleNamespace(hadoopConfiguration=lambda: settings)
        context = SimpleNamespace(_jvm=hadoop.jvm, _jsc=java)
        return cast("SparkSession", SimpleNamespace(sparkContext=context))


class Hadoop:
    """Hadoop in a JVM of this process. It keeps the settings with which it reached a server first.

    So its connections are closed when others are given: a process reads for several queries.
    """

    def __init__(self, jvm: Any) -> None:
        self.jvm = jvm
        self._given: Mapping[str, str] | None = None
        self._configuration: Any = None

    def configured(self, settings: Mapping[str, str]) -> Any:
        """Return Hadoop's ``Configuration`` with these settings."""
        if settings != self._given:
            self.jvm.org.apache.hadoop.fs.FileSystem.closeAll()
            self._configuration = self.jvm.org.apache.hadoop.conf.Configuration()
            for name, value in settings.items():
                self._configuration.set(name, value)
            self._given = dict(settings)
        return self._configuration


@cache
def _hadoop(jars: str) -> Hadoop:
    """Start the JVM of this process. Raises ``InputError``."""
    java, arguments, environment = _java_of_spark()
    named = (value for flag, value in pairwise(arguments) if flag in ("-cp", "-classpath"))
    classes = next(named, environment)
    sent = SparkFiles.getRootDirectory()
    more = [name.removeprefix("file:") for name in jars.split(",") if name]
    said: deque[str] = deque(maxlen=20)
    try:
        gateway = JavaGateway.launch_gateway(
            jarpath=sent,
            classpath=os.pathsep.join([classes, *more, f"{sent}/*"]),
            javaopts=[*_OWN_OPTIONS, *(a for a in arguments if a.startswith(_OPTIONS_OF_SPARK))],
            java_path=java,
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=said,
        )
    except (OSError, ValueError, Py4JError) as error:
        reason = next(iter(said), str(error)).strip()
        raise InputError(f"no JVM starts to read remote files: {reason}") from None
    return Hadoop(gateway.jvm)


def _java_of_spark() -> tuple[str, list[str], str]:
    """Return the program, the arguments and the CLASSPATH of the JVM that started this process."""
    process = os.getppid()
    while process > 1:
        about = Path("/proc", str(process))
        try:
            program = os.readlink(about / "exe")
            if Path(program).name == "java":
                variables = (about / "environ").read_bytes().split(b"\0")
                classes = next((v[10:] for v in variables if v.startswith(b"CLASSPATH=")), b"")
                arguments = (about / "cmdline").read_text().split("\0")
                return program, arguments, os.fsdecode(classes)
            process = int((about / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError as error:
            raise InputError(f"process {process}: {error.strerror}") from None
    raise InputError("remote files can be read only in processes that Spark has started")
