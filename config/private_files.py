"""Files that only the user of the processes may read: data, logs, journals and secrets."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final

from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

_OF_OTHERS: Final = 0o077


def keep_files_private() -> None:
    """Give no other user any right to files that this process and its children make."""
    os.umask(_OF_OTHERS)


def write_private(path: Path, text: str) -> None:
    """Write a file that no other user may read, whatever rights it had. Raises ``OSError``."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)


def close_directory(directory: Path) -> None:
    """Take the rights of other users to an existing data directory, so to all files in it.

    Raises ``OSError`` for a directory that does not exist. A directory of another user stays open.
    """
    found = directory.stat()
    if not found.st_mode & _OF_OTHERS:
        return
    if found.st_uid != os.geteuid():
        logger.warning(
            "%s belongs to user %d, and other users may open it: give it to the user of the broker"
            " (chown)",
            directory,
            found.st_uid,
        )
        return
    directory.chmod(stat.S_IMODE(found.st_mode) & ~_OF_OTHERS)
    logger.warning("%s was open to other users of this machine: it is closed now", directory)


def check_not_root_in(directory: Path) -> None:
    """Raise ``RegentError`` if this is a process of root, and a directory is another user's.

    What root makes there belongs to root, and the other user's processes, a broker of Kafka for
    example, cannot open it.
    """
    try:
        owner = directory.stat().st_uid
    except OSError:  # there is none yet, or it has failed
        return
    if owner and os.geteuid() == 0:
        raise RegentError(
            f"{directory} belongs to user {owner}, who could not open what root makes in it: run"
            f" this as that user (sudo -u '#{owner}'), or give the folder to root (chown)"
        )


def read_private(path: Path, what: str) -> bytes:
    """Return the contents of a file that other users must not read; ``what`` is in it.

    Raises ``RegentError``, which names the file and the remedy.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read()
    except OSError as error:
        raise RegentError(f"{path}, with {what}, cannot be read: {error.strerror}") from None
    if is_open_to_others(found):
        raise RegentError(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so other users may read {what} in"
            f" it: make it private with `chmod 600 {path}`"
        )
    return content


def is_open_to_others(found: os.stat_result) -> bool:
    """Whether other users have a right to a file with a secret.

    Root may let the group of this process read it: so Kubernetes gives secrets to a process.
    """
    others = stat.S_IMODE(found.st_mode) & _OF_OTHERS
    is_given_by_root = found.st_uid == 0 and os.geteuid() != 0
    is_of_our_group = found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(others) and not (is_given_by_root and is_of_our_group and others == stat.S_IRGRP)
