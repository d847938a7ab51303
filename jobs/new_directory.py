"""The output directory of a job: it appears with its whole content, or not at all.

On another file system than this machine's, which may have no atomic rename (an object store), the
complete directory is known by its last file, ``_SUCCESS``, as that of Spark's own writers.
``new_directory`` is for documents that the driver writes, ``new_table`` for tables of executors.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError

from regent.jobs.command import InputError
from regent.jobs.files import SUCCESS, JobFiles, is_remote, local_path


def check_is_new(out: str, files: JobFiles) -> None:
    """Raise ``InputError`` unless ``out`` is absent or an empty directory."""
    found = files.entry(out)
    inside = files.entries(out) if found is not None and found.is_directory else []
    if found is None or (found.is_directory and not inside):
        return
    is_unfinished = is_remote(out) and all(entry.name != SUCCESS for entry in inside)
    left = f" (without {SUCCESS}: perhaps an interrupted job left it)" if is_unfinished else ""
    raise InputError(f"{out} exists already{left}: choose a new directory for --out")


@contextmanager
def new_directory(out: str, files: JobFiles) -> Iterator[Path]:
    """Yield an empty directory; when the block ends without an error, it becomes ``out``.

    Otherwise it is removed. On this machine only its user may open it. Raises ``InputError`` when
    ``out`` is not empty or not writable.
    """
    check_is_new(out, files)
    if is_remote(out):
        with tempfile.TemporaryDirectory(prefix="regent-out-") as scratch:
            yield Path(scratch)
            _upload(Path(scratch), out, files)
        return
    target = local_path(out).resolve()
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        unfinished.mkdir(mode=0o700, parents=True)  # it may have records
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}") from None
    try:
        yield unfinished
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        raise


@contextmanager
def new_table(out: str, files: JobFiles) -> Iterator[str]:
    """Yield the location that executors shall write to, an empty or absent directory.

    As ``new_directory``, but a remote directory is written where it is. Raises ``InputError``.
    """
    if not is_remote(out):
        with new_directory(out, files) as directory:
            yield str(directory)
        return
    check_is_new(out, files)
    try:
        yield out
    except BaseException:
        with suppress(InputError, Py4JError, OSError):  # the file system, or the JVM, has ended
            files.remove(out)
        raise


def _upload(source: Path, out: str, files: JobFiles) -> None:
    base = out.rstrip("/")
    try:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            if path.suffix != ".crc":  # Hadoop's, for a file of the local file system
                files.put(path, f"{base}/{path.relative_to(source)}")
        (source / SUCCESS).touch()
        files.put(source / SUCCESS, f"{base}/{SUCCESS}")
    except BaseException:
        with suppress(InputError):
            files.remove(base)
        raise
