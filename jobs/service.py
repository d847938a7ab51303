"""The placement service: a process with a warm Spark session, while topics are created.

It listens at once, while Spark starts. The thread of the server answers requests for the status at
any time. One other thread owns the session and does everything that needs it, in the sequence of
its requests, of which at most ``MAX_WAITING`` wait. It is ready after a first small placement,
which takes longer than later ones.

    starting ──► ready ──► the end

The process ends with status 0 on SIGTERM and after a time without requests to place, and otherwise
when Spark does not start or its JVM has ended. What waits then is answered with an error; the
supervisor starts the process again when it is needed. Its JVM ends with it.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Final, Generic, TypeAlias, TypeVar

from regent.config.command_line import program
from regent.config.threads import NamedThread
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
JOB_TIMEOUT_S: Final = 30.0
_EXIT_S: Final = 2.0  # time to notice that a JVM with a broken connection has ended
_STOP_TIMEOUT_S: Final = 5.0
_MAX_WAIT_S: Final = 3600.0
_ENDING: Final = "the service is ending"
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
    "spark.master": "local[1,2]",  # a task whose Python worker was killed runs once more
    "spark.app.name": "regent-placement",
    "spark.driver.memory": "512m",
    "spark.log.level": "ERROR",  # the log is there until the JVM ends
    "spark.python.daemon.module": "regent.jobs.python_daemon",
    "spark.ui.retainedJobs": "10",  # kept even without the UI
    "spark.ui.retainedStages": "10",
    "spark.ui.retainedTasks": "10",
    "spark.sql.ui.retainedExecutions": "1",
}
_UNIX_SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""The JVM and its Python workers use no TCP. Its delayed acknowledgements add 40 ms to each job."""
_MAX_SOCKET_DIRECTORY: Final = 40  # a path of a socket has 107 bytes at most; Spark adds up to 65

T = TypeVar("T")

_Asked: TypeAlias = tuple[IncomingRequest, PlaceTopicsRequest]

logger = logging.getLogger(__name__)


class PlacementState(StrEnum):
    """Whether the service can place."""

    STARTING = "starting"
    READY = "ready"


class WaitingRequests(Generic[T]):
    """The requests that wait for the thread of the session.

    ``take`` ends them when there was none for ``idle_s`` (None: never), or after ``close``. From
    then on none is accepted, so that none can be lost between the decision to end and the end.
    """

    def __init__(self, idle_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._waiting: deque[T] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def add(self, request: T) -> str:
        """Let a request wait; return why it may not, or an empty string. Thread-safe."""
        with self._changed:
            if self._is_closed:
                return _ENDING
            if len(self._waiting) >= MAX_WAITING:
                return f"{MAX_WAITING} requests wait already"
            self._waiting.append(request)
            self._changed.notify()
            return ""

    def take(self) -> T | None:
        """Return the next request; None: they have ended."""
        with self._changed:
            until = math.inf if self._idle_s is None else self._clock() + self._idle_s
            while not self._waiting and not self._is_closed:
                left_s = until - self._clock()
                if left_s > 0:
                    self._changed.wait(min(left_s, _MAX_WAIT_S))
                else:
                    self._is_closed = True
            return None if self._is_closed else self._waiting.popleft()

    def close(self) -> list[T]:
        """End them, and return those that waited. Thread-safe."""
        with self._changed:
            self._is_closed = True
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify()
            return left


class PlacementService:
    """Answers PlaceTopicsRequest and PlacementStatusRequest from ``start`` to ``stop``.

    Temporary files are in ``work_directory``, which no other process may use; files of a killed
    predecessor are removed. ``idle_s``: see ``WaitingRequests``.
    """

    def __init__(
        self,
        keys: KeyPair,
        known: KnownKeys,
        bind: str,
        work_directory: Path | None = None,
        idle_s: float | None = None,
    ) -> None:
        self._work_directory = work_directory
        users = local_users(SAME)  # brokers and jobs are processes of the same user
        self._server = ControlServer(
            keys, known, bind, self._dispatch, name="placement-server", users=users
        )
        self._requests = WaitingRequests[_Asked](idle_s)
        self._thread = NamedThread(self._run, "placement")
        self._on_end: Callable[[RegentError | None], None] = lambda _: None
        self._is_stopping = False
        self._set(PlacementState.STARTING, "Spark is starting")
        self._jvm: SparkJvm | None = None  # only the thread uses it; ``stop`` kills it

    @property
    def endpoint(self) -> str:
        """The listening endpoint; with the real port once started."""
        return self._server.endpoint

    def start(self, on_end: Callable[[RegentError | None], None]) -> None:
        """Listen and begin to start Spark; see ``ControlServer.start``. Raises PortInUseError.

        ``on_end`` is called on another thread when the service has failed; with None, when it was
        idle for too long.
        """
        if self._work_directory is not None:
            self._work_directory.mkdir(parents=True, exist_ok=True)
            for left_over in self._work_directory.glob(f"{DIRECTORY_PREFIX}*"):
                shutil.rmtree(left_over, ignore_errors=True)
        self._on_end = on_end
        self._server.start(on_end)
        self._thread.start()

    def stop(self) -> None:
        """Refuse waiting requests, end Spark at once, and stop listening."""
        self._is_stopping = True  # first: a JVM that starts from now on is killed by its thread
        if (jvm := self._jvm) is not None:
            jvm.kill()
        self._refuse_waiting()
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
        """Let the request wait; return the response of a refused one."""
        try:
            check(request)
        except PlacementError as error:
            return PlaceTopicsResponse(error.error_code, str(error))
        if sum(topic.partitions for topic in request.topics) > MAX_PARTITIONS:
            return _refused(
                Errors.INVALID_PARTITIONS,
                f"more than {MAX_PARTITIONS} partitions at once are for '{program()} jobs place'",
            )
        refusal = self._requests.add((incoming, request))
        return _refused(Errors.BROKER_NOT_AVAILABLE, refusal) if refusal else None

    # --- the thread of the session ----------------------------------------------------------------

    def _run(self) -> None:
        """Start Spark, answer requests until they end, and report the end."""
        failure: RegentError | None = None
        try:
            jvm = self._started()
            while (asked := self._requests.take()) is not None:
                incoming, request = asked
                incoming.reply(self._response(jvm, request))
            if jvm.has_exited():
                failure = jvm.failure("Spark ended")
        except RegentError as error:
            failure = error.with_traceback(None)
        except Exception as error:
            logger.exception("The placement service has a defect")
            failure = RegentError(f"the placement service has a defect: {error!r}")
        self._refuse_waiting(str(failure or _ENDING))
        if self._jvm is not None:
            self._jvm.stop()
        if not self._is_stopping:
            self._on_end(failure)

    def _set(self, state: PlacementState, message: str = "") -> None:
        self._status = PlacementStatusResponse(Errors.NONE, state.value, message)
        logger.info("Placement service is %s%s", state, f": {message}" if message else "")

    def _started(self) -> SparkJvm:
        """Start Spark, and place once: the JVM loads and compiles the code of real requests.

        Raises JavaNotFoundError, SparkFailedError.
        """
        parent = os.fsencode(self._work_directory or tempfile.gettempdir())
        has_room = len(os.path.abspath(parent)) <= _MAX_SOCKET_DIRECTORY
        jvm = self._jvm = SparkJvm(
            _CONF | (_UNIX_SOCKETS if has_room else {}),
            jvm_options=_JVM_OPTIONS,
            parent_directory=self._work_directory,
            on_exit=lambda _: self._refuse_waiting(),
        )
        if self._is_stopping:
            jvm.kill()
        jvm.session()
        self._set(PlacementState.STARTING, "Spark is warming up")
        try:
            self._place(jvm, _FIRST_REQUEST)
        except Exception as error:
            raise self._explained(jvm, error) from error
        self._set(PlacementState.READY)
        return jvm

    def _response(self, jvm: SparkJvm, request: PlaceTopicsRequest) -> PlaceTopicsResponse:
        try:
            return PlaceTopicsResponse(Errors.NONE, partitions=tuple(self._place(jvm, request)))
        except PlacementError as error:
            return _refused(error.error_code, str(error))
        except Exception as error:  # noqa: BLE001  any error: the client is told
            explained = self._explained(jvm, error)
            has_ended = jvm.has_exited()  # then another process can place
            code = Errors.BROKER_NOT_AVAILABLE if has_ended else Errors.UNKNOWN_SERVER_ERROR
            return _refused(code, f"cannot place: {explained}")

    def _explained(self, jvm: SparkJvm, error: Exception) -> RegentError:
        """Return why a job failed: the JVM ended, or ``error``, which is logged as a defect."""
        if jvm.has_exited(_EXIT_S):
            return jvm.failure("Spark ended during a job")
        logger.error("A placement failed", exc_info=error)
        return RegentError(str(error))

    def _place(self, jvm: SparkJvm, request: PlaceTopicsRequest) -> list[PlacedPartition]:
        is_warm = self._status.state == PlacementState.READY
        with jvm.killed_after(JOB_TIMEOUT_S if is_warm else START_TIMEOUT_S):
            return place_with_spark(jvm.session(), request)

    def _refuse_waiting(self, why: str = _ENDING) -> None:
        """Accept no request from now on. Thread-safe."""
        for incoming, _ in self._requests.close():
            incoming.reply(_refused(Errors.BROKER_NOT_AVAILABLE, why))


def _refused(error_code: Errors, message: str) -> PlaceTopicsResponse:
    return PlaceTopicsResponse(error_code, f"placement service: {message}")


_FIRST_REQUEST: Final = PlaceTopicsRequest(
    topics=(PlacementSpec("warm-up", 1, 1, 0),),
    brokers=(PlacementBroker(0, None, 0),),
    strategy=Strategy.RING,
    start_index="0",
    index=IndexScope.BATCH,
    seed=0,
)


def serve(
    bind: str,
    work_directory: Path | None,
    keys_dir: Path,
    announce: Callable[[str], None],
    *,
    idle_s: float | None = None,
) -> None:
    """Run the service until SIGTERM or SIGINT, or until it was idle. Call it on the main thread.

    It serves the owners of keys in a directory. ``announce`` gets the endpoint when it listens.

    Raises:
        PortInUseError, KeyFileError, OSError: of ``bind`` and ``work_directory``
        RegentError: Spark does not start or has ended; or nothing reaches the service any more
    """
    ignore_user_settings()
    os.environ["MALLOC_ARENA_MAX"] = "2"  # of the JVM: glibc's arenas take memory
    ends = SimpleQueue[RegentError | None]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.put(None))
    keys, known = secret_at(keys_dir / PLACEMENT_SECRET), KeysDirectory(keys_dir)
    known.allowed()  # raises if it cannot be trusted
    service = PlacementService(keys, known, bind, work_directory, idle_s)
    service.start(ends.put)
    try:
        announce(service.endpoint)
        why = ends.get()
    finally:
        service.stop()
    if why is not None:
        raise why
