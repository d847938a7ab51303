"""A Spark session and its JVM: quiet, on loopback, and removed completely at the end.

PySpark would start the JVM itself, and keep it until the process ends. Here it is a child process
with its own directory and log. It can be killed at any moment, even while it starts, and replaced.
When its parent is killed it ends by itself, because Spark's Python gateway stops at the end of its
standard input.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from regent.config.java import find_java
from regent.core.errors import RegentError
from regent.jobs.java_errors import cause_in_log, explanation
from regent.jobs.spark_settings import (
    add_defaults,
    add_local_defaults,
    submit_command,
    submit_environment,
)

DIRECTORY_PREFIX: Final = "regent-spark-"
START_TIMEOUT_S: Final = 120.0
_EXIT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02


class SparkFailedError(RegentError):
    """Spark did not start, or its JVM has ended; the message has the cause in the JVM's log."""


class SparkStartTimeoutError(SparkFailedError):
    """Spark did not start in time; the message says what it was waiting for."""


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
        conf: Mapping[str, str],
        *,
        jvm_options: Sequence[str] = (),
        parent_directory: Path | None = None,
        on_exit: Callable[[SparkJvm], None] | None = None,
    ) -> None:
        java = find_java()
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=parent_directory))
        self._directory = directory
        self._log = directory / "spark.log"
        self._connection_file = directory / "connection"
        self._gateway: Any = None
        self._session: SparkSession | None = None
        self._awaited = "the JVM to start"
        environment = submit_environment(java, directory, jvm_options)
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(self._connection_file)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                submit_command(environment["SPARK_HOME"], conf),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C reaches only this process, which stops the JVM
            )
        self._on_exit = on_exit
        self._exited = threading.Event()
        threading.Thread(target=self._reap, name="spark-jvm", daemon=True).start()

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
                except (Py4JJavaError, PySparkException) as error:
                    raise SparkFailedError(f"Spark did not start: {explanation(error)}") from error
                except (Py4JError, OSError, EOFError) as error:
                    if time.monotonic() >= deadline:
                        raise self._timeout(timeout_s) from error
                    raise self.failure("Spark did not start") from error
        return self._session

    def _connect(self) -> SparkSession:
        while not self._connection_file.exists():
            if self.has_exited():
                raise EOFError("the JVM ended")
            time.sleep(_POLL_S)
        data = self._connection_file.read_bytes()
        port, length = struct.unpack_from(">ii", data)
        secret = data[8 : 8 + length].decode()
        os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
        try:
            self._gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        SparkContext._ensure_initialized(gateway=self._gateway)
        conf = SparkConf()  # has what spark-submit has found
        add_defaults(conf)
        add_local_defaults(conf, self._directory)
        master = conf.get("spark.master") or "the master"
        self._awaited = f"{master} to start the application"
        on_interrupt = signal.getsignal(signal.SIGINT)
        context = SparkContext(conf=conf, gateway=self._gateway)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, on_interrupt)  # the context has replaced it
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = conf.get("spark.pyspark.python") or sys.executable
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
        reason = self._cause()
        return SparkFailedError(f"{what}{ended}{f': {reason}' if reason else ''}")

    def _timeout(self, timeout_s: float) -> SparkStartTimeoutError:
        reason = self._cause()
        logged = f"; its log: {reason}" if reason else ""
        return SparkStartTimeoutError(
            f"Spark did not start within {timeout_s:g} s: it was waiting for {self._awaited}"
            + logged
        )

    def _cause(self) -> str:
        return cause_in_log(self._log.read_text(errors="replace") if self._log.exists() else "")

    def kill(self) -> None:
        """Kill the JVM, on any thread; waiting calls of its owner fail."""
        if not self.has_exited():
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the launching scripts included

    def stop(self, *, within_s: float = 0.0) -> None:
        """Remove the JVM and its files, after it has had time to end by itself. Idempotent."""
        assert self._process.stdin is not None
        if within_s and self._session is not None:
            with self.killed_after(within_s), suppress(Py4JError, OSError):
                self._session.stop()
            self._process.stdin.close()
            self.has_exited(within_s)
        self.kill()
        self.has_exited(_EXIT_TIMEOUT_S)
        self._process.stdin.close()
        self._forget()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _forget(self) -> None:
        """Make PySpark forget its JVM, which it would keep until the process ends."""
        gateway, self._gateway, self._session = self._gateway, None, None
        if gateway is None:
            return
        # Otherwise Py4J reports collected objects to a JVM that has ended, and logs errors.
        gateway._gateway_client.is_connected = False
        context = SparkContext._active_spark_context
        if context is not None:
            context._jsc = None  # stop only PySpark's side
            context.stop()
        gateway.shutdown()
        gateway.close()
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def spark_session(
    master: str | None = None,
    *,
    app_name: str = "regent",
    conf: Mapping[str, str] | None = None,
    jvm_options: Sequence[str] = (),
    start_timeout_s: float = START_TIMEOUT_S,
) -> Iterator[SparkSession]:
    """Yield a session with the user's settings for the block; its JVM ends afterwards.

    Raises:
        JavaNotFoundError, SparkFailedError
    """
    named = {"spark.app.name": app_name} | ({"spark.master": master} if master else {})
    jvm = SparkJvm(named | dict(conf or {}), jvm_options=jvm_options)
    exit_timeout_s = 0.0
    try:
        session = jvm.session(start_timeout_s)
        if not is_local(session):  # other processes have to be stopped, too
            exit_timeout_s = _EXIT_TIMEOUT_S
        yield session
    finally:
        jvm.stop(within_s=exit_timeout_s)


def is_local(spark: SparkSession) -> bool:
    """Return whether the driver runs the tasks itself, so that they see its files."""
    return str(spark.sparkContext.master).startswith("local")


def _exit_reason(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
