"""A Spark session and its JVM: quiet, on loopback, and removed completely at the end.

PySpark would start the JVM itself, in this process's environment, and keep it until the process
ends. Here it is a child process with its own environment, directories and log. It can be killed at
any moment, even while it starts, and replaced. When its parent is killed it ends by itself, because
Spark's Python gateway stops at the end of its standard input.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from regent.config.java import find_java
from regent.core.errors import RegentError
from regent.jobs.spark_settings import spark_settings

DIRECTORY_PREFIX: Final = "regent-spark-"
START_TIMEOUT_S: Final = 120.0
_EXIT_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02

_THROWN: Final = re.compile(r'Exception in thread "main" ([\w.$]+: )?')
_UNTELLING: Final = re.compile(r"\s*(at |\.\.\.|WARNING: Using incubator modules|$)")


class SparkFailedError(RegentError):
    """Spark did not start, or its JVM has ended; the message has the end of the JVM's log."""


class SparkJvm:
    """The JVM of one Spark application; starting it returns at once, ``session`` waits for it.

    Its settings are ``jobs.spark_settings``': private ones, or those of a user's job.
    It belongs to the thread that made it, which must ``stop`` it; any thread may ``kill`` it. Its
    files are in a new directory under ``parent_directory`` (None: the system's temporary
    directory), which ``stop`` removes. A process has one at a time, because PySpark has one
    context. ``on_exit`` is called on another thread when the JVM has ended.

    Raises JavaNotFoundError.
    """

    def __init__(
        self,
        master: str | None = None,
        *,
        app_name: str = "regent",
        conf: Mapping[str, str] | None = None,
        is_private: bool = True,
        parent_directory: Path | None = None,
        jvm_options: Sequence[str] = (),
        on_exit: Callable[[SparkJvm], None] | None = None,
    ) -> None:
        java = find_java()
        directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=parent_directory))
        self._directory = directory
        self._log = directory / "spark.log"
        self._gateway: Any = None
        self._session: SparkSession | None = None
        named = {"spark.app.name": app_name} | ({"spark.master": master} if master else {})
        self._settings = settings = spark_settings(
            java, directory, named | dict(conf or {}), jvm_options, is_private=is_private
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                settings.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=settings.environment,
                cwd=settings.working_directory,
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
        settings = self._settings
        while not settings.connection_file.exists():
            if self.has_exited():
                raise EOFError("the JVM ended")
            time.sleep(_POLL_S)
        data = settings.connection_file.read_bytes()
        port, length = struct.unpack_from(">ii", data)
        with _environ(settings.hidden) as environ, _interrupt_handler():
            environ["PYSPARK_GATEWAY_PORT"] = str(port)
            environ["PYSPARK_GATEWAY_SECRET"] = data[8 : 8 + length].decode()
            self._gateway = launch_gateway()  # type: ignore[no-untyped-call]
            SparkContext._ensure_initialized(gateway=self._gateway)
            conf = settings.complete(SparkConf())  # has what spark-submit has found
            python = conf.get("spark.pyspark.python", sys.executable)
            environ.setdefault("PYSPARK_PYTHON", str(python))
            context = SparkContext(conf=conf, gateway=self._gateway)
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
        reason = _THROWN.sub("", lines[-1]) if lines else ""
        return SparkFailedError(f"{what}{ended}{f': {reason}' if reason else ''}")

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
    jvm = SparkJvm(master, app_name=app_name, conf=conf, is_private=False, jvm_options=jvm_options)
    has_processes = False  # other ones, to be stopped too
    try:
        session = jvm.session(start_timeout_s)
        has_processes = not is_local(session)
        yield session
    finally:
        jvm.stop(gracefully=has_processes)


def is_local(spark: SparkSession) -> bool:
    """Return whether the driver runs the tasks itself, so that they see its files."""
    return str(spark.sparkContext.master).startswith("local")


def _exit_reason(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


@contextmanager
def _environ(hidden: re.Pattern[str] | None) -> Iterator[MutableMapping[str, str]]:
    """Yield the environment without the ``hidden`` variables; undo all changes after the block."""
    saved = dict(os.environ)
    try:
        for name in saved:
            if hidden is not None and hidden.fullmatch(name):
                del os.environ[name]
        yield os.environ
    finally:
        for name in set(os.environ) - set(saved):
            del os.environ[name]
        os.environ.update(saved)


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
