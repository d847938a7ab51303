"""The resident placement service: a process with a warm Spark session in an actor.

It listens at once, while Spark starts. The thread of the server answers requests for the status at
any time. At most ``MAX_WAITING`` requests to place wait in the inbox of the actor; the first ones
warm Spark up. When the JVM dies it is started again, after a pause that doubles with each
successive failure, and the failed request is retried once.

    starting ──► warming ──► ready
      ▲   │         │          │
      │   └─────────┴──────────┴──► failed: requests are answered with the reason
      └──── after a pause ───────────┘

The process ends on SIGTERM and when its parent has ended; its JVM ends with it.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pykka

from regent.config.command_line import program
from regent.core.errors import Errors
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
from regent.jobs.spark_settings import QUICK_START
from regent.transport.server import ControlServer, IncomingRequest
from regent.transport.sockets import Context, new_context

MAX_WAITING: Final = 100
MAX_PARTITIONS: Final = 200_000
JOB_TIMEOUT_S: Final = 30.0  # in a warm session; a cold one has the time of a start
_STABLE_S: Final = 60.0  # a session that lasted as long counts as a successful start
_MAX_PAUSE_S: Final = 60.0
_EXIT_S: Final = 2.0  # time to notice that a JVM with a broken connection has ended
_STOP_TIMEOUT_S: Final = 5.0
_IDLE_S: Final = 60.0
_WARM_UPS: Final = 2 * len(Strategy)
_JVM_OPTIONS: Final = (  # live objects take some 70 MB; the heap stays near that
    *QUICK_START,
    "-Xms80m",
    "-Xmn32m",
    "-XX:MinHeapFreeRatio=20",
    "-XX:MaxHeapFreeRatio=40",
)
_CONF: Final = {"spark.python.daemon.module": "regent.jobs.python_daemon"}
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


class Shared:
    """What other threads read and do while the actor is busy."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._jvm: SparkJvm | None = None
        self.set(PlacementState.STARTING, "Spark is starting")

    def set(self, state: PlacementState, message: str = "") -> None:
        """Change the status."""
        self.status = PlacementStatusResponse(Errors.NONE, state.value, message)
        logger.info("Placement service is %s%s", state, f": {message}" if message else "")

    def guard(self, jvm: SparkJvm | None) -> None:
        """Set the JVM that ``stop`` kills; it is killed now if ``stop`` was called before."""
        self._jvm = jvm
        if self.is_stopping and jvm is not None:
            jvm.kill()

    def stop(self) -> None:
        """Kill the JVM and every later one, so that the actor does not wait for it."""
        self.is_stopping = True  # first: a JVM that is set from now on is killed by ``guard``
        if (jvm := self._jvm) is not None:
            jvm.kill()


class StartSpark(NamedTuple):
    """Start Spark, unless it was started since."""


class WarmUp(NamedTuple):
    """Run a small placement, so that the JVM loads and compiles the code of real requests."""

    left: int


class SparkExited(NamedTuple):
    """This JVM has ended."""

    jvm: SparkJvm


class Place(NamedTuple):
    """Answer this request; ``done`` is called when it leaves the inbox."""

    incoming: IncomingRequest
    request: PlaceTopicsRequest
    done: Callable[[], None]


Message: TypeAlias = StartSpark | WarmUp | SparkExited | Place


class Placement(pykka.ThreadingActor):
    """Owns the Spark session and runs every job in it, one after another."""

    use_daemon_thread = True

    def __init__(self, shared: Shared, work_directory: Path | None) -> None:
        super().__init__()
        self._shared = shared
        self._work_directory = work_directory
        self._jvm: SparkJvm | None = None
        self._started_at = 0.0
        self._failures = 0  # in a row

    def on_start(self) -> None:
        """Start Spark before the first message is handled."""
        self.on_receive(StartSpark())

    def on_receive(self, message: Message) -> None:
        """Handle a message; an error does not end this actor."""
        try:
            self._handle(message)
        except Exception:  # any error: the next request still needs an answer
            logger.exception("Placement cannot handle %s", type(message).__name__)

    def on_stop(self) -> None:
        """End the JVM and remove its files."""
        self._drop_spark()

    def _handle(self, message: Message) -> None:
        match message:
            case StartSpark():
                if self._jvm is None:
                    self._start_spark()
            case WarmUp(left):
                self._warm_up(left)
            case SparkExited(jvm):
                if jvm is self._jvm:
                    self._fail(jvm.failure("Spark ended"))
            case Place(incoming, request, done):
                done()
                incoming.reply(self._place(request))

    # --- the session ------------------------------------------------------------------------------

    def _start_spark(self) -> None:
        self._started_at = time.monotonic()
        parent = os.fsencode(self._work_directory or tempfile.gettempdir())
        has_room = len(os.path.abspath(parent)) <= _MAX_SOCKET_DIRECTORY
        self._shared.set(PlacementState.STARTING, "Spark is starting")
        try:
            self._jvm = SparkJvm(
                "local[2,2]",  # a task whose Python worker was killed runs once more
                app_name="regent-placement",
                parent_directory=self._work_directory,
                conf=_CONF | (_UNIX_SOCKETS if has_room else {}),
                jvm_options=_JVM_OPTIONS,
                on_exit=lambda jvm: self._tell(SparkExited(jvm)),
            )
            self._shared.guard(self._jvm)
            self._jvm.session()
        except Exception as error:  # noqa: BLE001  any error: the next attempt may succeed
            self._fail(error)
            return
        self._shared.set(PlacementState.WARMING, "Spark is warming up")
        self._tell(WarmUp(_WARM_UPS))

    def _warm_up(self, left: int) -> None:
        if self._jvm is None:
            return
        try:
            self._run(_warm_up_request(left))
        except Exception as error:  # noqa: BLE001  any error: the session cannot be used
            self._fail(self._explain(error))
            return
        if left > 1:
            self._tell(WarmUp(left - 1))
        else:
            self._shared.set(PlacementState.READY)

    def _fail(self, error: Exception) -> None:
        """Drop the session; the next attempt is at once, or later after successive failures."""
        self._drop_spark()
        if self._shared.is_stopping:
            return
        if time.monotonic() - self._started_at > _STABLE_S:
            self._failures = 0
        pause_s = min(2.0**self._failures - 1, _MAX_PAUSE_S)
        self._failures += 1
        if pause_s:
            self._shared.set(PlacementState.FAILED, f"{error}; next attempt in {pause_s:g} s")
        else:
            self._shared.set(PlacementState.STARTING, f"{error}; starting again")
        timer = threading.Timer(pause_s, self._tell, [StartSpark()])
        timer.daemon = True
        timer.start()

    def _drop_spark(self) -> None:
        jvm, self._jvm = self._jvm, None
        self._shared.guard(None)
        if jvm is not None:
            jvm.stop(gracefully=False)

    def _tell(self, message: Message) -> None:
        with suppress(pykka.ActorDeadError):
            self.actor_ref.tell(message)

    # --- jobs -------------------------------------------------------------------------------------

    def _place(self, request: PlaceTopicsRequest) -> PlaceTopicsResponse:
        for is_retry in (False, True):
            if self._shared.is_stopping:
                return _refused(Errors.BROKER_NOT_AVAILABLE, "shutting down")
            is_starting = self._shared.status.state == PlacementState.STARTING
            if self._jvm is None and (is_retry or is_starting):
                self._start_spark()
            if self._jvm is None:
                break
            try:
                return PlaceTopicsResponse(Errors.NONE, partitions=tuple(self._run(request)))
            except PlacementError as error:
                return _refused(error.error_code, str(error))
            except Exception as error:  # noqa: BLE001  any error: the client is told
                explanation = self._explain(error)
                if not self._jvm.has_exited():
                    return _refused(Errors.UNKNOWN_SERVER_ERROR, f"cannot place: {explanation}")
                self._fail(explanation)
        return _refused(Errors.BROKER_NOT_AVAILABLE, self._shared.status.message)

    def _explain(self, error: Exception) -> Exception:
        """Return why a job failed: the JVM ended, or ``error``, which is logged as a defect."""
        if self._jvm is not None and self._jvm.has_exited(_EXIT_S):
            return self._jvm.failure("Spark ended during a job")
        logger.error("A placement failed", exc_info=error)
        return error

    def _run(self, request: PlaceTopicsRequest) -> list[PlacedPartition]:
        assert self._jvm is not None
        is_warm = self._shared.status.state == PlacementState.READY
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


class PlacementService:
    """The actor and its server.

    Answers PlaceTopicsRequest and PlacementStatusRequest on ``endpoint`` from ``start`` to
    ``stop``. Temporary files are in ``work_directory``, which no other process may use; files of a
    killed predecessor are removed.
    """

    def __init__(self, context: Context, bind: str, work_directory: Path | None = None) -> None:
        self._shared = Shared()
        self._work_directory = work_directory
        self._places = threading.Semaphore(MAX_WAITING)
        self._actor: pykka.ActorRef[Placement] | None = None
        self._server = ControlServer(context, bind, self._dispatch, name="placement-server")

    @property
    def endpoint(self) -> str:
        """The listening endpoint; with the real port once started."""
        return self._server.endpoint

    def start(self) -> None:
        """Listen and begin to start Spark. Raises PortInUseError."""
        if self._work_directory is not None:
            self._work_directory.mkdir(parents=True, exist_ok=True)
            for left_over in self._work_directory.glob(f"{DIRECTORY_PREFIX}*"):
                shutil.rmtree(left_over, ignore_errors=True)
        self._server.start()
        self._actor = Placement.start(self._shared, self._work_directory)

    def stop(self) -> None:
        """Refuse waiting requests, end Spark at once, and stop listening."""
        self._shared.stop()
        if self._actor is not None:
            with suppress(pykka.ActorDeadError, pykka.Timeout):
                self._actor.stop(timeout=_STOP_TIMEOUT_S)
        self._server.stop()

    def _dispatch(self, incoming: IncomingRequest) -> None:
        match incoming.body:
            case PlacementStatusRequest():
                incoming.reply(self._shared.status)
            case PlaceTopicsRequest() as request:
                refusal = self._enqueue(incoming, request)
                if refusal is not None:
                    incoming.reply(refusal)
            case _:
                incoming.reply.fail(Errors.INVALID_REQUEST)

    def _enqueue(
        self, incoming: IncomingRequest, request: PlaceTopicsRequest
    ) -> PlaceTopicsResponse | None:
        """Send the request to the actor; return the response of a refused one."""
        try:
            check(request)
        except PlacementError as error:
            return PlaceTopicsResponse(error.error_code, str(error))
        if sum(topic.partitions for topic in request.topics) > MAX_PARTITIONS:
            return _refused(
                Errors.INVALID_PARTITIONS,
                f"more than {MAX_PARTITIONS} partitions at once are for '{program()} jobs place'",
            )
        if self._actor is None:
            return _refused(Errors.BROKER_NOT_AVAILABLE, self._shared.status.message)
        if not self._places.acquire(blocking=False):
            return _refused(Errors.OPERATION_NOT_ATTEMPTED, f"{MAX_WAITING} requests wait already")
        self._actor.tell(Place(incoming, request, self._places.release))
        return None


def serve(
    bind: str,
    *,
    work_directory: Path | None = None,
    death_pipe: int | None = None,
    announce: Callable[[str], None] | None = None,
) -> int:
    """Run the service until SIGTERM, SIGINT or the end of the parent; return the exit status.

    ``death_pipe`` is the reading end of a pipe whose other end only the parent holds;
    ``announce`` gets the endpoint when the service listens. Call it on the main thread.

    Raises:
        PortInUseError, OSError: of ``bind`` and ``work_directory``
    """
    wake_reader, wake_writer = os.pipe()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.write(wake_writer, b"\0"))
    context = new_context()
    service = PlacementService(context, bind, work_directory)
    service.start()
    try:
        if announce:
            announce(service.endpoint)
        watched = [wake_reader] if death_pipe is None else [wake_reader, death_pipe]
        while not select.select(watched, [], [], _IDLE_S)[0]:
            pass
    finally:
        service.stop()
        context.destroy(linger=0)
    return 0
