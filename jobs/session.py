"""A Spark session and its JVM: quiet, on loopback, and removed completely at the end.

PySpark would start the JVM itself, in this process's environment, and keep it until the process
ends. Here it is a child process with its own environment, directories and log. It can be killed at
any moment, even while it starts, and replaced. When its parent is killed it ends by itself, because
Spark's Python gateway stops at the end of its standard input.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from regent.config.java import OPTION_VARIABLES, find_java
from regent.core.errors import RegentError
from regent.jobs.spark_home import class_archives, spark_home

DIRECTORY_PREFIX: Final = "regent-spark-"
START_TIMEOUT_S: Final = 120.0
_EXIT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02

# Variables that would change the behaviour of a session from machine to machine.
_SCRUBBED: Final = re.compile(
    r"(PY)?SPARK_.*|_PYSPARK_.*|(HADOOP|YARN|HIVE)_CONF_DIR|CLASSPATH|" + "|".join(OPTION_VARIABLES)
)
QUICK_START: Final = ("-XX:TieredStopAtLevel=1",)
"""JVM options that shorten the start by a second, but slow down jobs of millions of rows."""

_UNTELLING: Final = re.compile(r"\s*(at |\.\.\.|WARNING: Using incubator modules|$)")
_JVM_OPTIONS: Final = (  # few cores, small heap
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xss512k",
)
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


class SparkFailedError(RegentError):
    """Spark did not start, or its JVM has ended; the message has the end of the JVM's log."""


class SparkJvm:
    """The JVM of one Spark application; starting it returns at once, ``session`` waits for it.

    It belongs to the thread that made it, which must ``stop`` it; any thread may ``kill`` it. Its
    files are in a new directory under ``parent_directory`` (None: the system's temporary
    directory), which ``stop`` removes. A process has one at a time, because PySpark has one
    context. ``on_exit`` is called on another thread when the JVM has ended.

    Raises JavaNotFoundError.
    """

    def __init__(
        self,
        master: str = "local[2]",
        *,
        app_name: str = "regent",
        driver_memory: str = "512m",
        parent_directory: Path | None = None,
        jvm_options: tuple[str, ...] = (),
        on_exit: Callable[[SparkJvm], None] | None = None,
    ) -> None:
        java, home = find_java(), spark_home()
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=parent_directory))
        self._directory = directory
        self._connection_file = directory / "connection"
        self._log = directory / "spark.log"
        (directory / "log4j2.properties").write_text(_LOGGING)
        self._gateway: Any = None
        self._session: SparkSession | None = None
        archives = [str(path) for path in class_archives(java) if path.exists()]
        if archives:
            jvm_options = (f"-XX:SharedArchiveFile={':'.join(archives)}", *jvm_options)
        conf = _configuration(master, app_name, driver_memory, directory, jvm_options)
        settings = (part for key, value in conf.items() for part in ("--conf", f"{key}={value}"))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [home / "bin" / "spark-submit", *settings, "pyspark-shell"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(master, java.home, home, self._connection_file),
                cwd=directory,
                process_group=0,  # Ctrl-C reaches only this process, which stops the JVM
            )
        self._on_exit = on_exit
        self._exited = threading.Event()
        threading.Thread(target=self._reap, name=f"{app_name}-jvm", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return self._process.pid

    def has_exited(self, within_s: float = 0.0) -> bool:
        """Return whether the JVM has ended, waiting for it ``within_s`` at most."""
        return self._exited.wait(within_s)

    def _reap(self) -> None:
        # The only thread that waits for the process: two waits in Popen conflict.
        self._process.wait()
        self._exited.set()
        if self._on_exit:
            self._on_exit(self)

    def session(self, timeout_s: float = START_TIMEOUT_S) -> SparkSession:
        """Wait for the JVM, at most ``timeout_s``, and return the session.

        Raises:
            SparkFailedError: Spark did not start in time.
        """
        if self._session is None:
            deadline = time.monotonic() + timeout_s
            with self.killed_after(timeout_s):
                try:
                    self._session = self._connect()
                except (Py4JError, PySparkException, OSError, EOFError) as error:
                    late = time.monotonic() >= deadline
                    limit = f" within {timeout_s:g} s" if late else ""
                    raise self.failure(f"Spark did not start{limit}") from error
        return self._session

    def _connect(self) -> SparkSession:
        while not self._connection_file.exists():
            if self.has_exited():
                raise EOFError("the JVM ended")
            time.sleep(_POLL_S)
        data = self._connection_file.read_bytes()
        port, length = struct.unpack_from(">ii", data)
        variables = {
            "PYSPARK_GATEWAY_PORT": str(port),
            "PYSPARK_GATEWAY_SECRET": data[8 : 8 + length].decode(),
            "PYSPARK_PYTHON": sys.executable,
        }
        with _environ(variables), _interrupt_handler():
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
            self._gateway = gateway
            context = SparkContext(gateway=gateway)
            # Otherwise the server for accumulators prints a stack trace when the JVM is killed.
            context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
            return SparkSession(context)

    @contextmanager
    def killed_after(self, timeout_s: float) -> Iterator[None]:
        """Kill the JVM when the block takes longer, so that a hanging call to it fails."""
        timer = threading.Timer(timeout_s, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def failure(self, what: str) -> SparkFailedError:
        """Return an error with ``what`` and the reason in the JVM's log."""
        status = self._process.returncode
        ended = "" if status is None else f" ({_exit_reason(status)})"
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        lines = [line.strip() for line in log.splitlines() if not _UNTELLING.match(line)]
        return SparkFailedError(f"{what}{ended}{f': {lines[-1]}' if lines else ''}")

    def kill(self) -> None:
        """Kill the JVM, on any thread; waiting calls of its owner fail."""
        if not self.has_exited():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the launching scripts included

    def stop(self, *, gracefully: bool = True) -> None:
        """End the JVM, ``gracefully`` after its application, and remove its files. Idempotent."""
        if gracefully and self._session is not None and not self.has_exited():
            with self.killed_after(_EXIT_TIMEOUT_S), suppress(Py4JError, OSError):
                self._session.stop()
        if self._gateway is not None:
            # Otherwise Py4J reports collected objects to a JVM that has ended, and logs errors.
            self._gateway._gateway_client.is_connected = False
        self.kill()
        self.has_exited(_EXIT_TIMEOUT_S)
        if self._process.stdin:
            self._process.stdin.close()
        self._forget()
        shutil.rmtree(self._directory, ignore_errors=True)

    def finish(self, timeout_s: float) -> bool:
        """Wait until the JVM ends by itself; return whether it did. ``stop`` is still needed."""
        if self._session is not None:
            self._session.stop()
        if self._process.stdin:
            self._process.stdin.close()
        return self.has_exited(timeout_s)

    def _forget(self) -> None:
        """Make PySpark forget its JVM, which it would keep until the process ends."""
        gateway, self._gateway, self._session = self._gateway, None, None
        if gateway is None:
            return
        context = SparkContext._active_spark_context
        if context is not None:
            context._jsc = None  # the JVM has ended: stop only PySpark's side
            context.stop()
        gateway.shutdown()
        gateway.close()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        sys.path[:] = [path for path in sys.path if not path.startswith(str(self._directory))]


class KillSwitch:
    """Kills a JVM and every later one, from any thread, so that its owner stops waiting for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jvm: SparkJvm | None = None
        self._is_thrown = False

    @property
    def is_thrown(self) -> bool:
        """Whether the owner must stop its work."""
        return self._is_thrown

    def guard(self, jvm: SparkJvm | None) -> None:
        """Set the JVM to kill."""
        with self._lock:
            self._jvm = jvm
            if self._is_thrown and jvm is not None:
                jvm.kill()

    def throw(self) -> None:
        """Kill the JVM and every later one."""
        with self._lock:
            self._is_thrown = True
            if self._jvm is not None:
                self._jvm.kill()


@contextmanager
def spark_session(
    master: str = "local[2]",
    *,
    app_name: str = "regent",
    driver_memory: str = "512m",
    jvm_options: tuple[str, ...] = (),
) -> Iterator[SparkSession]:
    """Yield a session for the block; its process and files are removed afterwards.

    Raises:
        JavaNotFoundError, SparkFailedError
    """
    jvm = SparkJvm(master, app_name=app_name, driver_memory=driver_memory, jvm_options=jvm_options)
    try:
        yield jvm.session()
    finally:
        # With a local master there are no other processes to stop.
        jvm.stop(gracefully=not master.startswith("local"))


def _exit_reason(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _configuration(
    master: str,
    app_name: str,
    driver_memory: str,
    directory: Path,
    jvm_options: tuple[str, ...],
) -> dict[str, str]:
    java_options = (
        *_JVM_OPTIONS,
        *jvm_options,
        f"-Djava.io.tmpdir={directory}",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.properties'}",
    )
    configuration = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": shlex.join(java_options),
        "spark.local.dir": str(directory),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.retainedJobs": "10",  # kept even without the UI
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "10",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.ui.showConsoleProgress": "false",
        "spark.default.parallelism": "2",
        "spark.scheduler.mode": "FAIR",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    if _is_on_this_machine(master):
        configuration["spark.driver.host"] = "127.0.0.1"
        configuration["spark.driver.bindAddress"] = "127.0.0.1"
    return configuration


def _environment(master: str, java_home: Path, home: Path, connection_file: Path) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not _SCRUBBED.fullmatch(k)}
    environment |= {
        # For the short-lived JVM that only builds the command line of the other.
        "SPARK_LAUNCHER_OPTS": "-XX:-UsePerfData",
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_CONNECT_MODE": "0",
        "PYSPARK_PYTHON": sys.executable,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        "MALLOC_ARENA_MAX": "2",  # glibc's many arenas cost tens of megabytes
    }
    if _is_on_this_machine(master):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


def _is_on_this_machine(master: str) -> bool:
    return re.match(r"local\b|spark://(127\.|localhost\b)", master) is not None


@contextmanager
def _environ(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, and hide those that would change Spark."""
    saved = dict(os.environ)
    for name in saved:
        if _SCRUBBED.fullmatch(name):
            del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update({k: v for k, v in saved.items() if k not in os.environ})


@contextmanager
def _interrupt_handler() -> Iterator[None]:
    """Keep the handler of SIGINT, which SparkContext replaces when made by the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
