"""Where commands look for a cluster when no option names one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CLUSTER_FILE: Final = "cluster.json"
"""In the folder of a local cluster: written by ``regent cluster``, see ``cluster.cluster_file``."""

DATA_DIR: Final = Path("data")
DATA_DIR_VARIABLE: Final = "REGENT_DATA_DIR"
ZOOKEEPER_VARIABLE: Final = "REGENT_ZOOKEEPER"
BOOTSTRAP_SERVER_VARIABLE: Final = "REGENT_BOOTSTRAP_SERVER"
