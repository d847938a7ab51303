"""A standalone Spark cluster on loopback: a master, and workers with one core each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from regent.cluster.jvm_launcher import ending_with_this_process
from regent.config.java import find_java
from regent.testing.waits import eventually, scaled
from tests.support.own_disks import with_own_disk

_SPARK_HOME = Path(pyspark.__file__).parent
_START_S = 120.0
_END_S = 20.0
_MASTER = "master.Master"


class StandaloneSpark:
    """Master and workers as processes, from the files of the pip package.

    Each worker sees an empty disk of its own instead of the directory ``hidden`` (None: it sees
    all). ``directory`` has the files of the master, and those of workers that see it.
    """

    def __init__(self, directory: Path, workers: int = 2, *, hidden: Path | None = None) -> None:
        self._directory = directory
        self._hidden = hidden
        self._open = ExitStack()
        try:
            self._start(_MASTER, "--port", "0", "--webui-port", "0")
            self.master = self._logged(r"Starting Spark master at (spark://\S+)")
            self._web_port = self._logged(r"Successfully started service 'MasterUI' on port (\d+)")
            self._workers = [self._start_worker(number) for number in range(workers)]
            eventually(lambda: self.live_workers == workers, f"{workers} workers", _START_S)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    @property
    def live_workers(self) -> int:
        """The number of workers that the master can use."""
        return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"])

    @property
    def computing_workers(self) -> list[int]:
        """The workers that run the Python of a task."""
        return [
            number
            for number in range(len(self._workers))
            if any("pyspark.daemon" in command for command in self._started_by(number).values())
        ]

    def writing_workers(self, unfinished: str) -> list[int]:
        """Return the workers whose executors have a file open whose path begins so."""
        return [
            number
            for number in range(len(self._workers))
            if any(_has_open(pid, unfinished) for pid in self._started_by(number))
        ]

    def kill_worker(self, number: int) -> None:
        """``kill -9`` a worker and its executors."""
        executors = self._started_by(number)
        self._workers[number].kill()
        self._workers[number].wait(scaled(_END_S))
        for pid in executors:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _started_by(self, number: int) -> dict[int, str]:
        """Return the processes that a worker has started, and those have: ids and commands."""
        listing = ["ps", "-A", "-o", "pid=,ppid=,args="]
        table = subprocess.run(
            listing, capture_output=True, text=True, check=True, timeout=scaled(20)
        )
        rows = [line.split(None, 2) for line in table.stdout.splitlines()]
        children: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for pid, parent, *command in rows:
            children[int(parent)].append((int(pid), " ".join(command)))
        found: dict[int, str] = {}
        waiting = [self._workers[number].pid]
        while waiting:  # a child may have a smaller id than its parent: ids are used again
            of_parent = dict(children[waiting.pop()])
            found |= of_parent
            waiting += of_parent
        return found

    def _logged(self, pattern: str) -> str:
        """Wait for a line of the master's log and return what the group of the pattern matches."""
        log = self._directory / f"{_MASTER}.log"
        found = eventually(lambda: re.findall(pattern, log.read_text()), pattern, _START_S)
        return str(found[0])

    def _state(self) -> dict[str, Any]:
        address = f"http://127.0.0.1:{self._web_port}/json/"
        with urllib.request.urlopen(address, timeout=scaled(10)) as answer:
            state: dict[str, Any] = json.load(answer)
        return state

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        folder = (self._hidden or self._directory) / f"worker-{number}"
        options = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        arguments = ["--webui-port", "0", *options, self.master]
        return self._start("worker.Worker", *arguments, hidden=self._hidden)

    def _start(
        self, name: str, *arguments: str, hidden: Path | None = None
    ) -> subprocess.Popen[bytes]:
        log = self._open.enter_context((self._directory / f"{name}.log").open("ab"))
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))
        }
        environment |= {
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
            "PYSPARK_PYTHON": sys.executable,
        }
        command: list[str | Path] = [
            _SPARK_HOME / "bin" / "spark-class",
            f"org.apache.spark.deploy.{name}",
            *("--host", "127.0.0.1"),
            *arguments,
        ]
        process = subprocess.Popen(
            ending_with_this_process(command if hidden is None else with_own_disk(hidden, command)),
            stdout=log,
            stderr=log,
            env=environment,
            cwd=self._directory,
        )
        self._open.callback(process.wait, scaled(_END_S))
        self._open.callback(process.kill)
        return process


def _has_open(pid: int, beginning: str) -> bool:
    """Whether a process has a file open whose path begins so."""
    with suppress(OSError):  # it has ended, or has just closed one
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        return any(link.startswith(beginning) for link in links)
    return False
