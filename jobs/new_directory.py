"""The output directory of a job: it appears with its whole content, or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regent.jobs.command import InputError


def check_is_new(out: Path) -> None:
    """Raise ``InputError`` unless ``out`` is absent or an empty directory."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} exists already: choose a new directory for --out")
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}") from None


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield an empty directory; when the block ends without an error, it becomes ``out``.

    Otherwise it is removed. Raises ``InputError`` when ``out`` is not empty or not writable.
    """
    target = out.resolve()
    check_is_new(out)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        unfinished.mkdir(parents=True)
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
