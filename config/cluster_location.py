"""Where commands look for a cluster when no option names one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CLUSTER_FILE: Final = "cluster.json"
"""In the folder of a local cluster: written by ``regent cluster``, see ``cluster.cluster_file``."""

LOCK_FILE: Final = ".cluster.lock"
"""Beside it: the process that runs the cluster has it open and locked, and writes its id there."""

DATA_DIR: Final = Path("data")
DATA_DIR_VARIABLE: Final = "REGENT_DATA_DIR"
ZOOKEEPER_VARIABLE: Final = "REGENT_ZOOKEEPER"
BOOTSTRAP_SERVER_VARIABLE: Final = "REGENT_BOOTSTRAP_SERVER"
KEYS_VARIABLE: Final = "REGENT_KEYS"
COMMAND_CONFIG_VARIABLE: Final = "REGENT_COMMAND_CONFIG"
VARIABLES_OF_COMMANDS: Final = frozenset(
    {
        *(DATA_DIR_VARIABLE, ZOOKEEPER_VARIABLE, BOOTSTRAP_SERVER_VARIABLE, KEYS_VARIABLE),
        *(COMMAND_CONFIG_VARIABLE, "REGENT_PROFILE", "REGENT_ZOOKEEPER_SECRET"),
        *("REGENT_BROKER_ID", "REGENT_TIMEOUT_FACTOR"),
    }
)
"""The variables of the environment that are no settings of brokers."""
KEYS_DIR: Final = "keys"
"""The name of the directory of keys in or beside a data directory: ``control.key_files``."""


def number_of_folder(name: str, kind: str) -> int | None:
    """Return N of the folder ``broker-N`` or ``zookeeper-N``; None: it is another, a copy maybe."""
    found = re.fullmatch(rf"{kind}-(0|[1-9][0-9]*)", name)
    return None if found is None else int(found[1])


def numbered_folders(data_dir: Path, kind: str) -> Mapping[int, Path]:
    """Return the folders of the brokers or ZooKeeper servers of a cluster by their numbers."""
    folders = data_dir.glob(f"{kind}-*")
    numbers = {number_of_folder(folder.name, kind): folder for folder in folders}
    return {number: numbers[number] for number in sorted(n for n in numbers if n is not None)}


class _KeysOfThisProcess:
    """Where the key of a command is; a process runs one command."""

    def __init__(self) -> None:
        self.given: Path | None = None  # a directory of keys
        self.data_dir: Path | None = None  # it may have a directory of keys
        self.is_new = False  # nobody can know it


KEYS_OF_COMMAND: Final = _KeysOfThisProcess()
"""Where the key of this command is."""
