"""What other users of this machine may do with a cluster's files."""

from __future__ import annotations

import os
import shlex
import stat
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.listener_check import user_name
from regent.client.doctor.listening_sockets import user_of
from regent.client.wording import counted
from regent.config.private_files import is_open_to_others

FILES: Final = "files"
"""The name of this check."""

_OF_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022
_ENTERED: Final = 0o011  # what others need of a directory to reach what is in it
_SECRETS: Final = ("*.secret", "*.jaas", "jaas.conf")
_PUBLIC_KEYS: Final = "*/allowed/*.key"  # who may write one decides who may send requests
_NAME_SECRETS: Final = (  # the ends of settings that name a file with a secret
    *("secret.file", "password.file", "users.file", "token.file", "secret.key.file"),
    "ssl.keystore.location",
)
_LOG_DIRS: Final = "log.dirs"


class _Entry(NamedTuple):
    """A file or directory; ``is_reached``: other users may enter all directories above it."""

    path: Path
    found: os.stat_result
    is_reached: bool

    @property
    def mode(self) -> int:
        """Its rights."""
        return stat.S_IMODE(self.found.st_mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.found.st_mode)

    @property
    def is_secret(self) -> bool:
        """Whether its content must stay secret."""
        return not self.is_directory and any(fnmatch(self.path.name, name) for name in _SECRETS)


def check_files(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check the data directory, the log directories elsewhere, and the files that settings name."""
    if cluster.folder is None:
        return
    roots = [cluster.folder, *_log_dirs(cluster)]
    findings = [finding for root in roots for finding in _check_root(root, cluster)]
    findings += _check_named(cluster)
    yield from findings
    if not findings:
        message = f"other users of this machine may open nothing in {cluster.folder}"
        yield Finding(FILES, Severity.OK, str(cluster.folder), message)


def _check_root(root: Path, cluster: ExaminedCluster) -> Iterator[Finding]:
    try:
        owner = _owner(cluster, root)
        yield from _replaceable(root)
        entries = list(_entries(root))
    except OSError as error:
        message = f"{root} cannot be examined ({error.strerror})"
        yield Finding(FILES, Severity.WARNING, str(root), message, "run this as its user")
        return
    yield from _open_secrets(entries)
    yield from _open_to_others(root, entries)
    yield from _of_other_owners(root, entries, owner)


def _owner(cluster: ExaminedCluster, root: Path) -> int:
    """Return the user whose files they should be: that of the processes, else of the directory."""
    for pid in cluster.processes:
        try:
            return user_of(pid)
        except OSError:
            continue
    return root.stat().st_uid


def _log_dirs(cluster: ExaminedCluster) -> Iterator[Path]:
    """Yield the log directories of brokers of this machine that are not in the data directory."""
    assert cluster.folder is not None
    for broker_id in sorted(cluster.local_brokers):
        settings = cluster.settings.get(broker_id, {})
        for name in filter(None, settings.get(_LOG_DIRS, "").split(",")):
            if not Path(name).resolve().is_relative_to(cluster.folder.resolve()):
                yield Path(name)


def _entries(root: Path) -> Iterator[_Entry]:
    """Yield a directory and everything in it. What disappears meanwhile is left out."""
    found = root.stat()
    yield _Entry(root, found, is_reached=True)
    waiting = [(root, bool(found.st_mode & _ENTERED))]
    while waiting:
        directory, is_reached = waiting.pop()
        try:
            children = list(os.scandir(directory))
        except FileNotFoundError:
            continue
        for child in children:
            try:
                found = child.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                continue  # its target counts
            yield _Entry(Path(child.path), found, is_reached)
            if stat.S_ISDIR(found.st_mode):
                waiting.append((Path(child.path), is_reached and bool(found.st_mode & _ENTERED)))


def _replaceable(root: Path) -> Iterator[Finding]:
    """Yield a finding for a directory above in which others may replace what is theirs not."""
    for parent in root.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            message = f"{parent} has mode {stat.S_IMODE(mode):04o}: others may replace {root}"
            yield Finding(FILES, Severity.PROBLEM, str(parent), message, _chmod("o-w", parent))


def _open_secrets(entries: list[_Entry]) -> Iterator[Finding]:
    for entry in entries:
        may_write = entry.mode & _WRITABLE and fnmatch(str(entry.path), _PUBLIC_KEYS)
        if (entry.is_secret and is_open_to_others(entry.found)) or may_write:
            yield _open_secret(entry.path, entry.mode)


def _open_secret(path: Path, mode: int) -> Finding:
    message = f"{path} has mode {mode:04o}, and it is a secret: replace it if others have read it"
    return Finding(FILES, Severity.PROBLEM, str(path), message, _chmod("600", path))


def _open_to_others(root: Path, entries: list[_Entry]) -> Iterator[Finding]:
    """Yield a finding for the open entries of each part of a data directory."""
    groups = defaultdict(list)
    for entry in entries:
        if entry.mode & _OF_OTHERS and not entry.is_secret:
            part = root.joinpath(*entry.path.relative_to(root).parts[:1])
            groups[part, entry.is_reached].append(entry)
    for (part, is_reached), opened in groups.items():
        first = opened[0]
        what = f"{first.path} has mode {first.mode:04o}"
        if len(opened) > 1:
            what = f"{counted(len(opened), 'file')} in {part} are open; {what}"
        if is_reached:
            danger = "other users of this machine may " + _rights(first)
        else:
            danger = "only a folder above keeps other users out"
        many = len(opened) > 1
        remedy = _chmod("-R go-rwx" if many else "go-rwx", part if many else first.path)
        severity = Severity.PROBLEM if is_reached else Severity.WARNING
        yield Finding(FILES, severity, str(first.path), f"{what}: {danger}", remedy)


def _rights(entry: _Entry) -> str:
    read = "enter it" if entry.is_directory else "read it"
    return f"{read} and change it" if entry.mode & _WRITABLE else read


def _of_other_owners(root: Path, entries: list[_Entry], owner: int) -> Iterator[Finding]:
    """Yield a finding for each other user who owns files; root may open all of them anyway."""
    owners = defaultdict(list)
    for entry in entries:
        if entry.found.st_uid not in (owner, 0):
            owners[entry.found.st_uid].append(entry.path)
    for uid, paths in owners.items():
        what = str(paths[0]) if len(paths) == 1 else f"{counted(len(paths), 'file')} in {root}"
        verb = "belongs" if len(paths) == 1 else f"({paths[0]} first) belong"
        message = f"{what} {verb} to user {user_name(uid)}, who may open and change them"
        remedy = f"chown -R {user_name(owner)} {shlex.quote(str(root))}"
        yield Finding(FILES, Severity.PROBLEM, str(paths[0]), message, remedy)


def _check_named(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Check the secret files that settings of brokers of this machine name."""
    named = {
        Path(value)
        for broker_id, settings in cluster.settings.items()
        if broker_id in cluster.local_brokers
        for name, value in settings.items()
        if value and name.endswith(_NAME_SECRETS)
    }
    assert cluster.folder is not None
    folder = cluster.folder.resolve()
    for path in sorted(path for path in named if not path.resolve().is_relative_to(folder)):
        try:
            found = path.stat()
        except OSError as error:
            message = f"{path} cannot be examined ({error.strerror})"
            yield Finding(FILES, Severity.WARNING, str(path), message, "run this as its user")
            continue
        if is_open_to_others(found):
            yield _open_secret(path, stat.S_IMODE(found.st_mode))


def _chmod(rights: str, path: Path) -> str:
    return f"`chmod {rights} {shlex.quote(str(path))}`"
