"""Tests wait for nothing without a limit, and their limits grow with the load of the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SHORT_S: Final = 2.0
"""Shorter waits are for what must not come: they are not scaled."""

FIRST_IS_LIMIT: Final = {"join", "wait", "result", "exception", "settimeout", "get"}
HAVE_KEYWORD: Final = {
    *("communicate", "acquire", "urlopen", "runpytest", "runpytest_subprocess"),
    *("run", "check_call", "check_output"),
}
WAITING: Final = {"threading", "subprocess", "multiprocessing", "queue", "concurrent"}
"""Where none of these is imported, ``FIRST_IS_LIMIT`` are names of other methods."""

HAVE_LIMITS: Final = {
    "testing/waits.py: process.stdout.readline()",  # there is a line
    "tests/actors/test_inbox.py: inbox.get()",  # an inbox of pykka that is not empty
    "tests/broker/api/test_groups.py: group.join(3)",  # a member joins a group
    "tests/broker/api/test_groups.py: self.join(3)",
    "tests/broker/test_broker_process.py: process.wait()",  # a BrokerProcess, told to stop
    "tests/genuine_clients/test_compressed_frames.py: reader.stdout",  # a Watch kills the reader
    "tests/support/fake_zookeeper.py: self.wait()",  # time of a simulation passes
    "tests/system/test_hardship.py: threading.Event().wait(1.5 * SESSION_TIMEOUT_MS / 1000)",
    "tests/system/test_plan_execution.py: process.stderr",  # a timer kills the process
    "tests/transport/kafka/test_throttle.py: both.wait(5)",  # a Throttle, milliseconds
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_output(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in {"stdout", "stderr"}


def limit_of(call: ast.Call, *, has_others: bool) -> ast.expr | None:
    """Return the limit of a call; itself if there is none; None if it does not wait.

    ``has_others``: there are other threads or processes to wait for.
    """
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in by_name:
        return None  # **options
    if "timeout" in by_name:
        return by_name["timeout"]
    if name == "create_connection":
        return call.args[1] if len(call.args) > 1 else call
    if not isinstance(call.func, ast.Attribute):
        return None
    if name in FIRST_IS_LIMIT and has_others and not call.keywords and len(call.args) < 2:
        return next(iter(call.args), call)
    if name in {"read", "readline"} and is_output(call.func.value):
        return call
    if name in {"run", "check_call", "check_output"}:
        return call if ast.unparse(call.func.value) == "subprocess" else None
    return call if name in HAVE_KEYWORD and "blocking" not in by_name else None


def waits_of(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what waits and its limit; itself if it has none."""
    nodes = list(ast.walk(tree))
    tasks = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
    imported = {
        alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    has_others = bool({name.partition(".")[0] for name in imported} & WAITING)
    for node in nodes:
        if isinstance(node, ast.For | ast.comprehension) and is_output(node.iter):
            yield node.iter, node.iter
        elif isinstance(node, ast.With) and isinstance(node.items[0].context_expr, ast.Call):
            started = node.items[0].context_expr
            if ast.unparse(started.func) == "subprocess.Popen" and ".kill(" not in ast.unparse(
                node
            ):
                yield started, started
        elif isinstance(node, ast.Call) and id(node) not in tasks:
            limit = limit_of(node, has_others=has_others)
            if limit is not None:
                yield node, limit


def value_of(name: str, path: Path) -> ast.AST | None:
    """Return the expression of a constant of a module, or of the one it is imported from."""
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                return node.value
        elif isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            module = (node.module or "").removeprefix("regent.").replace(".", "/")
            source = ROOT / f"{module}.py"
            return value_of(name, source) if source.exists() else None
    return None


def grows(limit: ast.AST, path: Path) -> bool:
    """Whether a limit is scaled, short, or somebody else's choice."""
    for node in ast.walk(limit):
        if isinstance(node, ast.Call):
            return True  # scaled, left_s, and what asks them
        if isinstance(node, ast.Name):
            value = value_of(node.id, path)
            return value is None or grows(value, path)
    if isinstance(limit, ast.Constant) and isinstance(limit.value, int | float):
        return limit.value < SHORT_S
    return True


def wrong_waits(path: Path) -> Iterator[str]:
    for wait, limit in waits_of(tree_of(path)):
        if limit is wait or not grows(limit, path):
            called = f"{path.relative_to(ROOT)}: {ast.unparse(wait)}"
            if called not in HAVE_LIMITS:
                yield f"{called}: {'has no limit' if limit is wait else 'is not scaled'}"


def test_every_wait_has_a_limit_that_grows_with_the_load():
    paths = {path for folder in ("tests", "testing") for path in (ROOT / folder).rglob("*.py")}
    paths -= set((ROOT / "tests/simulation").rglob("*.py"))  # its threads are simulated
    wrong = [problem for path in sorted(paths) for problem in wrong_waits(path)]
    assert wrong == [], "use regent.testing.waits: scaled, eventually, next_line or await_end"


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ("thread.join()", False),
        ("thread.join(5)", False),
        ("thread.join(TIMEOUT_S)", False),
        ("thread.join(scaled(TIMEOUT_S))", True),
        ("thread.join(GROWING_S)", True),
        ("thread.join(limit_s)", True),
        ("event.wait(0.05)", True),
        ("event.wait(timeout=3.0)", False),
        ("future.result()", False),
        ("answers.get()", False),
        ("answers.get(timeout=scaled(5))", True),
        ("settings.get(name)", True),
        ("process.communicate()", False),
        ("process.stdout.readline()", False),
        ("[line for line in process.stdout]", False),
        ("for line in process.stderr: print(line)", False),
        ("subprocess.run(command, check=True)", False),
        ("subprocess.run(command, timeout=120)", False),
        ("subprocess.run(command, timeout=GROWING_S)", True),
        ("with subprocess.Popen(command) as process: process.poll()", False),
        ("with subprocess.Popen(command) as process: process.kill()", True),
        ("socket.create_connection(address)", False),
        ("await reply.wait()", True),
    ],
)
def test_a_wait_is_recognized(line: str, is_right: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "import subprocess, threading\nTIMEOUT_S = 5.0\nGROWING_S = scaled(5.0)\n"
        f"async def test_it(limit_s):\n    {line}\n"
    )
    waits = waits_of(tree_of(path))
    assert all(limit is not wait and grows(limit, path) for wait, limit in waits) == is_right
