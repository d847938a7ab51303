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


def read_private(path: Path, what: str) -> str:
    """Return the text of a file that only its user may read, ``what`` says what is in it.

    Raises ``RegentError``, which names the file and the remedy.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RegentError(f"{what}: {path} cannot be read: {reason}") from None
    if mode & _OF_OTHERS:
        raise RegentError(
            f"{what}: {path} has mode {mode:04o}, so other users may read it: make it private with"
            f" `chmod 600 {path}`"
        )
    return text


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
