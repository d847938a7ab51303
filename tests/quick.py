"""``python -m tests.quick FILE…``: run the tests that belong to modules, in seconds.

To a module belong the test files with its name, then the smallest test files of its folder that
import it; if there are none, the smallest of any folder; if there are none, those of the modules
that import it. They run until ``BUDGET_S`` is over. Tests that need another process are left out:
``make test`` has them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests"
BUDGET_S: Final = 6.0
MOST_FILES: Final = 12
IN_PROCESS: Final = "not zookeeper and not spark and not system and not slow and not nightly"


def belonging_to(file: Path) -> list[Path]:
    """Return the test files that belong to a file, a path relative to the checkout; best first."""
    if file.parts[0] == "tests":
        return [ROOT / file]
    asked, seen = [file], {file}
    for module in asked:  # grows
        found = _own_tests(module)
        if found:
            return found
        importing = {path.relative_to(ROOT) for path in _importing(module, _modules())}
        asked += sorted(importing - seen)
        seen |= importing
    return []


def _own_tests(file: Path) -> list[Path]:
    """Return the test files that have the name of a module or import it."""
    folder = TESTS / file.parts[0]
    named = [path for path in folder.rglob("test_*.py") if path.stem == f"test_{file.stem}"]
    importing = _importing(file, TESTS.rglob("test_*.py"))
    importing.sort(key=lambda path: path.stat().st_size)
    near = [path for path in importing if path.is_relative_to(TESTS / file.parent)]
    return list(dict.fromkeys([*named, *(near or ([] if named else importing))]))[:MOST_FILES]


def _modules() -> Iterator[Path]:
    """Yield the modules of the product."""
    for path in ROOT.glob("[a-z]*/**/*.py"):
        if path.relative_to(ROOT).parts[0] not in ("tests", "bench", "build", "data"):
            yield path


def _importing(file: Path, among: Iterable[Path]) -> list[Path]:
    """Return the files that name a module in an import, or in a text, as lazy commands do."""
    module = ".".join(["regent", *file.with_suffix("").parts])
    return [path for path in among if file.stem in _text(path) and module in _named(path)]


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def _named(path: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(_text(path))))


class Budget:
    """Plugin of pytest: ends a run whose time is over, without counting that as a failure."""

    def __init__(self) -> None:
        self._end = monotonic() + BUDGET_S

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Look at the clock after each test."""
        if monotonic() > self._end:
            item.session.shouldstop = f"{BUDGET_S:g} s are over, make test has the rest"

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Return 0 if no test failed."""
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and not session.testsfailed:
            session.exitstatus = pytest.ExitCode.OK


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def main(files: Sequence[str]) -> int:
    """Run the tests; return pytest's exit code, or 2 with one line if there is none to run."""
    found: list[Path] = []
    for name in files:
        file = Path(name).absolute()
        if file.suffix != ".py" or not file.is_relative_to(ROOT) or not file.is_file():
            return _refuse(f"{name} is not a Python file of this checkout")
        found += belonging_to(file.relative_to(ROOT))
    if not found:
        return _refuse(f"no test imports {' or '.join(files)}: make test runs all tests")
    options = ["-q", "-m", IN_PROCESS, *map(str, dict.fromkeys(found))]
    return pytest.main(options, plugins=[Budget()])


def _refuse(problem: str) -> int:
    sys.stderr.write(f"{problem}\n")
    return 2


if __name__ == "__main__":
    options = sys.argv[1:]
    sys.exit(main(options) if options else _refuse("make quick FILE=core/model.py names a file"))
