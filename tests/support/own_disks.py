"""Programs that do not see a directory of this machine, as if they ran on another one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from regent.testing.waits import scaled

_MOUNT = 'mount -t tmpfs tmpfs "$0" && cd "$0" && exec "$@"'


class OwnDisksUnavailableError(Exception):
    """This process may not give a program a mount namespace of its own."""


def with_own_disk(directory: Path, command: Sequence[str | Path]) -> list[str | Path]:
    """Return ``command`` so that it sees an empty disk of its own instead of ``directory``.

    Its disk is in memory and ends with it. Its process has the id of the one that was started.
    """
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *user, "--mount", "sh", "-c", _MOUNT, directory, *command]


def require_own_disks(directory: Path) -> None:
    """Raise ``OwnDisksUnavailableError`` if ``with_own_disk`` does not work here."""
    command = with_own_disk(directory, ["true"])
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=scaled(20)
        )
    except FileNotFoundError as error:
        raise OwnDisksUnavailableError("there is no command unshare") from error
    if ended.returncode:
        raise OwnDisksUnavailableError(f"no disk of its own: {ended.stderr.strip()}")
