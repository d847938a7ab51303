"""The rules of the house, as a test: who may import whom, how long things may get."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "core": set(),
    "config": {"core"},
    "storage": {"core", "config"},
    "zk": {"core", "config"},
    "transport": {"core", "config"},
    "api": {"core", "transport"},
    "cluster": {"core", "config", "storage", "zk", "transport"},
    "actors": {"core", "config", "storage", "zk", "transport"},
    "metrics": {"core", "config", "storage", "zk", "transport", "cluster", "actors"},
    "broker": {
        *("core", "config", "storage", "zk", "transport"),
        *("api", "cluster", "actors", "metrics"),
    },
    "admin": {"core", "config", "zk", "transport", "cluster"},
    "jobs": {"core", "config", "zk", "transport", "storage", "admin"},
    "testing": {"core", "config", "zk", "transport", "cluster"},
    "designs": {"core", "config", "zk", "transport", "cluster", "actors", "testing", "jobs"},
    "cli": {
        *("core", "config", "storage", "zk", "transport"),
        *("api", "cluster", "actors", "broker", "admin", "jobs", "designs", ""),
    },
}
"""The packages inside ``regent``, and which each may import beside itself; "" is the top level."""

TOP_LEVEL = {"__init__.py": set(), "__main__.py": {"cli"}, "run.py": {"cli"}, "spark.py": {"jobs"}}
"""The modules of the top level, and which package each may import: they are short names for it."""

HOMES = {
    "kazoo": {"zk"},
    "zmq": {"transport"},
    "msgpack": {"transport"},
    "pyspark": {"jobs"},
    "py4j": {"jobs"},
    "pykka": {"actors", "broker", "metrics", "jobs/service.py", "designs"},
    "click": {"cli", "jobs", "admin/cluster_connection.py"},
    "rich": {"cli"},
    "cramjam": {"core/compression.py"},
    "crc32c": {"storage", "api/record_validation.py", "api/old_message_formats.py"},
    "numpy": {"jobs"},
    "pyarrow": {"jobs"},
    "matplotlib": {"jobs/reports/page.py"},
    "confluent_kafka": {"jobs", "cli/produce.py", "cli/consume.py", "cli/group_admin.py"},
}
"""Libraries, and the only places that may import them."""

IMPURE = {"time", "random", "threading", "socket", "os", "pathlib", "subprocess", "datetime"}
IMPURE |= {"asyncio", "select", "secrets", "uuid", "io", "tempfile", "signal", "queue"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 50
LONG_BY_NATURE = {
    "core/controller/controller.py::_dispatch",  # one match over every event
    "api/record_validation.py::_walk",  # for every record: a call costs as much as it
}


def sources() -> Iterator[Path]:
    """Yield every module of ours that is not a test."""
    yield from (ROOT / name for name in TOP_LEVEL)
    for package in MAY_IMPORT:
        yield from sorted((ROOT / package).rglob("*.py"))


SOURCES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sources()}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the module that every import names, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def libraries(tree: ast.Module) -> set[str]:
    """Return the top-level names of what a module imports, ``regent`` apart."""
    return {module.partition(".")[0] for module in imported(tree)} - {"regent"}


def packages(tree: ast.Module) -> set[str]:
    """Return our packages that a module imports; "" for the top level."""
    modules = (module.split(".") for module in imported(tree))
    return {"".join(names[1:2]) for names in modules if names[0] == "regent"}


@pytest.mark.parametrize("name", SOURCES)
def test_imports_point_one_way(name: str):
    package = name.partition("/")[0]
    allowed = TOP_LEVEL[name] if name in TOP_LEVEL else MAY_IMPORT[package] | {package}
    ours = packages(SOURCES[name])
    assert ours <= allowed, f"{name} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize("name", SOURCES)
def test_our_modules_are_imported_by_their_full_names(name: str):
    assert not libraries(SOURCES[name]) & MAY_IMPORT.keys()


def test_the_guardian_imports_nothing_but_the_standard_library():
    tree = SOURCES["zk/client/orphaned_session.py"]
    assert {module.partition(".")[0] for module in imported(tree)} <= sys.stdlib_module_names


@pytest.mark.parametrize("name", SOURCES)
def test_every_library_has_a_home(name: str):
    package = name.partition("/")[0]
    for module in libraries(SOURCES[name]):
        homes = HOMES.get(module)
        assert homes is None or {package, name} & homes, f"{name} imports {module}"


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("core/")])
def test_the_core_has_no_clock_no_dice_and_no_outside(name: str):
    assert not IMPURE & libraries(SOURCES[name])


@pytest.mark.parametrize("name", SOURCES)
def test_files_and_functions_stay_short(name: str):
    lines = (ROOT / name).read_text().count("\n")
    assert lines <= MAX_FILE_LINES, f"{name} has {lines} lines"
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            is_short = length <= MAX_FUNCTION_LINES or f"{name}::{node.name}" in LONG_BY_NATURE
            assert is_short, f"{name}: {node.name} has {length} lines"


@pytest.mark.parametrize("name", SOURCES)
def test_names_say_what_a_module_is_about(name: str):
    assert not {"utils.py", "common.py", "helpers.py", "misc.py"} & set(name.split("/"))


def topic_partitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the parameters and variables that are annotated as a TopicPartition, with their lines.

    Not fields of a class: a field is read beside its owner, which says what it is of.
    """
    kinds = {"TopicPartition", "TopicPartition | None"}
    fields = {
        id(statement)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
    }
    for node in ast.walk(tree):
        annotation = getattr(node, "annotation", None)
        if id(node) in fields or annotation is None or ast.unparse(annotation) not in kinds:
            continue
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


@pytest.mark.parametrize("name", SOURCES)
def test_a_topic_partition_is_called_one(name: str):
    wrong = [
        f"{name}:{line}: {called}"
        for called, line in topic_partitions(SOURCES[name])
        if not called.endswith("topic_partition")
    ]
    assert wrong == []


def test_a_class_has_a_name_of_its_own():
    names = Counter(
        node.name
        for name, tree in SOURCES.items()
        if not name.startswith("transport/kafka/messages/")  # these have Kafka's names
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def starts_of_threads(tree: ast.Module) -> set[str]:
    """Return which of the ways to start a thread, other than ours, a module uses."""
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return called & {
        *("Thread", "threading.Thread", "threading.Timer", "asyncio.to_thread"),
        *("ThreadPoolExecutor", "futures.ThreadPoolExecutor", "start_http_server"),
    }


@pytest.mark.parametrize("name", SOURCES)
def test_the_threads_of_a_broker_have_its_prefix(name: str):
    of_brokers = MAY_IMPORT["broker"] | {"broker"}
    if name.partition("/")[0] in of_brokers and name != "config/threads.py":
        assert starts_of_threads(SOURCES[name]) == set(), "use config/threads.py"


@pytest.mark.parametrize("name", SOURCES)
def test_nobody_unwraps_the_ref_of_an_actor(name: str):
    assert "_actor_weakref" not in {
        node.attr for node in ast.walk(SOURCES[name]) if isinstance(node, ast.Attribute)
    }
