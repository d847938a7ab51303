"""The open files of segments: when there are too many, those that were used long ago are closed.

A broker has more logs than a process may have open files. A closed file is opened again when its
log needs it, which costs one ``open(2)``. An empty file is not kept open.

To close a file is to drop a reference: nothing is flushed then, as in Kafka, because a later flush
opens the file again, and Linux reports to it an error of writeback that nobody has seen.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar
from weakref import ref

from regent.core.errors import ShortageError
from regent.storage.log.log_file import LogFile

_NOT_FOR_LOGS: Final = 384  # descriptors for connections, other brokers, ZooKeeper and other files
_LEAST: Final = 16
_LOOKS: Final = 32  # files to look at before one is closed that was used lately
_AT_ONCE: Final = 8  # files to close at most for one to open; readers may keep some of them open
_T = TypeVar("_T")


class FileOwner(Protocol):
    """A segment.

    ``file``: its open file; another thread may set it to None at any time. ``is_used``: the owner
    sets it with each use of the file. The first use, for which it is opened, does not count.
    """

    file: OwnedFile | None
    is_used: bool

    @property
    def path(self) -> Path:
        """The present path of the file."""
        ...


class OwnedFile(LogFile):
    """The open file of a segment. Readers may use it longer than its ``owner`` has it."""

    __slots__ = ("_files", "owner")

    def __init__(self, owner: FileOwner, files: OpenFiles) -> None:
        """Open the file. Raises ``StorageError``."""
        self.owner = ref(owner)
        self._files = files
        super().__init__(owner.path)

    def __del__(self) -> None:
        self._files.forget(self._fd)  # first: the number may be used again as soon as it is closed
        super().__del__()


class OpenFiles:
    """Opens files, of which owners keep at most about ``limit``.

    Thread-safe without a lock, because a file may be closed at any point of any thread: every step
    is one operation of a set or a dict. A file that was used again since the last look at it is
    passed over once ("second chance"), so a use costs no more than setting ``is_used``.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_limit() if limit is None else limit
        self.opened = 0  # count
        self.closed_early = 0  # count: to make room
        self._open: set[int] = set()  # descriptors; also those that only readers have
        self._kept: OrderedDict[int, ref[FileOwner]] = OrderedDict()  # the next to look at first

    def __len__(self) -> int:
        return len(self._open)

    @property
    def are_too_many(self) -> bool:
        """Whether so many files are open that readers should not keep one more."""
        return len(self._open) > self.limit

    def create(self, path: Path) -> None:
        """Create an empty file, or truncate the one that a crash left. Raises ``StorageError``."""
        self._try_twice(lambda: LogFile(path, is_new=True))

    def open(self, owner: FileOwner) -> OwnedFile:
        """Open the file of ``owner``. Raises ``StorageError``."""
        for _ in range(_AT_ONCE):
            if len(self._open) < self.limit or not self._close_one():
                break
        file = self._try_twice(lambda: OwnedFile(owner, self))
        self.opened += 1
        self._open.add(file.fileno())
        owner.file, owner.is_used = file, False
        self._kept[file.fileno()] = file.owner  # last: an entry whose owner has no file is dropped
        return file

    def forget(self, descriptor: int) -> None:
        """Count a file no more, because it is about to be closed."""
        self._kept.pop(descriptor, None)
        self._open.discard(descriptor)

    # --- inside ---

    def _try_twice(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except ShortageError:
            for _ in range(_AT_ONCE):
                self._close_one()
            return act()

    def _close_one(self) -> bool:
        """Take a file that was not used for long from its owner; False: there is none."""
        chosen: tuple[FileOwner, OwnedFile] | None = None
        for _ in range(_LOOKS):
            found = self._take_next()
            if found is None:
                break
            chosen = chosen or found
            owner, file = found
            if not owner.is_used:
                chosen = found
                break
            owner.is_used = False
            self._kept[file.fileno()] = file.owner
        if chosen is None:
            return False
        owner, file = chosen
        if owner.file is file:
            owner.file = None
        self.closed_early += 1
        return True

    def _take_next(self) -> tuple[FileOwner, OwnedFile] | None:
        """Return the next file that an owner has; only then it can be put back."""
        while True:
            try:
                descriptor, reference = self._kept.popitem(last=False)
            except KeyError:
                return None
            owner = reference()
            file = None if owner is None else owner.file
            if owner is not None and file is not None and file.fileno() == descriptor:
                return owner, file


def default_limit() -> int:
    """Return how many files may be open: half of what the process may open, or less."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 2**20
    return max(_LEAST, min(limit // 2, limit - _NOT_FOR_LOGS))
