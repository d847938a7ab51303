"""The key of a broker, and the keys of those whose control requests it takes.

Other brokers prove the key that their registration has, or the one that the directory of keys has
for them. A key that is revoked there counts nowhere. A broker that registers connects at once. So
for a key that is not known all registrations are read again before the connection is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from regent.config.command_line import program
from regent.config.tables.broker import BrokerConfig
from regent.config.threads import NamedThread
from regent.core.errors import BadDataError, RegentError
from regent.core.model import BrokerId
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.core.security.roles import KeyOwner
from regent.transport.control.key_files import (
    BROKER_SECRET,
    KeyFileError,
    KeysDirectory,
    keys_folder,
    secret_at,
)
from regent.transport.control.sockets import new_context
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import decode_broker_id
from regent.zk.znodes import BrokerIdsZNode, BrokerIdZNode

logger = logging.getLogger(__name__)

_LOOK_S: Final = 2.0  # between two looks whether our own key is revoked
_PAUSE_S: Final = 0.1  # between two reads of all registrations
_STOP_TIMEOUT_S: Final = 2.0


class BrokerKeys:
    """Implements ``transport.control.peers.KnownKeys``; makes the keys that do not exist yet.

    ``on_failure`` gets the reason if the thread that reads them ends by itself, or the own key was
    revoked: the process must end then. Brokers that come later would not be let in, or none of them
    heeds this one.

    Raises ``KeyFileError`` for a file that other users may read, or without a pair of keys, and if
    the own key was revoked.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        data_dir: Path,
        config: BrokerConfig,
        on_failure: Callable[[RegentError], None],
    ) -> None:
        self.own = secret_at(data_dir / BROKER_SECRET)
        """The keys of this broker."""
        folder = Path(config.keys_dir) if config.keys_dir else keys_folder(data_dir)
        self._directory = KeysDirectory(folder)
        self._believes_registrations = config.broker_keys == "registered"
        self._directory.make_first_operator()
        name = KeyOwner.broker(broker_id).name
        self._remedy = (
            f"the key in {data_dir / BROKER_SECRET} was revoked ({folder}):"
            f" `{program()} keys rotate --broker {data_dir}` makes another one, then start the"
            " broker again"
        )
        if self.own.public in self._directory.revoked():
            raise KeyFileError(self._remedy)
        if self._directory.allowed().get(name) != [self.own.public]:
            self._directory.allow(name, self.own.public)
        self.context = new_context(self.own)
        """For its connections to others."""
        self._zookeeper: ZooKeeper | None = None
        self._registered: Mapping[str, KeyOwner] = {}
        self._registrations: frozenset[tuple[BrokerId, int]] = frozenset()  # ids and epochs
        self._waiting: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._is_asked = threading.Event()
        self._is_stopping = threading.Event()
        self._on_failure = on_failure
        self._thread = NamedThread(self._run, "keys-reader")
        self._thread.start()

    def follow(self, zookeeper: ZooKeeper) -> None:
        """Read registrations from now on."""
        self._zookeeper = zookeeper
        self.read_again(_nothing)

    def peer(self, key: str) -> KeyOwner | None:
        """See ``KnownKeys``."""
        # The directory first: nobody can take over a key that it has by registering it.
        allowed, registered = self._directory.peer(key), self._registered.get(key)
        if allowed is None and registered and self._directory.may_register(registered, key):
            return registered
        return allowed

    def read_again(self, then: Callable[[], None]) -> None:
        """See ``KnownKeys``."""
        with self._lock:
            self._waiting.append(then)
        self._is_asked.set()

    def on_metadata_changed(self, cluster: MetadataSnapshot) -> None:
        """Read registrations if other brokers have come or left: their keys count no more."""
        registrations = frozenset((b.broker_id, b.broker_epoch) for b in cluster.brokers.values())
        if registrations != self._registrations:
            self._registrations = registrations
            self.read_again(_nothing)

    def stop(self) -> None:
        """End the thread that reads, and the context."""
        self._is_stopping.set()
        self._is_asked.set()
        self._thread.join(_STOP_TIMEOUT_S)
        self.context.destroy(linger=0)

    def _run(self) -> None:
        why = f"the thread {self._thread.name} has ended"
        try:
            is_revoked = self._read_when_asked()
            why = self._remedy if is_revoked else why
        finally:
            if not self._is_stopping.is_set():
                self._on_failure(RegentError(why))

    def _read_when_asked(self) -> bool:
        """Return False when asked to stop, True when the own key is revoked."""
        while not self._is_stopping.is_set():
            is_asked = self._is_asked.wait(_LOOK_S)
            waiting: list[Callable[[], None]] = []
            if is_asked:
                self._is_asked.clear()
                with self._lock:
                    waiting, self._waiting = self._waiting, []
            try:
                if self._directory.is_revoked(self.own.public):
                    # Others refuse what this broker needs as a leader: another one must take over.
                    return True
                if is_asked:
                    self._read()
            except RegentError as error:
                logger.debug("the keys of other brokers are not known now: %s", error)
            except Exception:  # the next question must still be answered
                logger.exception("cannot read the keys of other brokers")
            for then in waiting:
                then()
            if is_asked:
                self._is_stopping.wait(_PAUSE_S)
        return False

    def _read(self) -> None:
        """Read the keys of all registered brokers."""
        if self._zookeeper is None or not self._believes_registrations:
            return
        names = self._zookeeper.children(BrokerIdsZNode.PATH) or []
        nodes = self._zookeeper.get_many([f"{BrokerIdsZNode.PATH}/{name}" for name in names])
        found: list[tuple[int, str, BrokerId]] = []
        for name, node in zip(names, nodes, strict=True):
            try:
                broker_id = decode_broker_id(name)
                if node is None:
                    continue
                key = BrokerIdZNode.decode(node.data, broker_id).control_key
            except BadDataError as error:
                logger.debug("no key of broker %s: %s", name, error)
                continue
            if key is not None:
                found.append((node.stat.czxid, key, broker_id))
        registered: dict[str, KeyOwner] = {}
        for _, key, broker_id in sorted(found):
            peer = KeyOwner.broker(broker_id)
            if not self._directory.has(peer.name):
                registered.setdefault(key, peer)  # a key that two have registered is the first's
        self._registered = registered


def _nothing() -> None:
    pass
