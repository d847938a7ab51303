"""Passwords of listeners in ZooKeeper: written by clients, followed, and encoded again."""

from __future__ import annotations

import pytest

from regent.config.settings import KAFKA_SETTINGS
from regent.core.admin.config_alterations import (
    BrokerConfigAlteration,
    BrokerConfigManager,
    RefusedError,
)
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation
from regent.zk import znodes
from regent.zk.codecs.encoded_passwords import decode_password, encode_password
from regent.zk.stores.broker_passwords import BrokerPasswords, FollowedConfigs
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

ENTITY = "brokers/1"
NAME = "listener.name.one.ssl.key.password"
LOGIN = "listener.name.one.plain.sasl.jaas.config"
PASSWORD = "p,w"


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    for path in znodes.PERSISTENT_PATHS:
        server.put(path)
    return server


def put(server: FakeZooKeeperServer, config: dict[str, str]) -> None:
    server.put(f"/config/{ENTITY}", ConfigEntityZNode.encode(config))


def stored(server: FakeZooKeeperServer) -> dict[str, str]:
    return ConfigEntityZNode.decode(server.snapshot()[f"/config/{ENTITY}"].data)


def passwords(secret: str, old_secret: str = "") -> BrokerPasswords:
    return BrokerPasswords(secret, old_secret, KAFKA_SETTINGS)


def followed(zookeeper: FakeZooKeeper, encoder: BrokerPasswords) -> dict[str, str]:
    configs = FollowedConfigs(zookeeper, 1, encoder)
    return dict(configs.read_configs([ENTITY]).get(ENTITY, {}))


def alter(zookeeper: FakeZooKeeper, encoder: BrokerPasswords, name: str, value: str) -> None:
    configs = FollowedConfigs(zookeeper, 1, encoder)
    checked: list[str] = []
    manager = BrokerConfigManager(
        configs, KAFKA_SETTINGS, {}, lambda config: checked.append(config[name]), passwords=encoder
    )
    change = AlterableConfig(name=name, config_operation=AlterOperation.SET, value=value)
    manager.alter(BrokerConfigAlteration(1, (change,)))
    assert checked == [value], "what is checked is the password"


@pytest.mark.parametrize("name", [NAME, LOGIN])
def test_a_password_of_a_client_is_stored_encoded_and_followed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, name: str
) -> None:
    encoder = passwords("s")
    alter(zookeeper, encoder, name, PASSWORD)
    assert decode_password("s", stored(server)[name]) == PASSWORD
    assert followed(zookeeper, encoder) == {name: PASSWORD}
    before = stored(server)
    alter(zookeeper, encoder, "max.connections", "5")
    assert stored(server) == {**before, "max.connections": "5"}, "the others stay as they are"


@pytest.mark.parametrize("name", [NAME, LOGIN])
def test_without_a_secret_no_password_is_stored(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, name: str
) -> None:
    with pytest.raises(RefusedError, match="Password encoder secret not configured"):
        alter(zookeeper, passwords(""), name, PASSWORD)
    assert f"/config/{ENTITY}" not in server.snapshot()


@pytest.mark.parametrize("secret", ["", "another"])
def test_a_password_that_cannot_be_decoded_is_ignored_and_named(
    server: FakeZooKeeperServer,
    zookeeper: FakeZooKeeper,
    caplog: pytest.LogCaptureFixture,
    secret: str,
) -> None:
    text = encode_password("s", PASSWORD)
    put(server, {NAME: text, "max.connections": "5"})
    assert followed(zookeeper, passwords(secret)) == {"max.connections": "5"}
    assert f"the password {NAME} in ZooKeeper cannot be decoded" in caplog.text
    assert text not in caplog.text
    assert stored(server)[NAME] == text


def test_what_the_old_secret_encoded_is_encoded_again_once(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    newer = encode_password("new", "newer")
    put(server, {NAME: encode_password("old", PASSWORD), LOGIN: newer})
    encoder = passwords("new", "old")
    assert followed(zookeeper, encoder) == {NAME: PASSWORD, LOGIN: "newer"}
    after = stored(server)
    assert decode_password("new", after[NAME]) == PASSWORD
    assert after[LOGIN] == newer
    assert followed(zookeeper, passwords("new")) == {NAME: PASSWORD, LOGIN: "newer"}
    assert followed(zookeeper, encoder) == {NAME: PASSWORD, LOGIN: "newer"}
    assert stored(server) == after


def test_passwords_of_other_brokers_are_left_alone(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    put(server, {NAME: encode_password("old", PASSWORD)})
    before = stored(server)
    FollowedConfigs(zookeeper, 2, passwords("new", "old")).read_configs([ENTITY])
    assert stored(server) == before
