"""The keys of processes (CURVE: https://rfc.zeromq.org/spec/26/), and the files they are in.

A process proves with its secret key who it is. Others know its public key: brokers' from their
registrations, or from a *directory of keys*, which also has the keys of operators::

    keys/operator.secret       the secret key of commands on this machine
    keys/placement.secret      the secret key of the placement service
    keys/allowed/NAME.key      public keys that may connect, one a line; broker-N: those of broker N

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
from collections.abc import Callable, Mapping
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
_SUFFIX: Final = ".key"
_WRITABLE: Final = 0o022  # by others
_LOOK_S: Final = 1.0  # between two looks at files that may have been changed in place
_KEY: Final = re.compile("[0-9a-f]{64}")
_NAME: Final = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class KeyFileError(RegentError):
    """A file of keys that cannot be used; the message names the remedy."""


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
        raise KeyFileError(f"{path}: {error.strerror}") from None
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
    """Return the public keys in a file; raises ``KeyFileError``."""
    _check_writers(path)
    try:
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it has other letters than keys"
        raise KeyFileError(f"{path} cannot be read: {reason}") from None
    return [key for key in lines if _KEY.fullmatch(key)]


class KeysDirectory:
    """A directory of keys. Changes are seen at once, and those within a file after a second.

    Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._allowed = path / _ALLOWED
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None  # the directory's inode and time of change
        self._seen_files: tuple[object, ...] = ()
        self._look_at = 0.0
        self._peers: Mapping[str, KeyOwner] = {}

    @property
    def peers(self) -> Mapping[str, KeyOwner]:
        """The owners of the allowed keys, by key; a file that cannot be used allows nobody."""
        try:
            found = self._allowed.stat()
        except OSError:
            return {}
        seen, now = (found.st_ino, found.st_mtime_ns), time.monotonic()
        with self._lock:
            if seen != self._seen or now >= self._look_at:
                self._look_at = now + _LOOK_S
                files = self._files()
                if seen != self._seen or files != self._seen_files:
                    self._peers = self._read_peers()
                    self._seen, self._seen_files = seen, files
            return self._peers

    def peer(self, key: str) -> KeyOwner | None:
        """See ``peers.KnownKeys``."""
        return self.peers.get(key)

    def read_again(self, then: Callable[[], None]) -> None:
        """See ``peers.KnownKeys``: nothing is kept that could be old."""
        then()

    def allowed(self) -> dict[str, list[str]]:
        """Return the allowed keys by the names of their owners, in the order of names.

        Raises ``KeyFileError`` if other users may write them.
        """
        _check_writers(self.path)
        _check_writers(self._allowed)
        return {path.name.removesuffix(_SUFFIX): _keys_in(path) for path in self._paths()}

    def _paths(self) -> list[Path]:
        return sorted(self._allowed.glob(f"*{_SUFFIX}"))

    def _files(self) -> tuple[object, ...]:
        """Return what changes when a file does."""
        found: list[tuple[str, int, int, int, int]] = []
        with suppress(OSError), os.scandir(self._allowed) as entries:
            for entry in entries:
                with suppress(OSError):
                    one = entry.stat()
                    changed = one.st_mtime_ns, one.st_ctime_ns
                    found.append((entry.name, one.st_ino, one.st_size, *changed))
        return tuple(sorted(found))

    def _read_peers(self) -> Mapping[str, KeyOwner]:
        peers: dict[str, KeyOwner] = {}
        try:
            _check_writers(self.path)
            _check_writers(self._allowed)
        except KeyFileError as error:
            logger.warning("Nobody may connect: %s", error)
            return peers
        for path in reversed(self._paths()):
            owner = KeyOwner.named(path.name.removesuffix(_SUFFIX))
            try:
                peers |= dict.fromkeys(_keys_in(path), owner)
            except KeyFileError as error:
                logger.warning("%s may not connect: %s", owner.name, error)
        return peers

    def file_of(self, name: str) -> Path:
        """Return the file with the allowed keys of a name."""
        return self._allowed / f"{name}{_SUFFIX}"

    def allow(self, name: str, *keys: str) -> None:
        """Let the owner of a name connect with these keys and no others.

        Raises ``KeyFileError``.
        """
        if not _NAME.fullmatch(name):
            raise KeyFileError(f"{name!r} is not a name: letters, digits and . _ - are allowed")
        for key in keys:
            if not _KEY.fullmatch(key):
                raise KeyFileError(f"{key!r} is not a public key: it has 64 digits and letters a-f")
        text = "".join(f"{key}\n" for key in dict.fromkeys(keys))
        _write(self.file_of(name), text, replace=True)

    def revoke(self, name: str) -> bool:
        """Let the owner of a name connect no more; return whether it could. Raises OSError."""
        try:
            self.file_of(name).unlink()
        except FileNotFoundError:
            return False
        return True

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

        Raises ``KeyFileError``.
        """
        path = self.path / _OPERATOR_SECRET
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
