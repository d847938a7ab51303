"""Supervision of tiny programs: what is seen of them, how they end, and when they come back."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regent.cluster import process_supervisor
from regent.cluster.child_process import (
    Child,
    ChildProcess,
    ChildStartError,
    DeathPipe,
    describe_exit,
)
from regent.cluster.process_supervisor import (
    Backoff,
    ProcessSupervisor,
    Restart,
    SupervisionListener,
)
from regent.core.errors import RegentError
from regent.testing.waits import next_line, pause_process, scaled

TIMEOUT_S = scaled(10.0)

SERVE = "print('ready: here', flush=True); import time; time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SERVE
# A signal just before ``signal.pause`` would be handled only after it.
ORDERLY = (
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
    "print('ready: here', flush=True); signal.sigwait([signal.SIGTERM])"
)
FAIL = "import sys; print('a trace', file=sys.stderr); sys.exit('no room left\\n')"
GUARDED = (
    "import os, sys; witness = open(sys.argv[1], 'w'); print('ready: here', flush=True);"
    "os.read(int(sys.argv[3]), 1)"
)


class Recorder(SupervisionListener):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.ready: list[str] = []
        self.exits: list[tuple[str, int, float | None]] = []
        self.launches: list[str] = []
        self.failed_launches: list[str] = []

    def on_ready(self, child: Child) -> None:
        assert child.ready is not None
        self.ready.append(child.ready)

    def on_exit(self, child: Child, status: int, restart_in_s: float | None) -> None:
        self.exits.append((child.name, status, restart_in_s))

    def on_launched_again(self, child: Child) -> None:
        self.launches.append(child.name)

    def on_launch_failed(self, child: Child, error: RegentError, restart_in_s: float) -> None:
        self.failed_launches.append(str(error))


@pytest.fixture
def death_pipe() -> Iterator[DeathPipe]:
    pipe = DeathPipe()
    yield pipe
    pipe.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def processes(recorder: Recorder) -> Iterator[ProcessSupervisor]:
    with ProcessSupervisor(recorder) as supervisor:
        yield supervisor


@pytest.fixture
def child(tmp_path: Path, death_pipe: DeathPipe) -> Callable[[str], ChildProcess]:
    def make(source: str) -> ChildProcess:
        return ChildProcess(
            "worker",
            lambda: [sys.executable, "-c", source],
            output=tmp_path / "logs" / "worker.out",
            death_pipe=death_pipe,
        )

    return make


def serving(processes: ProcessSupervisor, child: ChildProcess) -> ChildProcess:
    """Start a child and return it once it has said that it is ready."""
    processes.start(child)
    assert processes.wait(lambda: child.ready is not None, TIMEOUT_S)
    return child


def ended(processes: ProcessSupervisor, child: ChildProcess) -> bool:
    return processes.wait(lambda: not processes.is_running(child), TIMEOUT_S)


def test_the_announcement_of_a_ready_child_is_returned(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = serving(processes, child("print('hello'); " + SERVE))
    assert worker.ready == "here"
    assert recorder.ready == ["here"]
    assert not recorder.exits


def test_a_child_that_speaks_and_dies_at_once_was_ready(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = child("print('ready: here')")
    processes.start(worker)
    assert ended(processes, worker)
    assert recorder.ready == ["here"]
    assert recorder.exits == [("worker", 0, None)]


def test_a_failed_child_is_quoted(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = child(FAIL)
    processes.start(worker)
    assert ended(processes, worker)
    assert recorder.exits == [("worker", 1, None)]
    assert worker.last_line() == "no room left"


def test_the_reason_that_a_child_tells_its_parent_is_quoted_although_its_disk_is_full(
    processes: ProcessSupervisor, child: Callable[[str], ChildProcess]
) -> None:
    """Standard error is a file, and holds what was written before."""
    worker = child(
        "import sys; print('ready: x'); print('old', file=sys.stderr);"
        " print('ended: no room left'); sys.exit(1)"
    )
    processes.start(worker)
    assert processes.wait(lambda: not processes.is_running(worker), scaled(10))
    assert (worker.ready, worker.last_line()) == ("x", "no room left")


def test_a_child_that_ends_in_order_is_not_killed(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = serving(processes, child(ORDERLY))
    assert processes.end(worker, TIMEOUT_S)
    assert recorder.exits == [("worker", 0, None)]


def test_a_child_that_was_paused_ends_in_order(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = serving(processes, child(ORDERLY))
    assert worker.pid is not None
    pause_process(worker.pid)
    assert processes.end(worker, TIMEOUT_S)
    assert recorder.exits == [("worker", 0, None)]


def test_a_child_that_ignores_the_request_is_killed(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = serving(processes, child(DEAF))
    assert not processes.end(worker, 0.05)
    processes.kill(worker)
    assert recorder.exits == [("worker", -signal.SIGKILL, None)]


def test_another_request_to_stop_cuts_the_wait_for_a_child_short(
    processes: ProcessSupervisor, child: Callable[[str], ChildProcess]
) -> None:
    worker = serving(processes, child(DEAF))
    os.kill(os.getpid(), signal.SIGINT)
    assert not processes.end(worker, 600.0)


def test_a_signal_that_comes_twice_at_once_is_one_request(processes: ProcessSupervisor) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    assert processes.wait(lambda: processes.stop_requests > 0, TIMEOUT_S)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not processes.wait(lambda: processes.stop_requests > 1, 0.05)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_later_request_forces_although_both_were_read_together(
    processes: ProcessSupervisor,
    child: Callable[[str], ChildProcess],
    monkeypatch: pytest.MonkeyPatch,
    second: signal.Signals,
) -> None:
    """The loop was not there to read the first: it started a child, for example."""
    if signal.getsignal(second) == signal.SIG_IGN:
        pytest.skip(f"{second.name} is ignored, as nohup does, and so the supervisor ignores it")
    worker = serving(processes, child(DEAF))
    monkeypatch.setattr(process_supervisor, "SAME_SIGNAL_S", 0.0)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), second)
    assert processes.wait(lambda: processes.stop_requests == 2, TIMEOUT_S)
    assert not processes.end(worker, 600.0)


def test_a_request_to_stop_that_nobody_has_read_interrupts_what_begins(
    processes: ProcessSupervisor,
) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), processes.interruptible():
        pytest.fail("it began")


def test_a_request_to_stop_interrupts_only_where_it_may(processes: ProcessSupervisor) -> None:
    with pytest.raises(KeyboardInterrupt), processes.interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert processes.stop_requests == 1


def test_the_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ProcessSupervisor():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failed_child_is_restarted_and_a_finished_one_is_not(
    processes: ProcessSupervisor,
    recorder: Recorder,
    tmp_path: Path,
    child: Callable[[str], ChildProcess],
) -> None:
    fails_twice = (
        f"import pathlib, sys; runs = pathlib.Path({str(tmp_path / 'runs')!r});"
        "n = len(runs.read_text()) if runs.exists() else 0;"
        "runs.write_text('x' * (n + 1)); sys.exit(int(n < 2))"
    )
    worker = child(fails_twice)
    processes.start(worker, Restart.ON_FAILURE, Backoff(first_s=0.01, longest_s=1.0))
    assert processes.wait(lambda: len(recorder.exits) == 3, TIMEOUT_S)
    assert recorder.exits == [("worker", 1, 0.01), ("worker", 1, 0.02), ("worker", 0, None)]
    assert recorder.launches == ["worker", "worker"]


def test_a_required_child_is_restarted_after_every_exit_status(
    processes: ProcessSupervisor, recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = child("print('ready: here')")
    processes.start(worker, Restart.ALWAYS, Backoff(first_s=0.01))
    assert processes.wait(lambda: len(recorder.ready) == 2, TIMEOUT_S)
    processes.stop_restarts()
    assert ended(processes, worker)


def _starting_once(folder: Path, death_pipe: DeathPipe) -> ChildProcess:
    """Return a child that fails, and whose program is gone then."""
    program = folder / "program"
    program.write_text("#!/bin/sh\nrm $0; exit 1\n")
    program.chmod(0o755)
    return ChildProcess(
        "worker", lambda: [str(program)], output=folder / "out", death_pipe=death_pipe
    )


def test_a_failed_restart_of_a_child_is_tried_again(
    processes: ProcessSupervisor, recorder: Recorder, tmp_path: Path, death_pipe: DeathPipe
) -> None:
    worker = _starting_once(tmp_path, death_pipe)
    processes.start(worker, Restart.ON_FAILURE, Backoff(first_s=0.01))
    assert processes.wait(lambda: len(recorder.failed_launches) == 2, TIMEOUT_S)
    assert "worker cannot be started: " in recorder.failed_launches[0]


def test_a_child_that_cannot_be_started_at_all_is_an_error(
    processes: ProcessSupervisor, tmp_path: Path, death_pipe: DeathPipe
) -> None:
    missing = str(tmp_path / "missing")
    worker = ChildProcess(
        "worker", lambda: [missing], output=tmp_path / "out", death_pipe=death_pipe
    )
    with pytest.raises(ChildStartError, match="worker cannot be started"):
        processes.start(worker)


def test_an_automatic_restart_comes_although_one_on_request_has_failed(
    processes: ProcessSupervisor, recorder: Recorder, tmp_path: Path, death_pipe: DeathPipe
) -> None:
    worker = _starting_once(tmp_path, death_pipe)
    processes.start(worker, Restart.ON_FAILURE, Backoff(first_s=0.05))
    assert ended(processes, worker)
    with pytest.raises(ChildStartError):
        processes.start_again(worker)
    assert processes.wait(lambda: bool(recorder.failed_launches), TIMEOUT_S)


def test_the_pause_before_a_restart_doubles_until_one_lives_long_enough() -> None:
    backoff = Backoff()
    assert [backoff.pause_s(lived_s=0.0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert backoff.pause_s(lived_s=60.0) == 1
    assert backoff.pause_s(lived_s=59.0) == 2


def test_no_child_remains_when_the_supervisor_fails(
    recorder: Recorder, child: Callable[[str], ChildProcess]
) -> None:
    worker = child(DEAF)

    def fail() -> None:
        with ProcessSupervisor(recorder) as processes:
            serving(processes, worker)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert worker.poll() == -signal.SIGKILL


def test_no_child_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    os.mkfifo(witness)
    supervisor = f"""
from pathlib import Path
from regent.cluster.child_process import ChildProcess, DeathPipe
from regent.cluster.process_supervisor import ProcessSupervisor
pipe = DeathPipe()
command = lambda: [{sys.executable!r}, "-c", {GUARDED!r}, {str(witness)!r}]
workers = [ChildProcess(n, command, output=Path({str(tmp_path)!r}) / n, death_pipe=pipe)
           for n in "ab"]
with ProcessSupervisor() as processes:
    for worker in workers:
        processes.start(worker)
    processes.wait(lambda: all(w.ready for w in workers), {TIMEOUT_S})
    print("up", flush=True)
    processes.wait(lambda: False)
"""
    held_open = os.open(witness, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE) as process:
        try:
            assert next_line(process, "its workers are ready") == b"up\n"
        finally:
            process.kill()
    poll = select.poll()
    poll.register(held_open, 0)  # POLLHUP alone: the last writer is gone
    assert poll.poll(TIMEOUT_S * 1000)
    os.close(held_open)


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "with status 0"), (3, "with status 3"), (-9, "by SIGKILL"), (-99, "by signal 99")],
)
def test_an_end_is_put_into_words(status: int, text: str) -> None:
    assert describe_exit(status) == text


def test_the_handler_of_a_request_sees_the_end_of_a_child_that_its_sender_saw(
    processes: ProcessSupervisor, child: Callable[[str], ChildProcess]
) -> None:
    victim = serving(processes, child(SERVE))
    seen: list[bool] = []

    def handle() -> None:
        receiver.recv(1)
        processes.reap()
        seen.append(processes.is_running(victim))

    sender, receiver = socket.socketpair()
    with sender, receiver:
        processes.watch(receiver, handle)
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
        sender.send(b"?")
        assert processes.wait(lambda: bool(seen), TIMEOUT_S)
        processes.forget(receiver)
    assert seen == [False]
