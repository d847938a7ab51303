"""A wheel of the tree, and Python environments that have it and what it requires, nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import TypeAlias

import pytest
from packaging.requirements import Requirement

from regent.testing.waits import scaled

ROOT = Path(__file__).parents[2]
NOT_IN_A_WHEEL = shutil.ignore_patterns(".*", "__pycache__", "data", "build", "dist", "*.egg-info")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"

InstallWheel: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy: building writes into the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=NOT_IN_A_WHEEL)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, "wheel", *options, str(tree)], check=True, timeout=scaled(180))
    shutil.rmtree(tree)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def install_wheel(wheel: Path, tmp_path: Path) -> InstallWheel:
    """Make an environment with the wheel, what it requires for some extras, and other packages.

    What is required is linked from the environment of this process, so nothing is downloaded.
    """

    def install(extras: Sequence[str] = (), also: Sequence[str] = ()) -> Path:
        environment = tmp_path / "environment"
        venv.create(environment, with_pip=False)
        library = environment / LIBRARY
        for name in requirements(extras, also):
            link(name, library)
        python = environment / "bin" / "python"
        options = ["--no-deps", "--no-index", "--no-compile"]
        command = [*PIP, "--python", str(python), "install", *options, str(wheel)]
        subprocess.run(command, check=True, timeout=scaled(180))
        return environment

    return install


def requirements(extras: Sequence[str], also: Sequence[str]) -> set[str]:
    """Return the names of all distributions that the tree with these extras requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *also]
    declared += (name for extra in extras for name in project["optional-dependencies"][extra])
    waiting, found = [Requirement(text) for text in declared], set[str]()
    while waiting:
        required = waiting.pop()
        environments = [{"extra": extra} for extra in ("", *required.extras)]
        is_needed = required.marker is None or any(map(required.marker.evaluate, environments))
        if is_needed and required.name not in found:
            found.add(required.name)
            waiting += map(Requirement, distribution(required.name).requires or ())
    return found


def link(name: str, library: Path) -> None:
    """Put links to the files of a distribution into another library."""
    for file in distribution(name).files or ():
        top = file.parts[0]
        if top in ("..", "__pycache__") or (library / top).exists():
            continue
        (library / top).symlink_to(Path(str(distribution(name).locate_file(top))))
