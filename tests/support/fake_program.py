"""Replaces ``run.py`` in tests of supervision: it does what a supervisor expects of a child.

Run as ``fake_program.py broker --id 0 …`` or ``fake_program.py placement-service …``. A file
``NAME.mode`` in the cluster's data directory (``broker-0.mode``) sets a fault:

    fail     reports an error on stderr and exits with status 3
    deaf     ignores SIGTERM
    mute     never reports that it is ready
    garbage  reports something else than readiness
    metrics elsewhere  reports another metrics port than it was given

With port 0 it reports another port after each start.
A process that ends cleanly adds its name to the file ``stopped`` there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType


def main(command: str, *arguments: str) -> None:
    """Behave as a child until SIGTERM or the end of the death pipe."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    name, data_dir = _identity(command, options)
    mode_file = data_dir / f"{name}.mode"
    mode = mode_file.read_text() if mode_file.exists() else ""
    stopped = threading.Event()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        del number, frame
        if mode != "deaf":
            stopped.set()

    signal.signal(signal.SIGTERM, on_sigterm)
    death_pipe = int(options["--death-pipe-fd"])
    threading.Thread(target=lambda: (os.read(death_pipe, 1), os._exit(9)), daemon=True).start()
    if mode == "fail":
        sys.exit("regent: the disk is on fire")
    if mode != "mute":
        sys.stdout.write(
            f"ready: {_ready(command, options, mode) if mode != 'garbage' else '{}'}\n"
        )
        sys.stdout.flush()
    while not stopped.wait(1.0):
        pass
    with (data_dir / "stopped").open("a") as file:
        file.write(f"{name}\n")


def _identity(command: str, options: dict[str, str]) -> tuple[str, Path]:
    directory = Path(options["--data-dir" if command == "broker" else "--work-dir"])
    return directory.name, directory.parent


def _ready(command: str, options: dict[str, str], mode: str) -> str:
    if command != "broker":
        return "tcp://127.0.0.1:7777"
    broker_id = int(options["--id"])
    lives = Path(options["--data-dir"]) / "lives"
    life = 100 * len(lives.read_text()) if lives.exists() else 0
    lives.write_text("x" * (life // 100 + 1))
    ports = {
        name: int(options[f"--{name.replace('_', '-')}"]) or 50_000 + 10 * broker_id + number + life
        for number, name in enumerate(("port", "control_port", "replication_port", "metrics_port"))
    }
    ports["metrics_port"] += mode == "metrics elsewhere"
    return json.dumps({"id": broker_id, "pid": os.getpid(), "host": options["--host"], **ports})


if __name__ == "__main__":
    main(*sys.argv[1:])
