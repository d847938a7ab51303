"""What a hint tells to type works in the shell where it is read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import regent
from regent.config.command_line import pip_install, program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts of a Python environment below the working directory; not on the PATH."""
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    for name in ("python", "pip", "regent"):
        (scripts / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return scripts


@pytest.mark.usefixtures("environment")
def test_outside_the_environment_hints_name_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_install("regent-cluster[jdk]") == ".venv/bin/pip install 'regent-cluster[jdk]'"
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert program() == ".venv/bin/python run.py"
    monkeypatch.setattr(sys, "argv", [str(Path(regent.__file__).with_name("__main__.py"))])
    assert program() == ".venv/bin/python -m regent"
    monkeypatch.setattr(sys, "argv", [".venv/bin/regent"])
    assert program() == ".venv/bin/regent"


def test_inside_the_environment_names_are_enough(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{environment}:/usr/bin:/bin")
    assert pip_install("pyspark") == "pip install pyspark"
    for called in ("run.py", str(environment / "regent")):
        monkeypatch.setattr(sys, "argv", [called])
        assert program() == "regent"


def test_elsewhere_whole_paths_are_named(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a folder").mkdir()
    monkeypatch.chdir(tmp_path / "a folder")
    monkeypatch.setattr(sys, "argv", ["../run.py"])
    assert program() == f"{environment}/python {tmp_path}/run.py"
