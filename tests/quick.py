"""``python -m tests.quick FILE…``: run the tests that belong to modules, in seconds.

To a module belong the test files with its name, then the smallest test files of its folder that
import it; if there are none, the smallest of any folder. They run until ``BUDGET_S`` is over. Tests
that need another process are left out: ``make test`` has them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = ROOT / "tests"
BUDGET_S: Final = 6.0
MOST_FILES: Final = 12
IN_PROCESS: Final = "not zookeeper and not spark and not system and not slow and not nightly"


def tests_of(file: Path) -> list[Path]:
    """Return the test files that belong to a file, a path relative to the checkout; best first."""
    if file.parts[0] == "tests":
        return [ROOT / file]
    named = [path for path in TESTS.rglob(f"test_{file.stem}.py") if _is_near(path, file)]
    importing = [path for path in TESTS.rglob("test_*.py") if _module(file) in _imported(path)]
    importing.sort(key=lambda path: path.stat().st_size)
    near = [path for path in importing if path.is_relative_to(TESTS / file.parent)]
    return list(dict.fromkeys([*named, *(near or ([] if named else importing))]))[:MOST_FILES]


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


def _is_near(path: Path, file: Path) -> bool:
    """Whether a test file is in the folder of the module's tests, or in one below."""
    return path.is_relative_to(TESTS / file.parts[0])


def _module(file: Path) -> str:
    return ".".join(["regent", *file.with_suffix("").parts])


def _imported(path: Path) -> set[str]:
    """Return the modules that a file imports, and the names that it imports from modules."""
    return set(_names(ast.parse(path.read_text())))


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def main(files: Sequence[str]) -> int:
    """Run the tests; return pytest's exit code, or 2 with one line if there is none to run."""
    found: list[Path] = []
    for name in files:
        file = Path(name).absolute()
        if file.suffix != ".py" or not file.is_relative_to(ROOT) or not file.is_file():
            return _refuse(f"{name} is not a Python file of this checkout")
        found += tests_of(file.relative_to(ROOT))
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
