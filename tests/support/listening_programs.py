"""Processes that stand for those of a local cluster: they listen, and do nothing else.

The supervisor has the lock of a data directory, and starts a broker, which starts a program.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regent.config.cluster_location import LOCK_FILE
from regent.testing.waits import next_line, scaled

_LISTEN = """
import json, os, socket, subprocess, sys
role, folder = sys.argv[1:3]
def listen(host):
    created = socket.create_server((host, 0))
    kept.append(created)
    return created.getsockname()[1]
def start(role, folder):
    command = [sys.executable, "-c", sys.argv[3], role, folder, sys.argv[3]]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    kept.append(child)
    return json.loads(child.stdout.readline())
kept = []
told = {"pid": os.getpid()}
if role == "supervisor":
    kept.append(open(os.path.join(folder, ".cluster.lock"), "w"))
    kept[-1].write(str(os.getpid()))
    kept[-1].flush()
    told["broker"] = start("broker", os.path.join(folder, "broker-0"))
elif role == "broker":
    for name in ("port", "control_port", "replication_port", "metrics_port"):
        told[name] = listen("127.0.0.1")
    told["program"] = start("program", "")
else:
    told["port"] = listen("127.0.0.1")
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind("\\0" + f"regent-test-{os.getpid()}")
    kept[-1].listen()
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    kept[-1].bind(("127.0.0.1", told["port"]))
print(json.dumps(told), flush=True)
sys.stdin.read()
"""


@contextmanager
def listening_programs(data_dir: Path) -> Iterator[dict[str, Any]]:
    """Run a supervisor, broker 0 and its program; yield their process ids and ports."""
    assert LOCK_FILE in _LISTEN
    command = [sys.executable, "-c", _LISTEN, "supervisor", str(data_dir.resolve()), _LISTEN]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield json.loads(next_line(process, "the programs listen", scaled(30.0)))
        finally:
            assert process.stdin is not None
            process.stdin.close()  # each of them ends when its parent has ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(scaled(10.0))
            process.kill()
