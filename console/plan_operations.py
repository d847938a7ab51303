"""Plans of moves in a folder: how far each is, and what the console begins and pauses of them.

The executor is that of ``jobs plan execute`` and ``rollback``, on a thread. The directory of a plan
has its state, as it has that of the commands: whatever ends an execution, the next one resumes it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from regent.client.cluster_connection import Cluster
from regent.client.flight import ExecutionOptions
from regent.client.plan_directory import PAUSED, PLAN, read_plan
from regent.client.plan_execution import execute_plan, plan_status
from regent.client.progress_line import in_words
from regent.config.threads import NamedThread
from regent.console.form_numbers import MAX_OFFSET, number_in
from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

FOLDER: Final = "plans"
"""The folder in the data directory of a cluster, and the field that has the folder for changes."""

_MAX_PLANS: Final = 50
_BEGIN_S: Final = 2.0  # what prevents an execution is known so soon
_FRESH_S: Final = 2.0
_REST: Final = 10.0  # between two looks at a plan, in units of the time that a look takes


class PlanOperationError(RegentError):
    """There is no such plan, or it cannot be executed; the message says why."""


class PlanRow(NamedTuple):
    """A plan in the folder. ``status`` is that of ``jobs plan status``; None: ``problem`` says why.

    ``time_left`` is empty if nothing executes it, or if it is not known.
    """

    name: str
    status: Mapping[str, Any] | None
    time_left: str = ""
    problem: str = ""


def plans_folder(cluster: Cluster, named: Path | None) -> Path | None:
    """Return the folder of plans: the named one, or that of a cluster on this machine."""
    data_dir = cluster.data_dir
    return named or (None if data_dir is None else data_dir / FOLDER)


def find_plans(folder: Path | None) -> list[str]:
    """Return the names of the plans in a folder, the newest first; links are none."""
    found: list[tuple[float, str]] = []
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                plan = Path(entry.path) / PLAN
                if entry.is_dir(follow_symlinks=False) and plan.is_file():
                    found.append((-plan.stat().st_mtime, entry.name))
    except OSError:
        return []
    return [name for _, name in sorted(found)][:_MAX_PLANS]


class PlanStandings:
    """Looks at plans, not too often: a look reads all partitions of a plan. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, PlanRow]] = {}  # until when they are fresh

    def look(self, cluster: Cluster, folder: Path | None) -> list[PlanRow]:
        """Return the plans of a folder, and how far each is."""
        with self._lock:
            names = find_plans(folder)
            for name in names:
                began = time.monotonic()
                if folder is not None and self._known.get(name, (0.0,))[0] <= began:
                    row = _standing(cluster, folder / name)
                    spent_s = time.monotonic() - began
                    self._known[name] = (began + max(_FRESH_S, spent_s * _REST), row)
            self._known = {name: self._known[name] for name in names}
            return [row for _, row in self._known.values()]

    def forget(self) -> None:
        """Look again at the next question: somebody has changed something."""
        with self._lock:
            self._known = {}


def _standing(cluster: Cluster, directory: Path) -> PlanRow:
    try:
        address = cluster.zookeeper_address
        status = plan_status(directory, address, open_cluster=lambda _: cluster.admin())
    except RegentError as error:
        return PlanRow(directory.name, None, problem=str(error))
    return PlanRow(directory.name, status, in_words(status["seconds_left"]))


# --- changes --------------------------------------------------------------------------------------


def execute(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Begin to execute a plan, or go on with it."""
    return _begin(cluster, fields, "executed", is_rollback=False)


def roll_back(cluster: Cluster, fields: Mapping[str, str]) -> str:
    """Begin to roll a plan back."""
    return _begin(cluster, fields, "rolled back", is_rollback=True)


def pause(_: Cluster, fields: Mapping[str, str]) -> str:
    """Let a running execution begin no more moves."""
    read_plan(_directory(fields)).leave(PAUSED)
    return f"plan {fields['target']} is paused: moves in flight end"


def resume(_: Cluster, fields: Mapping[str, str]) -> str:
    """Let a paused execution go on."""
    read_plan(_directory(fields)).remove(PAUSED)
    return f"plan {fields['target']} is not paused any more"


def _directory(fields: Mapping[str, str]) -> Path:
    folder, name = fields.get(FOLDER, ""), fields["target"]
    if not folder or name not in find_plans(Path(folder)):
        raise PlanOperationError(f"there is no plan {name!r}")
    return Path(folder) / name


def _begin(cluster: Cluster, fields: Mapping[str, str], how: str, *, is_rollback: bool) -> str:
    directory, text = _directory(fields), fields.get("throttle", "").strip()
    rate = number_in(text, MAX_OFFSET)
    if text and not rate:
        raise PlanOperationError(f"{text!r} is no number of bytes a second")
    options, address = ExecutionOptions(throttle=rate), cluster.zookeeper_address
    failures: list[str] = []

    def run() -> None:
        try:
            execute_plan(
                directory,
                address,
                options,
                open_cluster=lambda _: cluster.admin(),
                is_rollback=is_rollback,
            )
            logger.warning("plan %s was %s", directory, how)
        except RegentError as error:
            failures.append(str(error))
            logger.error("plan %s was not %s: %s", directory, how, error)

    thread = NamedThread(run, "console-plan")
    thread.start()
    thread.join(_BEGIN_S)
    if failures:
        raise PlanOperationError(failures[0])
    return f"plan {directory.name} is {'being ' if thread.is_alive() else ''}{how}"
