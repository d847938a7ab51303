"""Supervises child processes: one loop handles signals, output, exits and restarts.

Everything happens on the main thread inside ``ProcessSupervisor.wait``. Signals, including SIGCHLD,
arrive in that loop as bytes of a socket, so it polls nothing and no signal interrupts it.
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from types import FrameType, TracebackType
from typing import Any, Self

from regent.cluster.child_process import Child
from regent.config.command_line import SAME_SIGNAL_S
from regent.core.errors import RegentError

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_WAIT_S = 60.0
_KILL_TIMEOUT_S = 10.0


class Restart(Enum):
    """Whether a child that ended by itself is started again."""

    NEVER = auto()
    ON_FAILURE = auto()
    """Unless its exit status is 0."""
    ALWAYS = auto()


@dataclass(slots=True)
class Backoff:
    """The pause before a restart, in seconds: doubled from one failure to the next.

    A process that ran for ``reset_after_s`` does not count as a failure.
    """

    first_s: float = 1.0
    longest_s: float = 30.0
    reset_after_s: float = 60.0
    _next_s: float = field(default=0.0, init=False)

    def pause_s(self, lived_s: float) -> float:
        """Return the pause after a process that ran for ``lived_s``."""
        if lived_s >= self.reset_after_s or not self._next_s:
            self._next_s = self.first_s
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self.longest_s)
        return pause_s


class SupervisionListener:
    """Gets the events of the children, on the main thread."""

    def on_ready(self, child: Child) -> None:
        """The child has printed its line ``ready: …``."""

    def on_exit(self, child: Child, status: int, restart_in_s: float | None) -> None:
        """The process has ended and was reaped; ``restart_in_s`` None: no restart."""

    def on_launched_again(self, child: Child) -> None:
        """A new process of the child has been started."""

    def on_launch_failed(self, child: Child, error: RegentError, restart_in_s: float) -> None:
        """The child could not be started; another attempt follows."""


@dataclass(slots=True)
class _Supervised:
    child: Child
    restart: Restart
    backoff: Backoff
    is_running: bool = False
    launched_at: float = 0.0
    restart_at: float | None = None


class ProcessSupervisor:
    """Supervises children from ``__enter__`` to ``__exit__``, which kills those still running.

    Use it on the main thread. Meanwhile SIGINT, SIGTERM and SIGHUP do not end this process: they
    are counted in ``stop_requests``, and the caller must act on them.
    """

    def __init__(self, listener: SupervisionListener | None = None) -> None:
        self.stop_requests = 0
        self._listener = listener or SupervisionListener()
        self._supervised: list[_Supervised] = []
        self._selector = selectors.DefaultSelector()
        self._signals = _SignalSocket()
        self._last_stop_request = float("-inf")

    @property
    def first_stop_requests(self) -> int:
        """How many requests an orderly stop follows; one more forces it."""
        return min(self.stop_requests, 1)

    def __enter__(self) -> Self:
        self._signals.open()
        self._selector.register(self._signals.reader, selectors.EVENT_READ, self._on_signals)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.kill_all()
        finally:
            self._selector.close()
            self._signals.close()

    # --- children ---

    def start(
        self, child: Child, restart: Restart = Restart.NEVER, backoff: Backoff | None = None
    ) -> None:
        """Launch a child and supervise it.

        Raises ``RegentError`` when it cannot be launched and has no restarts: else it is tried
        again.
        """
        if restart is Restart.NEVER:
            child.launch()
            self.adopt(child)
        else:
            supervised = _Supervised(child, restart, backoff or Backoff())
            self._supervised.append(supervised)
            self._try_to_launch(supervised)

    def adopt(
        self, child: Child, restart: Restart = Restart.NEVER, backoff: Backoff | None = None
    ) -> None:
        """Supervise a child that has been launched already."""
        supervised = _Supervised(child, restart, backoff or Backoff())
        self._supervised.append(supervised)
        self._launched(supervised)

    def start_again(self, child: Child) -> None:
        """Launch a child that has ended, without a pause.

        Raises ``RegentError``; then a restart that was to come still comes.
        """
        supervised = next(s for s in self._supervised if s.child is child)
        child.launch()
        supervised.restart_at = None
        self._launched(supervised)

    def is_running(self, child: Child) -> bool:
        """Whether the child has a process that was not reaped yet."""
        return any(s.is_running for s in self._supervised if s.child is child)

    def reap(self) -> None:
        """Reap the children that have ended.

        The loop does so after each event. The handler of a request calls it too, because the
        sender may have seen the end of a child before the loop.
        """
        for supervised in self._supervised:
            status = supervised.child.poll() if supervised.is_running else None
            if status is not None:
                self._ended(supervised, status)

    def stop_restarts(self) -> None:
        """Restart no child from now on."""
        for supervised in self._supervised:
            supervised.restart, supervised.restart_at = Restart.NEVER, None

    def end(self, child: Child, timeout_s: float) -> bool:
        """Ask a child to end, and wait; False at ``timeout_s``, and at another request to stop."""
        requests = self.first_stop_requests
        # A stopped process (SIGSTOP) handles no signal until SIGCONT.
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        self.wait(
            lambda: not self.is_running(child) or self.stop_requests > requests,
            timeout_s,
        )
        return not self.is_running(child)

    def kill(self, child: Child) -> None:
        """Kill a child."""
        child.send_signal(signal.SIGKILL)
        self.wait(lambda: not self.is_running(child), _KILL_TIMEOUT_S)

    def kill_all(self) -> None:
        """Kill every child that is still running."""
        self.stop_restarts()
        for supervised in self._supervised:
            supervised.child.send_signal(signal.SIGKILL)
        self.wait(lambda: not any(s.is_running for s in self._supervised), _KILL_TIMEOUT_S)

    # --- the loop ---

    def watch(self, source: socket.socket, on_readable: Callable[[], None]) -> None:
        """Call ``on_readable`` inside ``wait`` when ``source`` is readable."""
        self._selector.register(source, selectors.EVENT_READ, on_readable)

    def forget(self, source: socket.socket) -> None:
        """Stop watching ``source``. No-op if it is not watched."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(source)

    def wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Supervise until ``condition`` holds; False when it does not within ``timeout_s``.

        It is checked after every event of a child and after every signal.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._step(deadline)
        return True

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let stop signals raise ``KeyboardInterrupt`` in the block: no loop runs there."""
        self._signals.raises = True
        try:
            self._on_signals()
            if self.stop_requests:
                raise KeyboardInterrupt
            yield
        except KeyboardInterrupt:
            self._on_signals()
            raise
        finally:
            self._signals.raises = False

    def _step(self, deadline: float | None) -> None:
        wake_ups = [s.restart_at for s in self._supervised if s.restart_at is not None]
        wake_ups += [] if deadline is None else [deadline]
        timeout_s = min(wake_ups, default=float("inf")) - time.monotonic()
        for key, _ in self._selector.select(min(max(timeout_s, 0.0), _MAX_WAIT_S)):
            if key.fd in self._selector.get_map():  # an earlier handler may have removed it
                key.data()
        self.reap()
        for supervised in self._supervised:
            due = supervised.restart_at
            if due is not None and due <= time.monotonic() and self._try_to_launch(supervised):
                self._listener.on_launched_again(supervised.child)

    def _on_signals(self) -> None:
        for at in self._signals.take():
            if at - self._last_stop_request > SAME_SIGNAL_S:
                self.stop_requests += 1
                self._last_stop_request = at

    def _launched(self, supervised: _Supervised) -> None:
        supervised.is_running = True
        supervised.launched_at = time.monotonic()
        stdout = supervised.child.stdout
        if stdout is not None:
            self._selector.register(
                stdout, selectors.EVENT_READ, lambda: self._on_output(supervised.child)
            )

    def _on_output(self, child: Child) -> bool:
        was_ready = child.ready is not None
        more = child.read()
        if not more:
            self._forget_output(child)
        if not was_ready and child.ready is not None:
            self._listener.on_ready(child)
        return more

    def _forget_output(self, child: Child) -> None:
        stdout = child.stdout
        if stdout is not None and not stdout.closed:
            self._selector.unregister(stdout)
            stdout.close()

    def _ended(self, supervised: _Supervised, status: int) -> None:
        child = supervised.child
        supervised.is_running = False
        if child.stdout is not None and not child.stdout.closed:
            self._on_output(child)  # read what it printed last
            self._forget_output(child)
        wanted = supervised.restart is Restart.ALWAYS or (
            supervised.restart is Restart.ON_FAILURE and status != 0
        )
        pause_s = self._schedule_restart(supervised) if wanted else None
        self._listener.on_exit(child, status, pause_s)

    def _try_to_launch(self, supervised: _Supervised) -> bool:
        """Launch a child, or schedule the next attempt; return whether it was launched."""
        supervised.restart_at = None
        supervised.launched_at = time.monotonic()
        try:
            supervised.child.launch()
        except RegentError as error:
            pause_s = self._schedule_restart(supervised)
            self._listener.on_launch_failed(supervised.child, error, pause_s)
            return False
        self._launched(supervised)
        return True

    def _schedule_restart(self, supervised: _Supervised) -> float:
        now = time.monotonic()
        pause_s = supervised.backoff.pause_s(now - supervised.launched_at)
        supervised.restart_at = now + pause_s
        return pause_s


class _SignalSocket:
    """Delivers signals as bytes. ``raises``: requests to stop raise ``KeyboardInterrupt`` too.

    When each request came is noted at once: the loop may be away for long, and read two together.
    """

    def __init__(self) -> None:
        self.raises = False
        self._stops_at: list[float] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def open(self) -> None:
        """Install the signal handlers."""
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            # SIGHUP stays ignored under nohup(1). SIGINT is handled even where a script's shell
            # ignores it, for a command in the background.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_signal)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        self.reader.close()
        self._writer.close()

    def take(self) -> list[float]:
        """Return when requests to stop arrived since the last call."""
        with suppress(BlockingIOError):
            self.reader.recv(4096)
        taken, self._stops_at = self._stops_at, []
        return taken

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGCHLD:
            return
        self._stops_at.append(time.monotonic())
        if self.raises:
            raise KeyboardInterrupt
