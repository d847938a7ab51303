"""The rules of the house, as a test: who may import whom, how long things may get."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.module_map import PAGE, module_map

ROOT = Path(__file__).parent.parent

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "config": {"core"},
    "records": {"core"},
    "storage": {"core", "config", "records"},
    "zk": {"core", "config"},
    "transport": {"core", "config"},
    "cluster": {"core", "config", "storage", "zk", "transport"},
    "actors": {"core", "config", "records", "storage", "zk", "transport"},
    "broker": {
        *("core", "config", "records", "storage"),
        *("zk", "transport", "cluster", "actors", ""),
    },
    "client": {"core", "config", "storage", "zk", "transport", "cluster"},
    "console": {"core", "config", "zk", "transport", "cluster", "client"},
    "jobs": {"core", "config", "records", "storage", "zk", "transport", "client"},
    "testing": {"core", "config", "zk", "transport", "cluster"},
    "designs": {
        "core",
        "config",
        "zk",
        "transport",
        "cluster",
        "actors",
        "testing",
        "client",
        "jobs",
        "cli",
    },
    "cli": {
        *("core", "config", "storage", "zk", "transport"),
        *("cluster", "broker", "client", "console", "jobs", ""),
    },
}
"""The packages inside ``regent``, and which each may import beside itself; "" is the top level."""

ROOMS: dict[str, dict[str, set[str]]] = {
    "core": {
        "protocol": set(),
        "quota": set(),
        "security": {"protocol"},
        "placement": {"protocol"},
        "replication": {"protocol"},
        "coordinator": {"protocol", "replication"},
        "controller": {"protocol"},
        "admin": {"protocol", "quota", "placement", "replication", "controller", "security"},
    },
    "core/controller": {
        "election": set(),
        "topics": {"election"},
        "reassignment": {"election", "topics"},
        "brokers": {"election", "topics", "reassignment"},
    },
    "storage": {"log": set(), "recovery": {"log"}, "compaction": {"log"}},
    "zk": {"client": set(), "codecs": set(), "stores": {"client", "codecs"}},
    "transport": {"control": set(), "kafka": {"control"}},
    "broker": {"api": set(), "metrics": set()},
}
"""The rooms inside a package or a room, and which of its rooms each may import.

What lies beside the rooms is either below all of its rooms, or puts them together.
"""

TOP_LEVEL = {"__init__.py": set(), "__main__.py": {"cli"}, "run.py": {"cli"}, "spark.py": {"jobs"}}
"""The modules of the top level, and which package each may import: they are short names for it."""

HOMES = {
    "kazoo": {"zk"},
    "zmq": {"transport"},
    "msgpack": {"transport", "designs/mail.py"},
    "pyspark": {"jobs"},
    "py4j": {"jobs"},
    "pykka": {"actors", "broker", "designs"},
    "click": {"cli", "jobs", "client/cluster_connection.py", "designs"},
    "rich": {"cli"},
    "cramjam": {"records/compression.py"},
    "crc32c": {"records", "storage"},
    "numpy": {"jobs"},
    "pyarrow": {"jobs"},
    "matplotlib": {"jobs/reports/page.py"},
    "starlette": {"console"},
    "uvicorn": {"console"},
    "jinja2": {"console"},
    "markupsafe": {"console"},
    "confluent_kafka": {
        *("jobs", "cli/produce.py", "cli/consume.py", "cli/group_admin.py"),
        *(
            "console/record_browser.py",
            "console/bootstrap_source.py",
            "client/cluster_connection.py",
        ),
    },
}
"""Libraries, and the only places that may import them."""

IMPURE = {"time", "random", "threading", "socket", "os", "pathlib", "subprocess", "datetime"}
IMPURE |= {"asyncio", "select", "secrets", "uuid", "io", "tempfile", "signal", "queue"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 50
LONG_BY_NATURE = {
    "core/controller/controller.py::_dispatch",  # one match over every event
    "records/record_validation.py::walk",  # for every record: a call costs as much as it
}

CLASSES_OF_TWO = {
    *("LeaderAndIsrRequest", "LeaderAndIsrResponse"),
    *("ListedGroup", "ListedTopic"),
    *("StopReplicaRequest", "StopReplicaResponse"),
    *("UpdateMetadataBroker", "UpdateMetadataRequest", "UpdateMetadataResponse"),
}
"""Names that two classes still have: most are a Kafka message and a value of core's control port.

It only gets shorter: a test fails if a name here has one class.
"""

MODULES_OF_SEVERAL = {
    *("acls", "api", "api_versions", "authentication", "authorizer", "broker", "client"),
    *("client_quotas", "configs", "connection", "control"),
    *("controlled_shutdown", "controller", "coordinator", "delete_records"),
    *("describe_cluster", "describe_producers", "events"),
    *("features", "files", "group_coordinator", "group_offsets", "groups"),
    *("log_dirs", "metadata", "model", "offsets", "options", "output"),
    *("partitions", "placement", "produce", "producer_ids", "reference"),
    *("scram_credentials", "session", "timers", "tls", "topics"),
    *("transaction_coordinator", "transactions", "znodes", "zookeeper"),
}
"""Names that more than one module still has, without ``.py``. It only gets shorter, too."""


def sources() -> Iterator[Path]:
    """Yield every module of ours that is not a test."""
    yield from (ROOT / name for name in TOP_LEVEL)
    for package in MAY_IMPORT:
        yield from sorted((ROOT / package).rglob("*.py"))


class Source:
    """A module of ours; ``name`` is its path."""

    def __init__(self, path: Path) -> None:
        self.name = str(path.relative_to(ROOT))
        self.package = self.name.partition("/")[0]
        text = path.read_text()
        self.lines = text.count("\n")
        self.tree = ast.parse(text)
        self.nodes = list(ast.walk(self.tree))
        imported = list(self._imported())
        self.libraries = {module.partition(".")[0] for module in imported} - {"regent"}
        """The top-level names of what it imports, ``regent`` apart."""
        ours = [module.split(".") for module in imported]
        self.packages = {"".join(names[1:2]) for names in ours if names[0] == "regent"}
        """Our packages that it imports; "" for the top level."""
        self.modules = {f"{'/'.join(names[1:])}/" for names in ours if names[0] == "regent"}
        """The modules of ours that it imports, as paths that end with a slash."""

    def _imported(self) -> Iterator[str]:
        """Yield the module that every import names, wherever it stands."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: imports are absolute"
                yield node.module or ""


@functools.cache
def all_sources() -> dict[str, Source]:
    """Return the sources by name.

    A test checks all, and names those that break its rule: tests by the thousand take longer.
    They are parsed by the first test: while tests are collected, every worker would do it.
    """
    return {source.name: source for source in map(Source, sources())}


def test_imports_point_one_way():
    wrong = {
        name: source.packages - allowed
        for name, source in all_sources().items()
        for allowed in [TOP_LEVEL.get(name) or MAY_IMPORT.get(source.package, set())]
        if not source.packages <= allowed | {source.package}
    }
    assert wrong == {}


def test_imports_point_one_way_inside_a_package():
    wrong: dict[str, set[str]] = {}
    for package, rooms in ROOMS.items():
        for room, allowed in rooms.items():
            for name, source in all_sources().items():
                if name.startswith(f"{package}/{room}/"):
                    forbidden = tuple(f"{package}/{r}/" for r in rooms.keys() - allowed - {room})
                    others = {module for module in source.modules if module.startswith(forbidden)}
                    wrong |= {name: others} if others else {}
    assert wrong == {}


def test_our_modules_are_imported_by_their_full_names():
    assert [s.name for s in all_sources().values() if s.libraries & MAY_IMPORT.keys()] == []


def test_the_guardian_imports_nothing_but_the_standard_library():
    guardian = all_sources()["zk/client/orphaned_session.py"]
    assert guardian.packages == set()
    assert guardian.libraries <= sys.stdlib_module_names


def test_every_library_has_a_home():
    wrong = [
        f"{source.name} imports {module}"
        for source in all_sources().values()
        for module in source.libraries & HOMES.keys()
        if not {source.package, source.name} & HOMES[module]
    ]
    assert wrong == []


def test_the_core_has_no_clock_no_dice_and_no_outside():
    core = [source for source in all_sources().values() if source.package == "core"]
    assert [source.name for source in core if IMPURE & source.libraries] == []


def test_files_stay_short():
    assert [s.name for s in all_sources().values() if s.lines > MAX_FILE_LINES] == []


def test_functions_stay_short():
    functions = {
        f"{source.name}::{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for source in all_sources().values()
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    long = {name for name, length in functions.items() if length > MAX_FUNCTION_LINES}
    assert long - LONG_BY_NATURE == set()


def test_names_say_what_a_module_is_about():
    vague = {"utils.py", "common.py", "helpers.py", "misc.py"}
    assert [name for name in all_sources() if vague & set(name.split("/"))] == []


def topic_partitions(source: Source) -> Iterator[tuple[str, int]]:
    """Yield the parameters and variables that are annotated as a TopicPartition, with their lines.

    Not fields of a class: a field is read beside its owner, which says what it is of.
    """
    kinds = {"TopicPartition", "TopicPartition | None"}
    fields = {
        id(statement)
        for node in source.nodes
        if isinstance(node, ast.ClassDef)
        for statement in node.body
    }
    for node in source.nodes:
        annotation = getattr(node, "annotation", None)
        if id(node) in fields or annotation is None or ast.unparse(annotation) not in kinds:
            continue
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def test_variables_with_a_topic_partition_have_that_name():
    wrong = [
        f"{source.name}:{line}: {called}"
        for source in all_sources().values()
        for called, line in topic_partitions(source)
        if not called.endswith("topic_partition")
    ]
    assert wrong == []


def test_a_class_has_a_name_of_its_own():
    names = Counter(
        node.name
        for source in all_sources().values()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == CLASSES_OF_TWO


def test_a_module_has_a_name_of_its_own():
    names = Counter(Path(name).stem for name in all_sources())
    several = {name for name, count in names.items() if count > 1}
    assert several - {"__init__", "__main__"} == MODULES_OF_SEVERAL


def starts_of_threads(source: Source) -> set[str]:
    """Return which of the ways to start a thread, other than ours, a module uses."""
    called = {ast.unparse(node.func) for node in source.nodes if isinstance(node, ast.Call)}
    return called & {
        *("Thread", "threading.Thread", "threading.Timer", "asyncio.to_thread"),
        *("ThreadPoolExecutor", "futures.ThreadPoolExecutor", "start_http_server"),
    }


def test_the_threads_of_a_broker_have_its_prefix():
    of_brokers = MAY_IMPORT["broker"] | {"broker"}
    wrong = {
        source.name: started
        for source in all_sources().values()
        if source.package in of_brokers and source.name != "config/threads.py"
        if (started := starts_of_threads(source))
    }
    assert wrong == {}, "use config/threads.py"


def keeps(value: ast.AST, name: str) -> bool:
    """Whether a value is an exception, or a choice or collection that has it."""
    if isinstance(value, ast.Name):
        return value.id == name
    if isinstance(value, ast.Call | ast.Attribute | ast.JoinedStr | ast.Compare):
        return False
    return any(keeps(part, name) for part in ast.iter_child_nodes(value))


def kept_exceptions(source: Source) -> Iterator[int]:
    """Yield the lines where an ``except`` keeps its exception with its traceback."""
    for handler in source.nodes:
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in ast.walk(handler):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
                kept: list[ast.expr] = [node.value]
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in {"append", "put", "set_exception", "setdefault"}
            ):
                kept = node.args
            else:
                continue
            if any(keeps(value, handler.name) for value in kept):
                yield node.lineno


def test_no_code_keeps_an_exception_with_its_traceback():
    wrong = [
        f"{name}:{line}"
        for name, source in all_sources().items()
        for line in kept_exceptions(source)
    ]
    assert wrong == [], (
        "a variable or object that keeps an exception keeps all local variables of the frames in"
        " its traceback, often in a cycle: keep str(error) or error.with_traceback(None)"
    )


def test_no_module_unwraps_the_ref_of_an_actor():
    wrong = {
        source.name
        for source in all_sources().values()
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr == "_actor_weakref"
    }
    assert wrong == set()


def test_the_map_has_a_line_for_every_module():
    assert PAGE.read_text() == module_map(), "make fix writes docs/map.md again"


def test_the_documents_name_files_that_exist():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench" / "README.md"]
    missing = {
        f"{page.relative_to(ROOT)}: {named}"
        for page in pages
        if page.name != "CHANGELOG.md"
        for named in re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page.read_text())
        if (ROOT / named.partition("/")[0]).is_dir() and not (ROOT / named).exists()
    }
    assert missing == set()
