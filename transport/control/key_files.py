"""The keys of processes (CURVE: https://rfc.zeromq.org/spec/26/), and the files they are in.

A process proves with its secret key who it is. Others know its public key: brokers' from their
registrations, or from a *directory of keys*, which also has the keys of operators::

    keys/operator.secret       the secret key of commands on this machine
    keys/placement.secret      the secret key of the placement service
    keys/allowed/NAME.key      public keys that may connect, one a line; broker-N: those of broker N
    keys/revoked/NAME.key      public keys that may not connect again, although a file allows them

The registration of a broker does not count where ``allowed`` has a file for it, also an empty one.
Public keys are written in hexadecimal. They are no secret, but who may write them decides who may
connect: a directory or a file that other users may write allows nobody.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from regent.config.cluster_location import CLUSTER_FILE, KEYS_DIR, KEYS_OF_COMMAND, KEYS_VARIABLE
from regent.config.command_line import program
from regent.config.private_files import is_open_to_others
from regent.core.errors import RegentError
from regent.core.security.roles import KeyOwner

logger = logging.getLogger(__name__)

BROKER_SECRET: Final = "curve.secret"
PLACEMENT_SECRET: Final = "placement.secret"
OPERATOR: Final = "operator"
"""The name of the key of this machine's commands."""

_OPERATOR_SECRET: Final = f"{OPERATOR}.secret"
_ALLOWED: Final = "allowed"
_REVOKED: Final = "revoked"
_SUFFIX: Final = ".key"
_WRITABLE: Final = 0o022  # by others
_LOOK_S: Final = 1.0  # between two looks at files that may have been changed in place
_KEY: Final = re.compile("[0-9a-f]{64}")
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NOTHING: Final[Mapping[Path, frozenset[str]]] = {}


class KeyFileError(RegentError):
    """A file of keys that cannot be used; the message names the remedy."""


class _CannotReadError(KeyFileError):
    """A file or folder of keys that cannot be read, perhaps only now: what it had stays true."""


class KeyPair(NamedTuple):
    """A public key, and the secret one that belongs to it, which is not printed."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"


def new_key_pair() -> KeyPair:
    """Return a new pair of keys."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public).hex(), z85.decode(secret).hex())


def read_secret(path: Path) -> KeyPair:
    """Return the keys in a file that only its user may read; raises ``KeyFileError``."""
    try:
        with path.open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            lines = file.read(1024).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has no keys"
        raise KeyFileError(f"{path}: {reason}: `{program()} keys make` makes a key") from None
    if is_open_to_others(found):
        mode = stat.S_IMODE(found.st_mode)
        raise KeyFileError(
            f"{path} has mode {mode:04o}, and other users may read the secret key in it:"
            f" chmod 600 {path}, and make another key if one of them may have read it"
        )
    public, secret = (*lines, "", "")[:2]
    if not (_KEY.fullmatch(public) and _KEY.fullmatch(secret)) or _public_of(secret) != public:
        raise KeyFileError(
            f"{path} does not have a public key and the secret key that belongs to it: remove the"
            " file, and a new key is made"
        )
    return KeyPair(public, secret)


def secret_at(path: Path) -> KeyPair:
    """Return the keys in a file, which is made if there is none; raises ``KeyFileError``."""
    if not path.exists():
        make_secret(path)
    return read_secret(path)


def make_secret(path: Path, *, replace: bool = False, made: KeyPair | None = None) -> KeyPair:
    """Write new keys, or those ``made``, to a file; without ``replace`` one that exists is kept.

    Two processes may do this at once: both must read the file afterwards. Raises ``KeyFileError``.
    """
    keys = made or new_key_pair()
    _write(path, f"{keys.public}\n{keys.secret}\n", replace=replace)
    return keys


def _public_of(secret: str) -> str:
    return z85.decode(zmq.curve_public(z85.encode(bytes.fromhex(secret)))).hex()


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write a private file, as a whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        missing = [folder for folder in path.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            _give_to_owner_of_parent(folder)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                _give_to_owner_of_parent(new)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                new.replace(path)
            else:
                with suppress(FileExistsError):
                    path.hardlink_to(new)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be written: {error.strerror}") from None


def _give_to_owner_of_parent(path: Path) -> None:
    """Let a broker of another user, for whom root works, open what root has made."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def _check_writers(path: Path) -> None:
    """Raise ``KeyFileError`` if other users may write a file or directory that exists."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _CannotReadError(f"{path} cannot be read: {error.strerror}") from None
    if found.st_uid not in (0, os.geteuid()) and os.geteuid() != 0:  # root works for all users
        raise KeyFileError(
            f"{path} belongs to user {found.st_uid}, who may write it: give it to the user of the"
            f" broker (chown)"
        )
    if found.st_mode & _WRITABLE:
        mode = stat.S_IMODE(found.st_mode)
        raise KeyFileError(
            f"{path} has mode {mode:04o}, and other users may write the keys that are allowed:"
            f" chmod go-w {path}, and look at them with `{program()} keys show`"
        )


def _keys_in(path: Path) -> list[str]:
    """Return the public keys in a file, none if there is no file; raises ``KeyFileError``."""
    _check_writers(path)
    try:
        lines = path.read_text(encoding="ascii").split()
    except FileNotFoundError:  # it was removed since its folder was read
        return []
    except OSError as error:
        raise _CannotReadError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} cannot be read: it has other letters than keys") from None
    return [key for key in lines if _KEY.fullmatch(key)]


def _paths(folder: Path) -> list[Path]:
    """Return the files of keys in a folder, if there is one; raises ``KeyFileError``."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _CannotReadError(f"{folder} cannot be read: {error.strerror}") from None
    return sorted(folder / name for name in names if name.endswith(_SUFFIX))


def _name(path: Path) -> str:
    """Return whose keys a file has."""
    return path.name.removesuffix(_SUFFIX)


def _check_names(name: str, keys: Collection[str]) -> None:
    """Raise ``KeyFileError`` for a name or a key of another form."""
    if not _NAME.fullmatch(name):
        raise KeyFileError(f"{name!r} is not a name: letters, digits and . _ - are allowed")
    for key in keys:
        if not _KEY.fullmatch(key):
            raise KeyFileError(f"{key!r} is not a public key: it has 64 digits and letters a-f")


def _lines(keys: Collection[str]) -> str:
    return "".join(f"{key}\n" for key in dict.fromkeys(keys))


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file comes into a folder or leaves it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _files(folder: Path) -> tuple[object, ...]:
    """Return what changes when a file in a folder does."""
    found: list[tuple[str, int, int, int, int]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                one = entry.stat()
                changed = one.st_mtime_ns, one.st_ctime_ns
                found.append((entry.name, one.st_ino, one.st_size, *changed))
    return tuple(sorted(found))


class _Known(NamedTuple):
    """What a directory of keys says; ``allowed`` and ``revoked`` are the keys in each file."""

    allowed: Mapping[Path, frozenset[str]]
    revoked: Mapping[Path, frozenset[str]] | None  # None: it is not known who must not connect
    peers: Mapping[str, KeyOwner]

    def is_revoked(self, key: str) -> bool:
        """Whether a key may certainly connect never again."""
        return any(key in keys for keys in (self.revoked or {}).values())


class _Reader:
    """Reads all files of a directory; what cannot be read now is as it was ``before``."""

    def __init__(self, path: Path, before: _Known) -> None:
        self._path = path
        self._before = before
        self.refusals: list[str] = []
        """Who may not connect, and why."""
        self.unread = ""
        """What cannot be read first."""

    def read(self) -> _Known:
        """Return what is known now."""
        folder = self._path / _ALLOWED
        allowed = self._files(folder, self._before.allowed)
        revoked: Mapping[Path, frozenset[str]] | None = None
        peers: dict[str, KeyOwner] = {}
        try:
            self._check(self._path)
            self._check(self._path / _REVOKED)
            revoked = self._files(self._path / _REVOKED, self._before.revoked)
            self._check(folder)
        except KeyFileError as error:
            self.refusals.append(f"Nobody may connect: {error}")
            return _Known(allowed, revoked, peers)
        refused = frozenset[str]().union(*revoked.values())
        for path, keys in reversed(list(allowed.items())):
            peers |= dict.fromkeys(keys - refused, KeyOwner.named(_name(path)))
        return _Known(allowed, revoked, peers)

    def _check(self, folder: Path) -> None:
        try:
            _check_writers(folder)
        except _CannotReadError as error:
            self._keep(error)

    def _files(
        self, folder: Path, before: Mapping[Path, frozenset[str]] | None
    ) -> Mapping[Path, frozenset[str]]:
        """Return the keys in each file of a folder.

        Raises ``KeyFileError`` for revoked keys that others may write, or that were never read.
        """
        try:
            paths = _paths(folder)
        except _CannotReadError as error:
            return self._keep(error, before)
        found = dict.fromkeys(paths, frozenset[str]())
        for path in paths:
            try:
                found[path] = frozenset(_keys_in(path))
            except _CannotReadError as error:
                found[path] = self._keep(error, before).get(path, frozenset())
            except KeyFileError as error:
                if folder.name == _REVOKED:
                    raise
                self.refusals.append(f"{_name(path)} may not connect: {error}")
        return found

    def _keep(
        self, error: _CannotReadError, before: Mapping[Path, frozenset[str]] | None = _NOTHING
    ) -> Mapping[Path, frozenset[str]]:
        self.unread = self.unread or str(error)
        if before is None:
            raise error
        return before


class KeysDirectory:
    """A directory of keys. Changes are seen at once, and those within a file after a second.

    What cannot be read stays as it was read last: a process that has no descriptors left, or a disk
    that fails, changes nobody's rights. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._allowed = path / _ALLOWED
        self._revoked = path / _REVOKED
        self._lock = threading.Lock()
        # Of both folders the inode and the time of change.
        self._seen: tuple[tuple[int, int] | None, ...] = ()
        self._seen_files: tuple[object, ...] | None = None  # None: they must be read again
        self._look_at = 0.0
        self._known = _Known(_NOTHING, None, {})
        self._reader = _Reader(path, self._known)  # the last one

    @property
    def peers(self) -> Mapping[str, KeyOwner]:
        """The owners of the allowed keys, by key; a file that cannot be used allows nobody."""
        return self._look().peers

    def peer(self, key: str) -> KeyOwner | None:
        """See ``peers.KnownKeys``."""
        return self.peers.get(key)

    def may_register(self, owner: KeyOwner, key: str) -> bool:
        """Whether a key may count that is not in this directory but in a registration."""
        known = self._look()
        is_named = self.file_of(owner.name) in known.allowed
        return not is_named and known.revoked is not None and not known.is_revoked(key)

    def is_revoked(self, key: str) -> bool:
        """Whether a key may certainly connect never again."""
        return self._look().is_revoked(key)

    def has(self, name: str) -> bool:
        """Whether there is a file of allowed keys for a name, also an empty one."""
        return self.file_of(name) in self._look().allowed

    def _look(self) -> _Known:
        seen, now = tuple(map(_version, (self._allowed, self._revoked))), time.monotonic()
        with self._lock:
            if seen != self._seen or now >= self._look_at:
                self._look_at = now + _LOOK_S
                files = (*_files(self._allowed), *_files(self._revoked))
                if seen != self._seen or files != self._seen_files:
                    self._known = self._read()
                    self._seen = seen
                    self._seen_files = None if self._reader.unread else files
            return self._known

    def read_again(self, then: Callable[[], None]) -> None:
        """See ``peers.KnownKeys``: nothing is kept that could be old."""
        then()

    def allowed(self) -> dict[str, list[str]]:
        """Return the allowed keys by the names of their owners, in the order of names.

        Raises ``KeyFileError`` if other users may write them.
        """
        _check_writers(self.path)
        _check_writers(self._allowed)
        return {_name(path): _keys_in(path) for path in _paths(self._allowed)}

    def _read(self) -> _Known:
        earlier, reader = self._reader, _Reader(self.path, self._known)
        known = reader.read()
        if reader.unread and not earlier.unread:
            logger.warning("%s: what it had still counts", reader.unread)
        for refusal in reader.refusals:
            if not (reader.unread and refusal in earlier.refusals):  # it is read each second
                logger.warning("%s", refusal)
        self._reader = reader
        return known

    def revoked(self) -> dict[str, str]:
        """Return the names of the revoked keys' owners, by key; raises ``KeyFileError``."""
        _check_writers(self._revoked)
        return {key: _name(path) for path in _paths(self._revoked) for key in _keys_in(path)}

    def file_of(self, name: str) -> Path:
        """Return the file with the allowed keys of a name."""
        return self._allowed / f"{name}{_SUFFIX}"

    def allow(self, name: str, *keys: str) -> None:
        """Let the owner of a name connect with these keys and no others.

        Raises ``KeyFileError``.
        """
        _check_names(name, keys)
        for key in self.revoked().keys() & set(keys):
            raise KeyFileError(f"the key {key} was revoked ({self._revoked}): make another one")
        _write(self.file_of(name), _lines(keys), replace=True)

    def revoke(self, name: str, key: str | None = None) -> int:
        """Let one key of a name, or all, connect never again; return how many these are.

        Without ``key`` the registration of a broker does not count either, until a key is allowed.
        Raises ``KeyFileError``.
        """
        is_broker = KeyOwner.named(name).broker_id is not None
        allowed = self.allowed().get(name, [])
        revoked = allowed if key is None else [key]
        _check_names(name, revoked)
        if not is_broker and not set(revoked) & set(allowed):
            raise KeyFileError(f"{self.path}: {name} has no such key: see `keys show`")
        earlier = [one for one, owner in self.revoked().items() if owner == name]
        if revoked:
            _write(self._revoked / f"{name}{_SUFFIX}", _lines(earlier + revoked), replace=True)
        left = [one for one in allowed if one not in revoked]
        if left or (is_broker and key is None):
            _write(self.file_of(name), _lines(left), replace=True)
        else:
            self.file_of(name).unlink(missing_ok=True)
        return len(revoked)

    def operator(self) -> KeyPair:
        """Return the key of this machine's commands; raises ``KeyFileError``."""
        return read_secret(self.path / _OPERATOR_SECRET)

    def make_first_operator(self) -> None:
        """Make the key of this machine's commands, unless operators are allowed already.

        Raises ``KeyFileError``, also for a key that others may read.
        """
        has_operators = any(KeyOwner.named(name).broker_id is None for name in self.allowed())
        if not has_operators or (self.path / _OPERATOR_SECRET).exists():
            self.make_operator()

    def make_operator(self, *, replace: bool = False) -> KeyPair:
        """Make the key of this machine's commands, unless there is one, and allow it.

        Raises ``KeyFileError``, also if there is none to ``replace``.
        """
        path = self.path / _OPERATOR_SECRET
        if replace and not path.exists():
            raise KeyFileError(
                f"there is no {path} to replace: name its folder with --data-dir or --keys, or make"
                f" a key with `{program()} keys make`"
            )
        is_new = replace or not path.exists()
        if is_new:
            make_secret(path, replace=replace)
        keys = read_secret(path)
        if is_new:
            self.allow(OPERATOR, keys.public)
        return keys


def keys_folder(data_dir: Path) -> Path:
    """Return the directory of keys of a cluster, or of a broker without the setting ``keys_dir``.

    A broker uses the one beside its data if there is one, else that in it.
    """
    beside = data_dir.absolute().parent / KEYS_DIR
    is_of_cluster = (data_dir / CLUSTER_FILE).exists()
    return beside if beside.is_dir() and not is_of_cluster else data_dir / KEYS_DIR


def keys_of_command() -> KeyPair:
    """Return the key of this command; a new one, which nobody knows, if there is none.

    Raises ``KeyFileError``.
    """
    if KEYS_OF_COMMAND.given is not None:
        return KeysDirectory(KEYS_OF_COMMAND.given).operator()
    beside = KEYS_OF_COMMAND.data_dir and KEYS_OF_COMMAND.data_dir / KEYS_DIR
    KEYS_OF_COMMAND.is_new = not (beside and beside.is_dir())
    return KeysDirectory(beside).operator() if beside and beside.is_dir() else new_key_pair()


def doubt_of_keys() -> str:
    """Return the question when nobody answers this process, and the remedy of a command."""
    question = "is our key allowed there?"
    if not KEYS_OF_COMMAND.is_new:
        return question
    return (
        f"{question} This command found none: name a folder of keys with --keys ({KEYS_VARIABLE}),"
        " or the folder of the cluster with --data-dir"
    )
