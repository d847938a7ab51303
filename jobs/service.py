"""The resident placement service: a process with a warm Spark session.

It listens at once, while Spark starts. The thread of the server answers requests for the status at
any time. One other thread owns the session and does everything that needs it, in the sequence of
its inbox. At most ``MAX_WAITING`` requests to place wait there; the first ones warm Spark up. When
the JVM dies it is started again, after a pause that doubles with each successive failure, and the
failed request is retried once.

    starting ──► warming ──► ready
      ▲   │         │          │
      │   └─────────┴──────────┴──► failed: requests are answered with the reason
      └──── after a pause ───────────┘

The process ends on SIGTERM; its JVM ends with it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from regent.config.command_line import program
from regent.config.threads import NamedThread, NamedTimer
from regent.core.errors import Errors, RegentError
from regent.core.placement.replica_placer import IndexScope, PlacementError, Strategy, check
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementSpec,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.jobs.placement_job import place_with_spark
from regent.jobs.session import DIRECTORY_PREFIX, START_TIMEOUT_S, SparkJvm
from regent.jobs.spark_settings import QUICK_START, ignore_user_settings
from regent.transport.control.key_files import PLACEMENT_SECRET, KeyPair, KeysDirectory, secret_at
from regent.transport.control.peers import KnownKeys
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.local_users import SAME, local_users

MAX_WAITING: Final = 100
MAX_PARTITIONS: Final = 200_000
JOB_TIMEOUT_S: Final = 30.0  # in a warm session; a cold one has the time of a start
_STABLE_S: Final = 60.0  # a session that lasted as long counts as a successful start
_MAX_PAUSE_S: Final = 60.0
_EXIT_S: Final = 2.0  # time to notice that a JVM with a broken connection has ended
_STOP_TIMEOUT_S: Final = 5.0
_WARM_UPS: Final = 2 * len(Strategy)
_JVM_OPTIONS: Final = (  # live objects take some 70 MB; the heap stays near that
    *QUICK_START,
    "-XX:+UseSerialGC",
    "-Xss512k",
    "-Xms80m",
    "-Xmn32m",
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
)
_CONF: Final = {
    "spark.master": "local[2,2]",  # a task whose Python worker was killed runs once more
    "spark.app.name": "regent-placement",
    "spark.driver.memory": "512m",
    "spark.log.level": "ERROR",  # the log is there until the JVM ends, perhaps after months
    "spark.python.daemon.module": "regent.jobs.python_daemon",
    "spark.ui.retainedJobs": "10",  # kept even without the UI
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "10",
    "spark.sql.ui.retainedExecutions": "1",
}
_UNIX_SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""The JVM and its Python workers use no TCP. Its delayed acknowledgements add 40 ms to each job."""
_MAX_SOCKET_DIRECTORY: Final = 40  # a path of a socket has 107 bytes at most; Spark adds up to 65

logger = logging.getLogger(__name__)


class PlacementState(StrEnum):
    """Whether the service is warm."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"


class PlacementService:
    """Answers PlaceTopicsRequest and PlacementStatusRequest from ``start`` to ``stop``.

    Temporary files are in ``work_directory``, which no other process may use; files of a killed
    predecessor are removed.
    """

    def __init__(
        self, keys: KeyPair, known: KnownKeys, bind: str, work_directory: Path | None = None
    ) -> None:
        self._work_directory = work_directory
        users = local_users(SAME)  # brokers and jobs are processes of the same user
        self._server = ControlServer(
            keys, known, bind, self._dispatch, name="placement-server", users=users
        )
        self._places = threading.Semaphore(MAX_WAITING)
        self._inbox = SimpleQueue[Callable[[], None] | None]()
        self._thread = NamedThread(self._run, "placement")
        self._is_stopping = False
        self._set(PlacementState.STARTING, "Spark is starting")
        # Only the thread uses these; ``stop`` kills the JVM.
        self._jvm: SparkJvm | None = None
        self._started_at = 0.0
        self._failures = 0  # in a row

    @property
    def endpoint(self) -> str:
        """The listening endpoint; with the real port once started."""
        return self._server.endpoint

    def start(self, on_failure: Callable[[RegentError], None] = logger.error) -> None:
        """Listen and begin to start Spark; see ``ControlServer.start``. Raises PortInUseError."""
        if self._work_directory is not None:
            self._work_directory.mkdir(parents=True, exist_ok=True)
            for left_over in self._work_directory.glob(f"{DIRECTORY_PREFIX}*"):
                shutil.rmtree(left_over, ignore_errors=True)
        self._server.start(on_failure)
        self._inbox.put(self._start_spark)
        self._thread.start()

    def stop(self) -> None:
        """Refuse waiting requests, end Spark at once, and stop listening."""
        self._is_stopping = True  # first: a JVM that starts from now on is killed by its thread
        if (jvm := self._jvm) is not None:
            jvm.kill()
        self._inbox.put(None)
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.stop()

    # --- the thread of the server -----------------------------------------------------------------

    def _dispatch(self, incoming: IncomingRequest) -> None:
        match incoming.body:
            case PlacementStatusRequest():
                incoming.reply(self._status)
            case PlaceTopicsRequest() as request:
                refusal = self._enqueue(incoming, request)
                if refusal is not None:
                    incoming.reply(refusal)
            case _:
                incoming.reply.fail(Errors.INVALID_REQUEST)

    def _enqueue(
        self, incoming: IncomingRequest, request: PlaceTopicsRequest
    ) -> PlaceTopicsResponse | None:
        """Put the request into the inbox; return the response of a refused one."""
        try:
            check(request)
        except PlacementError as error:
            return PlaceTopicsResponse(error.error_code, str(error))
        if sum(topic.partitions for topic in request.topics) > MAX_PARTITIONS:
            return _refused(
                Errors.INVALID_PARTITIONS,
                f"more than {MAX_PARTITIONS} partitions at once are for '{program()} jobs place'",
            )
        if not self._places.acquire(blocking=False):
            return _refused(Errors.OPERATION_NOT_ATTEMPTED, f"{MAX_WAITING} requests wait already")
        self._inbox.put(partial(self._answer, incoming, request))
        return None

    # --- the thread of the session ----------------------------------------------------------------

    def _run(self) -> None:
        """Do what is in the inbox, until ``stop``; an error does not end the thread."""
        for work in iter(self._inbox.get, None):
            try:
                work()
            except Exception:  # any error: the next request still needs an answer
                logger.exception("The placement service has a defect")
        self._drop_spark()

    def _set(self, state: PlacementState, message: str = "") -> None:
        self._status = PlacementStatusResponse(Errors.NONE, state.value, message)
        logger.info("Placement service is %s%s", state, f": {message}" if message else "")

    def _start_spark(self) -> None:
        """Start Spark, unless it was started since."""
        if self._jvm is not None:
            return
        self._started_at = time.monotonic()
        parent = os.fsencode(self._work_directory or tempfile.gettempdir())
        has_room = len(os.path.abspath(parent)) <= _MAX_SOCKET_DIRECTORY
        self._set(PlacementState.STARTING, "Spark is starting")
        try:
            self._jvm = SparkJvm(
                _CONF | (_UNIX_SOCKETS if has_room else {}),
                jvm_options=_JVM_OPTIONS,
                parent_directory=self._work_directory,
                on_exit=lambda jvm: self._inbox.put(partial(self._has_exited, jvm)),
            )
            if self._is_stopping:
                self._jvm.kill()
            self._jvm.session()
        except Exception as error:  # noqa: BLE001  any error: the next attempt may succeed
            self._fail(error)
            return
        self._set(PlacementState.WARMING, "Spark is warming up")
        self._inbox.put(partial(self._warm_up, _WARM_UPS))

    def _warm_up(self, left: int) -> None:
        """Run a small placement, so that the JVM loads and compiles the code of real requests."""
        if self._jvm is None:
            return
        try:
            self._place(_warm_up_request(left))
        except Exception as error:  # noqa: BLE001  any error: the session cannot be used
            self._fail(self._explain(error))
            return
        if left > 1:
            self._inbox.put(partial(self._warm_up, left - 1))
        else:
            self._set(PlacementState.READY)

    def _has_exited(self, jvm: SparkJvm) -> None:
        if jvm is self._jvm:
            self._fail(jvm.failure("Spark ended"))

    def _fail(self, error: Exception) -> None:
        """Drop the session; the next attempt is at once, or later after successive failures."""
        self._drop_spark()
        if self._is_stopping:
            return
        if time.monotonic() - self._started_at > _STABLE_S:
            self._failures = 0
        pause_s = min(2.0**self._failures - 1, _MAX_PAUSE_S)
        self._failures += 1
        if pause_s:
            self._set(PlacementState.FAILED, f"{error}; next attempt in {pause_s:g} s")
        else:
            self._set(PlacementState.STARTING, f"{error}; starting again")
        NamedTimer(pause_s, partial(self._inbox.put, self._start_spark), "placement-pause").start()

    def _drop_spark(self) -> None:
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.stop()

    def _answer(self, incoming: IncomingRequest, request: PlaceTopicsRequest) -> None:
        self._places.release()
        incoming.reply(self._response(request))

    def _response(self, request: PlaceTopicsRequest) -> PlaceTopicsResponse:
        for is_retry in (False, True):
            if self._is_stopping:
                return _refused(Errors.BROKER_NOT_AVAILABLE, "shutting down")
            if is_retry or self._status.state == PlacementState.STARTING:
                self._start_spark()
            if self._jvm is None:
                break
            try:
                return PlaceTopicsResponse(Errors.NONE, partitions=tuple(self._place(request)))
            except PlacementError as error:
                return _refused(error.error_code, str(error))
            except Exception as error:  # noqa: BLE001  any error: the client is told
                explanation = self._explain(error)
                if not self._jvm.has_exited():
                    return _refused(Errors.UNKNOWN_SERVER_ERROR, f"cannot place: {explanation}")
                self._fail(explanation)
        return _refused(Errors.BROKER_NOT_AVAILABLE, self._status.message)

    def _explain(self, error: Exception) -> Exception:
        """Return why a job failed: the JVM ended, or ``error``, which is logged as a defect."""
        if self._jvm is not None and self._jvm.has_exited(_EXIT_S):
            return self._jvm.failure("Spark ended during a job")
        logger.error("A placement failed", exc_info=error)
        return error

    def _place(self, request: PlaceTopicsRequest) -> list[PlacedPartition]:
        assert self._jvm is not None
        is_warm = self._status.state == PlacementState.READY
        with self._jvm.killed_after(JOB_TIMEOUT_S if is_warm else START_TIMEOUT_S):
            return place_with_spark(self._jvm.session(), request)


def _refused(error_code: Errors, message: str) -> PlaceTopicsResponse:
    return PlaceTopicsResponse(error_code, f"placement service: {message}")


def _warm_up_request(number: int) -> PlaceTopicsRequest:
    return PlaceTopicsRequest(
        topics=tuple(PlacementSpec(f"warm-up-{t}", 6 + number, 3, 0) for t in range(number)),
        brokers=tuple(PlacementBroker(b, f"rack-{b % 3}", 0) for b in range(6)),
        strategy=[*Strategy][number % len(Strategy)],
        start_index="0",
        index=IndexScope.BATCH,
        seed=0,
    )


def serve(
    bind: str, work_directory: Path | None, keys_dir: Path, announce: Callable[[str], None]
) -> None:
    """Run the service until SIGTERM or SIGINT. Call it on the main thread.

    It serves the owners of keys in a directory. ``announce`` gets the endpoint when it listens.

    Raises:
        PortInUseError, KeyFileError, OSError: of ``bind`` and ``work_directory``
        RegentError: the service cannot be reached any more
    """
    ignore_user_settings()
    os.environ["MALLOC_ARENA_MAX"] = "2"  # of the JVM: glibc's arenas take memory
    ends = SimpleQueue[int | RegentError]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: ends.put(number))
    keys, known = secret_at(keys_dir / PLACEMENT_SECRET), KeysDirectory(keys_dir)
    known.allowed()  # raises if it cannot be trusted
    service = PlacementService(keys, known, bind, work_directory)
    service.start(ends.put)
    try:
        announce(service.endpoint)
        why = ends.get()
    finally:
        service.stop()
    if isinstance(why, RegentError):
        raise why
