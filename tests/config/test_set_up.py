"""Which Python .venv gets, and how its set-up goes on after anything that left it broken.

The Pythons only print a time as one would; the environments are real, with a pip that downloads
nothing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regent.config import set_up
from regent.config.set_up import chosen, fastest, seconds_of_work
from regent.testing.waits import scaled

ROOT = Path(__file__).parents[2]

PYTHON = r"""#!/bin/sh
# A Python whose environments have our pip. It needs 10 ms for the work that is timed.
case "$2" in
venv)
  echo "venv $4" >> log
  "$REAL_PYTHON" -m venv --without-pip "$3" "$4" || exit
  cp -R "$PIP" "$PIP-1.dist-info" "$4"/lib/python3.*/site-packages
  ;;
*) echo 0.010 ;;
esac
"""
PIP = """
import os, pathlib, signal, sys, sysconfig, time
with open("log", "a") as log:
    log.write(f"pip {sys.argv[-1]}\\n")
library = pathlib.Path(sysconfig.get_path("purelib"))
if pathlib.Path("no-network").exists():
    sys.exit(1)
(library / "thing-1.dist-info").mkdir(exist_ok=True)
(library / "thing-1.dist-info" / "METADATA").write_text("Name: thing\\nVersion: 1\\n")
(library / "thing-1.dist-info" / "RECORD").unlink(missing_ok=True)
if pathlib.Path("kill-make").exists():
    os.remove("kill-make")
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)  # it goes on without its parent, and must not be disturbed
    with open("log", "a") as log:
        log.write("pip goes on\\n")
    sys.exit(1)
(library / "thing.py").touch()
(library / "thing-1.dist-info" / "RECORD").write_text("thing.py,,\\n__pycache__/thing.pyc,,\\n")
"""
# There is no regent that could find Java.
DONE = ["pip wheel", "pip .[jobs,console,dev]", "pip .[jdk]"]


@pytest.fixture
def pythons(tmp_path: Path) -> tuple[str, str, str]:
    """Make a Python that needs 10 ms, one that needs 9.5 and one that needs 8."""
    paths = []
    for seconds in ("0.010", "0.0095", "0.008"):
        path = tmp_path / f"python-{seconds}"
        path.write_text(f"#!/bin/sh\necho {seconds}\n")
        path.chmod(0o755)
        paths.append(str(path))
    return paths[0], paths[1], paths[2]


def test_a_python_that_is_much_faster_is_taken(pythons: tuple[str, str, str]) -> None:
    slow, _, fast = pythons
    assert fastest(slow, [fast]) == fast


def test_a_python_that_is_hardly_faster_is_not_taken(pythons: tuple[str, str, str]) -> None:
    slow, little_faster, fast = pythons
    assert fastest(slow, [little_faster]) == slow
    assert fastest(fast, [slow]) == fast


def test_a_python_that_cannot_be_used_is_never_taken(
    pythons: tuple[str, str, str], tmp_path: Path
) -> None:
    slow, _, fast = pythons
    assert fastest(str(tmp_path / "none"), [slow]) == slow
    assert fastest("/bin/false", [fast]) == fast
    assert fastest(slow, ["/bin/true"]) == slow
    assert fastest("/bin/false", ["/bin/true"]) is None


def test_the_python_that_runs_this_can_be_used() -> None:
    assert seconds_of_work(sys.executable)


def test_a_python_that_is_too_old_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "OLDEST", (99, 0))
    assert seconds_of_work(sys.executable) is None


def test_the_python_that_was_asked_for_is_taken_however_slow_it_is(
    pythons: tuple[str, str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen(pythons[0]) == pythons[0]
    assert capsys.readouterr() == ("", "")


def test_a_python_that_was_asked_for_and_cannot_be_used_is_refused_in_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^/bin/false: Python 3.11 or later with venv is needed"):
        chosen("/bin/false")


class Checkout:
    """A folder that can be set up, with a log of what was run for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / ".venv"
        (folder / "config").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", folder / "Makefile")
        script = (ROOT / "config" / "set_up.py").read_text()
        only = script.replace('"/usr/bin/python3"', 'shutil.which("python3")')  # nothing to time
        (folder / "config" / "set_up.py").write_text(only)
        for name in ("pyproject.toml", "constraints.txt"):
            (folder / name).touch()

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``make`` for the environment."""
        return subprocess.run(
            ["make", "--no-print-directory", ".venv/.installed", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=scaled(120),
            check=False,
        )

    def log(self) -> list[str]:
        """Return what was run since the last call."""
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    @property
    def library(self) -> Path:
        (library,) = self.venv.glob("lib/python3.*/site-packages")
        return library


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A checkout that was set up; ``python3`` is a Python with our pip."""
    tools = tmp_path / "tools"
    pip = tools / "pip"
    (pip / "_internal").mkdir(parents=True)
    for name in ("__init__.py", "_internal/__init__.py"):
        (pip / name).touch()
    (pip / "__main__.py").write_text(PIP)
    (tools / "pip-1.dist-info").mkdir()
    (tools / "pip-1.dist-info" / "RECORD").write_text("pip/__main__.py,,\n")
    python = tools / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    monkeypatch.setenv("PIP", str(pip))
    monkeypatch.setenv("REAL_PYTHON", os.path.realpath(sys.executable))
    checkout = Checkout(tmp_path / "a checkout")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("MAKEFLAGS", f"RUNNERS={sys.executable}")
    assert checkout.make().returncode == 0
    assert checkout.log() == [f"venv {checkout.venv}", *DONE]
    return checkout


def test_another_python_is_taken_only_when_it_is_asked_for(checkout: Checkout) -> None:
    outdate(checkout)
    asked = f"PYTHON={checkout.folder.parent / 'tools' / 'python3'}"  # not what runs there
    assert checkout.make(asked).returncode == 0
    assert checkout.log() == [f"venv {checkout.venv}", *DONE]


def outdate(checkout: Checkout) -> None:
    os.utime(checkout.venv / ".installed", (0, 0))


def test_a_complete_environment_is_not_changed(checkout: Checkout) -> None:
    made = checkout.make()
    assert "up to date" in made.stdout
    assert checkout.log() == []


def test_an_environment_that_works_is_kept_when_the_requirements_change(checkout: Checkout) -> None:
    outdate(checkout)
    assert checkout.make().returncode == 0
    assert checkout.log() == DONE


def test_without_a_network_an_environment_that_works_is_not_lost(checkout: Checkout) -> None:
    outdate(checkout)
    (checkout.folder / "no-network").touch()
    failed = checkout.make()
    assert failed.returncode != 0
    assert "-m pip install" in failed.stderr.splitlines()[0]
    assert "failed; run make again" in failed.stderr.splitlines()[0]
    (checkout.folder / "no-network").unlink()
    assert checkout.make().returncode == 0
    assert checkout.log() == ["pip wheel", *DONE]


def without_python(checkout: Checkout) -> None:
    for link in (checkout.venv / "bin").glob("python*"):
        link.unlink()
        link.symlink_to("/no/such/python")


def without_pip(checkout: Checkout) -> None:
    """As after an interruption of venv."""
    (checkout.venv / ".installed").unlink()
    shutil.rmtree(checkout.library / "pip")


def with_half_of_pip(checkout: Checkout) -> None:
    outdate(checkout)
    (checkout.library / "pip" / "__main__.py").unlink()


def with_half_of_a_distribution(checkout: Checkout) -> None:
    outdate(checkout)
    (checkout.library / "thing-1.dist-info" / "RECORD").unlink()


def with_a_file_that_is_missing(checkout: Checkout) -> None:
    outdate(checkout)
    (checkout.library / "thing.py").unlink()


def with_another_version_of_python(checkout: Checkout) -> None:
    checkout.library.parent.rename(checkout.venv / "lib" / "python3.9")
    stamp = checkout.venv / ".installed"
    stamp.write_text(re.sub(r" 3 \d+", " 3 9", stamp.read_text()))


def with_nothing_but_a_folder(checkout: Checkout) -> None:
    shutil.rmtree(checkout.venv)
    checkout.venv.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        without_python,
        without_pip,
        with_half_of_pip,
        with_half_of_a_distribution,
        with_a_file_that_is_missing,
        with_another_version_of_python,
        with_nothing_but_a_folder,
    ],
)
def test_make_heals_an_environment(checkout: Checkout, damage: Callable[[Checkout], None]) -> None:
    damage(checkout)
    assert checkout.make().returncode == 0
    assert checkout.log() == [f"venv {checkout.venv}", *DONE]
    assert "up to date" in checkout.make().stdout


def test_make_heals_an_environment_that_was_moved(checkout: Checkout) -> None:
    moved = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.folder, checkout.venv = moved, moved / ".venv"
    assert checkout.make().returncode == 0
    assert checkout.log() == [f"venv {checkout.venv}", *DONE]


def test_make_continues_after_it_was_killed_during_pip(checkout: Checkout) -> None:
    outdate(checkout)
    (checkout.folder / "kill-make").touch()
    assert checkout.make().returncode != 0
    assert checkout.make().returncode == 0
    assert checkout.log() == ["pip wheel", "pip goes on", f"venv {checkout.venv}", *DONE]


def test_the_second_of_two_runs_waits_and_finds_the_environment_complete(
    checkout: Checkout,
) -> None:
    shutil.rmtree(checkout.venv)
    command = [sys.executable, "config/set_up.py"]
    both = [
        subprocess.Popen(command, cwd=checkout.folder, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=scaled(120))[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "waiting for another process that sets up .venv\n" in said
    assert checkout.log() == [f"venv {checkout.venv}", *DONE]


def test_without_any_python_one_line_says_so(checkout: Checkout) -> None:
    outdate(checkout)
    failed = checkout.make("RUNNERS=no-such-python")
    assert failed.stderr.splitlines()[0] == "python3 was not found: install Python 3.11 or later"
    assert failed.returncode != 0
