"""The resident placement service: a process whose Placement actor keeps a Spark session warm.

It listens at once; Spark starts behind it. Whether it is warm is answered by the server's own
thread, at any time. Requests to place wait in the actor's inbox, as many as ``MAX_WAITING``: while
Spark warms up they are part of the warming. When the JVM dies it is started again, after a pause
that doubles with every failure in a row, and the request it died of is tried once more.

    starting ──► warming ──► ready
        ▲  │        │          │       failed: no session until the next attempt;
        │  └────────┴──────────┴──► failed     requests are answered with the reason
        └───────────────────────────────┘

The process ends on SIGTERM and when its parent is gone; its JVM never outlives it.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import pykka
from pyspark.sql import SparkSession

from core.errors import Errors, RegentError
from core.placement import PlacementError, Strategy, check
from core.protocol import (
    PlacementBroker,
    PlacementSpec,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from jobs.placement_job import place_with_spark
from jobs.session import DIRECTORY_PREFIX, QUICK_START, SparkJvm
from transport.server import ControlServer, IncomingRequest
from transport.sockets import Context, new_context

MAX_WAITING: Final = 100
MAX_PARTITIONS: Final = 200_000
JOB_TIMEOUT_S: Final = 60.0
_STABLE_S: Final = 60.0  # a session that lived so long did not fail to start
_MAX_PAUSE_S: Final = 60.0
_EXIT_S: Final = 2.0  # how long a JVM whose connection broke may take to be seen dead
_STOP_TIMEOUT_S: Final = 5.0
_WARM_UPS: Final = 8
_JVM_OPTIONS: Final = (*QUICK_START, "-Xmn48m", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=30")

logger = logging.getLogger(__name__)


class PlacementState(StrEnum):
    """Whether the service is warm."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    FAILED = "failed"


class Status:
    """The state as it can be asked for at any time, whatever the actor is busy with."""

    def __init__(self) -> None:
        self._response = _status(PlacementState.STARTING, "Spark is starting")

    def set(self, state: PlacementState, message: str = "") -> None:
        """Change the state."""
        self._response = _status(state, message)  # one reference: readers see the old or the new
        logger.info("Placement service is %s%s", state, f": {message}" if message else "")

    def get(self) -> PlacementStatusResponse:
        """Return the state as an answer."""
        return self._response


def _status(state: PlacementState, message: str) -> PlacementStatusResponse:
    return PlacementStatusResponse(Errors.NONE, state.value, message)


class StartSpark(NamedTuple):
    """It is time for the next attempt."""


class WarmUp(NamedTuple):
    """Place something small, to make the JVM load and compile what real requests need."""

    left: int


class SparkExited(NamedTuple):
    """This JVM has ended."""

    jvm: SparkJvm


class Place(NamedTuple):
    """Answer this request; ``done`` is called when it no longer waits."""

    incoming: IncomingRequest
    request: PlaceTopicsRequest
    done: Callable[[], None]


Message: TypeAlias = StartSpark | WarmUp | SparkExited | Place


class Placement(pykka.ThreadingActor):
    """Owns the Spark session and runs every job in it, one after the other."""

    use_daemon_thread = True

    def __init__(self, status: Status, work_directory: Path | None) -> None:
        super().__init__()
        self._status = status
        self._work_directory = work_directory
        self._jvm: SparkJvm | None = None
        self._session: SparkSession | None = None
        self._started_at = 0.0
        self._failures = 0  # in a row
        self._closing = threading.Event()

    def close(self) -> None:
        """Make the actor drop what it is doing and stop; called by any thread."""
        self._closing.set()
        jvm = self._jvm
        if jvm is not None:
            jvm.kill()
        self.stop()

    def on_start(self) -> None:
        """Start Spark before the first message is looked at."""
        self.on_receive(StartSpark())

    def on_receive(self, message: Message) -> None:
        """Handle a message; nothing may end the actor but its owner."""
        try:
            self._handle(message)
        except Exception:  # the service must go on with the next request
            logger.exception("Placement actor cannot handle %s", type(message).__name__)

    def on_stop(self) -> None:
        """Leave no process and no file behind."""
        self._drop_spark()

    def _handle(self, message: Message) -> None:
        match message:
            case StartSpark():
                self._start_spark()
            case WarmUp(left):
                self._warm_up(left)
            case SparkExited(jvm):
                if jvm is self._jvm:
                    self._fail(jvm.failure("Spark ended"))
            case Place(incoming, request, done):
                done()
                if not self._closing.is_set():
                    incoming.reply(self._place(request))

    # --- the session ------------------------------------------------------------------------------

    def _start_spark(self) -> None:
        if self._closing.is_set() or self._session is not None:
            return
        self._status.set(PlacementState.STARTING, "Spark is starting")
        self._started_at = time.monotonic()
        try:
            self._jvm = SparkJvm(
                app_name="regent-placement",
                parent_directory=self._work_directory,
                jvm_options=_JVM_OPTIONS,
                on_exit=lambda jvm: self._tell(SparkExited(jvm)),
            )
            if self._closing.is_set():  # ``close`` may have come before there was a JVM to kill
                self._jvm.kill()
            self._session = self._jvm.session()
        except (RegentError, OSError) as error:
            self._fail(error)
            return
        self._status.set(PlacementState.WARMING, "Spark is warming up")
        self._tell(WarmUp(_WARM_UPS))

    def _warm_up(self, left: int) -> None:
        if self._session is None or self._jvm is None:
            return
        with self._jvm.killed_after(JOB_TIMEOUT_S):
            place_with_spark(self._session, _warm_up_request(left))
        if left > 1:
            self._tell(WarmUp(left - 1))
        else:
            self._status.set(PlacementState.READY)

    def _fail(self, error: Exception) -> None:
        """Drop the session and try again later: at once after a long life, ever later otherwise."""
        self._drop_spark()
        if self._closing.is_set():
            return
        if time.monotonic() - self._started_at > _STABLE_S:
            self._failures = 0
        pause_s = min(2.0**self._failures - 1, _MAX_PAUSE_S)
        self._failures += 1
        self._status.set(PlacementState.FAILED, f"{error}; next attempt in {pause_s:g} s")
        timer = threading.Timer(pause_s, self._tell, [StartSpark()])
        timer.daemon = True
        timer.start()

    def _drop_spark(self) -> None:
        jvm, self._jvm, self._session = self._jvm, None, None
        if jvm is not None:
            jvm.kill()  # it has nothing to save
            jvm.stop()

    def _tell(self, message: Message) -> None:
        if not self.actor_stopped.is_set():
            self.actor_inbox.put(pykka_envelope(message))
