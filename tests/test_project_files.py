"""What sets the project up: every package pinned, every package of ours installed."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
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
    waiting += optional["console"]
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


NOT_TEXT = {
    "cluster/java/LocalUsersCnxnFactory.class": "ZooKeeper loads it; a test compiles its source",
    "tests/storage/kafka-2.8.2.zip": "log directories that Kafka wrote",
    "tests/storage/kafka-3.9.1.zip": "log directories that Kafka wrote",
}
"""The files that nobody can read, and why they are here."""


def test_every_file_in_the_tree_is_text_but_those_that_have_a_reason() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(30),
        check=True,
    ).stdout.split("\0")
    present = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    found = {str(path.relative_to(ROOT)) for path in present if b"\0" in path.read_bytes()}
    assert found == NOT_TEXT.keys()


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


# --- paths that a module computes from its own place ----------------------------------------------


WRITTEN = {ROOT / "bench/baseline.json"}
"""Files that a command of a checkout makes."""


def path_of(node: ast.AST, file: Path, names: Mapping[str, Path]) -> Path | None:
    """Return the path that an expression computes from ``__file__``; None: it is none."""

    def inner(node: ast.AST) -> Path | None:
        return path_of(node, file, names)

    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id="__file__")]):
            return file
        case ast.Call(func=ast.Attribute(value=value, attr="resolve"), args=[]):
            return inner(value)
        case ast.Attribute(value=value, attr="parent") if path := inner(value):
            return path.parent
        case ast.Subscript(
            value=ast.Attribute(value=value, attr="parents"), slice=ast.Constant(value=int(number))
        ) if path := inner(value):
            return path.parents[number]
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant(value=str(name))) if (
            path := inner(left)
        ):
            return path / name
        case ast.Call(
            func=ast.Attribute(value=value, attr="with_name"), args=[ast.Constant(value=str(name))]
        ) if path := inner(value):
            return path.with_name(name)
    return None


def computed_paths(node: ast.AST, file: Path, names: dict[str, Path]) -> Iterator[tuple[int, Path]]:
    """Yield the longest paths that a module computes from ``__file__``, and their lines.

    ``names`` are the variables that have such a path.
    """
    for child in ast.iter_child_nodes(node):
        path = path_of(child, file, names)
        if path is None:
            yield from computed_paths(child, file, names)
        elif isinstance(child, ast.expr) and path != file:
            yield child.lineno, path
        match child:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if path := path_of(value, file, names):
                names[name] = path


def test_a_path_that_a_module_computes_from_its_place_exists() -> None:
    """A folder above the module's own is the checkout: a module that moved would mean another."""
    wrong: list[str] = []
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    for file in (*ROOT.glob("*.py"), *(file for f in folders for file in f.rglob("*.py"))):
        text = file.read_text(encoding="utf-8")
        if "__file__" in text:
            for line, path in computed_paths(ast.parse(text), file, {}):
                is_above = path in file.parents and path != file.parent
                if not (path.exists() or path in WRITTEN) or (is_above and path != ROOT):
                    wrong.append(f"{file.relative_to(ROOT)}:{line} means {path}")
    assert not wrong
