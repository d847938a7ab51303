"""Which keys a broker knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from regent.broker.broker_keys import BrokerKeys
from regent.config.tables.broker import BrokerConfig
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerInfo
from regent.core.security.roles import KeyOwner
from regent.testing.waits import eventually, scaled
from regent.transport.control import key_files
from regent.transport.control.key_files import (
    BROKER_SECRET,
    KeyFileError,
    KeysDirectory,
    make_secret,
    new_key_pair,
)
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.descriptors import no_descriptor_left
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

OpenKeys = Callable[..., BrokerKeys]


@pytest.fixture
def open_keys(tmp_path: Path) -> Iterator[OpenKeys]:
    failures: list[RegentError] = []
    with ExitStack() as stack:

        def open_one(broker_id: BrokerId, **config: Any) -> BrokerKeys:
            config_of_it = BrokerConfig(**config)
            keys = BrokerKeys(broker_id, tmp_path / f"b{broker_id}", config_of_it, failures.append)
            stack.callback(keys.stop)
            return keys

        yield open_one
    assert not failures


def read(keys: BrokerKeys) -> None:
    """Let all registrations be read."""
    done: SimpleQueue[None] = SimpleQueue()
    keys.read_again(lambda: done.put(None))
    done.get(timeout=scaled(5))


class Registry:
    """A ZooKeeper with registrations."""

    def __init__(self) -> None:
        self._server = FakeZooKeeperServer()
        self._sessions: dict[BrokerId, FakeZooKeeper] = {}
        self.reader = FakeZooKeeper(self._server)
        ZkControllerStore(self.reader).create_persistent_paths()

    def register(self, broker_id: BrokerId, key: str | None) -> None:
        session = self._sessions[broker_id] = FakeZooKeeper(self._server)
        ZkControllerStore(session).register_broker(BrokerInfo(broker_id, (), control_key=key))

    def leave(self, broker_id: BrokerId) -> None:
        self._server.expire(self._sessions.pop(broker_id).session_id)


def some_key() -> str:
    return new_key_pair().public


def test_a_broker_makes_its_key_and_that_of_commands_at_its_first_start(
    open_keys: OpenKeys, tmp_path: Path
) -> None:
    first = open_keys(1)
    operator = KeysDirectory(tmp_path / "b1" / "keys").operator()
    assert first.peer(operator.public) == KeyOwner("operator")
    assert first.peer(first.own.public) == KeyOwner.broker(1)
    assert first.peer(some_key()) is None
    assert open_keys(1).own == first.own


def test_brokers_beside_a_directory_of_keys_share_it(open_keys: OpenKeys, tmp_path: Path) -> None:
    operator = KeysDirectory(tmp_path / "keys").make_operator()
    one, two = open_keys(1), open_keys(2)
    assert one.peer(two.own.public) == KeyOwner.broker(2)
    assert two.peer(operator.public) == KeyOwner("operator")
    assert not (tmp_path / "b1" / "keys").exists()


def test_where_operators_are_allowed_already_no_key_of_commands_is_made(
    open_keys: OpenKeys, tmp_path: Path
) -> None:
    alice = some_key()
    KeysDirectory(tmp_path / "given").allow("alice", alice)
    keys = open_keys(1, keys_dir=str(tmp_path / "given"))
    assert keys.peer(alice) == KeyOwner("alice")
    with pytest.raises(KeyFileError):
        KeysDirectory(tmp_path / "given").operator()


def test_a_registered_broker_is_known_until_it_leaves(open_keys: OpenKeys) -> None:
    keys, registry, key = open_keys(1), Registry(), some_key()
    keys.follow(registry.reader)
    registry.register(2, key)
    registry.register(3, None)  # a broker of Kafka
    read(keys)
    assert keys.peer(key) == KeyOwner.broker(2)
    registry.leave(2)
    read(keys)
    assert keys.peer(key) is None


def test_a_key_that_two_brokers_have_registered_is_the_first_ones(open_keys: OpenKeys) -> None:
    keys, registry, key = open_keys(1), Registry(), some_key()
    keys.follow(registry.reader)
    registry.register(3, key)
    registry.register(2, key)
    read(keys)
    assert keys.peer(key) == KeyOwner.broker(3)


def test_a_key_in_the_directory_counts_more_than_a_registered_one(
    open_keys: OpenKeys, tmp_path: Path
) -> None:
    allowed, registered = some_key(), some_key()
    KeysDirectory(tmp_path / "keys").allow("broker-2", allowed)
    keys, registry = open_keys(1), Registry()
    keys.follow(registry.reader)
    registry.register(2, registered)
    registry.register(3, keys.own.public)
    read(keys)
    assert keys.peer(allowed) == KeyOwner.broker(2)
    assert keys.peer(registered) is None
    assert keys.peer(keys.own.public) == KeyOwner.broker(1), "no other broker can take it over"


def test_registered_keys_are_not_believed_if_only_allowed_ones_are(open_keys: OpenKeys) -> None:
    keys, registry, key = open_keys(1, broker_keys="allowed"), Registry(), some_key()
    keys.follow(registry.reader)
    registry.register(2, key)
    read(keys)
    assert keys.peer(key) is None


@pytest.mark.parametrize("is_named", [True, False])
def test_a_revoked_key_is_not_believed_again_because_it_is_registered(
    open_keys: OpenKeys, tmp_path: Path, is_named: bool
) -> None:
    keys, registry, key, new = open_keys(1), Registry(), some_key(), some_key()
    directory = KeysDirectory(tmp_path / "b1" / "keys")
    keys.follow(registry.reader)
    registry.register(2, key)
    read(keys)
    directory.revoke("broker-2", key if is_named else None)
    assert keys.peer(key) is None, "at once"
    read(keys)
    assert keys.peer(key) is None
    registry.leave(2)
    registry.register(2, new)
    read(keys)
    assert keys.peer(new) == (KeyOwner.broker(2) if is_named else None)
    directory.allow("broker-2", new)
    assert keys.peer(new) == KeyOwner.broker(2)


@pytest.mark.parametrize("broker_keys", ["registered", "allowed"])
def test_a_broker_does_not_allow_its_own_revoked_key_again(
    tmp_path: Path, broker_keys: str
) -> None:
    def open_one() -> BrokerKeys:
        config = BrokerConfig(broker_keys=broker_keys)
        return BrokerKeys(1, tmp_path / "b1", config, failures.put)

    failures: SimpleQueue[RegentError] = SimpleQueue()
    KeysDirectory(tmp_path / "keys").make_operator()
    keys = open_one()
    try:
        KeysDirectory(tmp_path / "keys").revoke("broker-1")
        reason = failures.get(timeout=scaled(10))
    finally:
        keys.stop()
    remedy = f"keys rotate --broker {tmp_path / 'b1'}"
    assert remedy in str(reason), "others refuse it: it must not stay the leader"
    with pytest.raises(KeyFileError, match=remedy):
        open_one()
    assert KeysDirectory(tmp_path / "keys").peer(keys.own.public) is None
    make_secret(tmp_path / "b1" / BROKER_SECRET, replace=True)
    keys = open_one()
    keys.stop()
    assert KeysDirectory(tmp_path / "keys").peer(keys.own.public) == KeyOwner.broker(1)
    assert failures.empty()


def test_without_zookeeper_questions_are_answered_nevertheless(open_keys: OpenKeys) -> None:
    keys, registry, key = open_keys(1), Registry(), some_key()
    read(keys)
    registry.register(2, key)
    keys.follow(registry.reader)
    read(keys)
    registry.reader.close()
    read(keys)
    assert keys.peer(key) == KeyOwner.broker(2), "what was read last"


def test_a_file_that_cannot_be_used_keeps_no_registered_broker_out(
    open_keys: OpenKeys, tmp_path: Path
) -> None:
    keys, registry, registered = open_keys(1), Registry(), some_key()
    directory = KeysDirectory(tmp_path / "b1" / "keys")
    directory.allow("bob", some_key())
    directory.file_of("bob").chmod(0o666)
    registry.register(2, registered)
    keys.follow(registry.reader)
    read(keys)
    assert keys.peer(registered) == KeyOwner.broker(2)


def test_a_broker_without_descriptors_for_a_moment_knows_the_keys_that_it_knew(
    open_keys: OpenKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "_LOOK_S", 0.0)
    keys, registry, allowed, registered = open_keys(1), Registry(), some_key(), some_key()
    directory = KeysDirectory(tmp_path / "b1" / "keys")
    directory.allow("alice", allowed)
    registry.register(2, registered)
    keys.follow(registry.reader)
    read(keys)
    with no_descriptor_left():
        for _ in range(2):
            read(keys)
            assert keys.peer(allowed) == KeyOwner("alice")
            assert keys.peer(registered) == KeyOwner.broker(2)
    directory.revoke("broker-2", registered)
    eventually(lambda: keys.peer(registered) is None, "the folder is read again")


@pytest.mark.parametrize("file", ["curve.secret", "keys/operator.secret"])
def test_a_secret_that_others_may_read_ends_the_start(
    open_keys: OpenKeys, tmp_path: Path, file: str
) -> None:
    open_keys(1)
    (tmp_path / "b1" / file).chmod(0o644)
    with pytest.raises(KeyFileError, match=f"{file} has mode 0644.*chmod 600"):
        open_keys(1)
