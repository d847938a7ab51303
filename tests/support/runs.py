"""Plugin of pytest for runs: how one ends early, how long a test may take, which histories are new.

SIGINT and SIGTERM end a run after the test in progress, which fails at once: its fixtures are torn
down, its name is among the failures. A second signal of them does nothing. The workers of
pytest-xdist do the same. One that does not end in ``ENDING_S`` is killed. Temporary files are
removed; pytest keeps those of failed tests only when a run comes to its end.
"""

from __future__ import annotations

import multiprocessing.util
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

import pytest
import pytest_timeout

from regent.testing.waits import scaled

ENDING_S: Final = 30
FIRST_SEED: Final = "REGENT_FIRST_SEED"
"""Environment variable: the first seed of the histories; a new one for each run by default."""

_SIGNALS: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
_PHASES: Final = {"pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown"}


class Ending:
    """Ends a session at a signal."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._controller: Any = session.config.pluginmanager.getplugin("dsession")
        for number in _SIGNALS:
            signal.signal(number, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._session.shouldstop:
            return
        reason = _SIGNALS[signal.Signals(number)]
        self._session.shouldstop = reason
        if self._controller is not None:
            self._end_workers(number, reason)
        elif any(of.f_code.co_name in _PHASES for of, _ in walk_stack(frame)):
            pytest.fail(f"{reason} ended the run during this test", pytrace=False)

    def pytest_unconfigure(self, config: Any) -> None:
        """Remove the temporary files of all workers."""
        if self._session.shouldstop in _SIGNALS.values() and not hasattr(config, "workerinput"):
            folder: Path = config._tmp_path_factory.getbasetemp()
            shutil.rmtree(folder, ignore_errors=True)
            current = folder.parent / "pytest-current"
            if current.is_symlink() and not current.exists():
                current.unlink()
            with suppress(OSError):
                folder.parent.rmdir()  # if no other run has a folder

    def _end_workers(self, number: int, reason: str) -> None:
        self._controller.shouldstop = reason
        for worker in _children():
            with suppress(ProcessLookupError):
                os.kill(worker, number)
        signal.signal(signal.SIGALRM, _interrupt)
        signal.alarm(ENDING_S)


def pytest_configure() -> None:
    """Choose the histories, for all workers."""
    os.environ.setdefault(FIRST_SEED, str(random.SystemRandom().randrange(10**9)))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Handle the signals, also where ``make test &`` ignores Ctrl-C."""
    session.config.pluginmanager.register(Ending(session))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Give a test more time while the machine is busy."""
    settings = settings._replace(timeout=scaled(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, settings)


@pytest.fixture(scope="session", autouse=True)
def _folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep temporary files of all that tests start below pytest's own; remove them at the end."""
    multiprocessing.util.get_temp_dir()  # which Python itself removes, after this
    folder = tmp_path_factory.mktemp("tmp", numbered=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield
    shutil.rmtree(folder, ignore_errors=True)


def _children() -> Iterator[int]:
    """Yield the pids of the processes that this one has started: the workers."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                yield int(stat.parent.name)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
