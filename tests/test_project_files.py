"""What sets the project up: every package pinned, every package of ours installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from regent.testing.waits import scaled

ROOT = Path(__file__).parent.parent


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_every_package_is_pinned_and_so_is_what_it_needs() -> None:
    declared = project()["project"]
    optional = declared["optional-dependencies"]
    waiting = [*declared["dependencies"], *optional["jobs"], *optional["dev"]]
    names: set[str] = {canonicalize_name(name) for name in optional["jdk"]}
    names |= {canonicalize_name(Requirement(r).name) for r in project()["build-system"]["requires"]}
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and name not in names:
            names.add(name)
            waiting += distribution(name).requires or []
    assert names <= pinned().keys()


STUDIES = {
    "bench": "benchmarks: they measure a checkout, and start its stub brokers",
    "designs": "the designs before the controller: they are compared, no broker uses them",
    "tests": "they run in a checkout",
    "build": "what setuptools leaves",
}
"""The folders that are not in the wheel, and why."""


def test_every_package_of_ours_is_installed_and_no_study() -> None:
    ours = {
        ".".join(("regent", *path.parent.relative_to(ROOT).parts))
        for path in ROOT.glob("[a-z]*/**/__init__.py")
        if path.relative_to(ROOT).parts[0] not in STUDIES
    }
    assert {"regent", *ours} == set(project()["tool"]["setuptools"]["packages"])


def test_a_checkout_that_is_not_set_up_says_what_to_do() -> None:
    # Without site-packages there is no regent, as before the first `make`.
    command = [sys.executable, "-S", "-I", str(ROOT / "run.py"), "--help"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=scaled(30), check=False
    )
    assert result.returncode == 1
    assert result.stderr == "regent is not set up in this Python: run `make` first\n"


def test_an_editor_finds_our_imports_where_mypy_does() -> None:
    tool = project()["tool"]
    assert tool["pyright"]["extraPaths"] == tool["mypy"]["mypy_path"]
    settings = json.loads((ROOT / ".vscode" / "settings.json").read_text())
    assert settings["python.analysis.extraPaths"] == tool["mypy"]["mypy_path"]


def test_the_tests_run_on_the_pinned_versions() -> None:
    installed = {name: distribution(name).version for name in ("pyspark", "pyzmq", "kazoo")}
    assert installed.items() <= pinned().items()


def test_make_explains_its_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    for target in phony[1].split():
        assert re.search(rf"^#   make {target}\b", makefile, re.MULTILINE), target
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
