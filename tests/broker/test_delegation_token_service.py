"""A broker's settings of delegation tokens, its secret, and how it follows tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regent.actors.scheduler import Scheduler
from regent.broker import delegation_token_service
from regent.broker.delegation_token_service import BrokerDelegationTokens
from regent.broker.machine_settings import controller_settings
from regent.config.private_files import write_private
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.errors import RegentError
from regent.core.security.scram import ScramMechanism
from regent.testing.waits import eventually
from regent.zk.client.operations import WatchEvent
from regent.zk.znodes import DelegationTokenChangeNotificationZNode
from tests.support.fake_zookeeper import FakeZooKeeperServer
from tests.support.token_world import ALICE, BOB
from tests.support.world import KeptSession

SECRET = "a secret of all brokers"
NAMED = "delegation_token_secret_key_file"


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    write_private(path, f"{SECRET}\n")
    return path


def settings_with(secret_file: Path, **others: Any) -> Settings:
    return load_settings(None, {"delegation_tokens": {NAMED: str(secret_file), **others}})


class Following:
    """A broker that follows tokens; ``watches`` of its session reach it as in a broker."""

    def __init__(self, server: FakeZooKeeperServer, settings: Settings) -> None:
        self.broker = BrokerDelegationTokens(1, settings)
        self.session = KeptSession(server, self.on_watch)
        self._undo = ExitStack()
        scheduler = Scheduler()
        self._undo.callback(scheduler.shutdown)
        self.broker.follow(self.session, scheduler, self._undo)
        self.broker.load()

    def close(self) -> None:
        self._undo.close()

    def on_watch(self, watch: WatchEvent) -> None:
        self.broker.on_watch(watch.path)

    @property
    def tokens(self) -> Any:
        assert self.broker.manager is not None
        return self.broker.manager

    def knows(self, token_id: str) -> bool:
        return self.tokens.scram(ScramMechanism.SCRAM_SHA_256, token_id, by_token=True) is not None


@pytest.fixture
def brokers(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Following]]:
    monkeypatch.setattr(delegation_token_service, "_LOOK_MS", 20)
    server, settings = FakeZooKeeperServer(), settings_with(secret_file)
    brokers = [Following(server, settings) for _ in range(2)]
    yield brokers
    for broker in brokers:
        broker.close()


def test_without_a_secret_there_are_no_tokens_and_no_znodes():
    server = FakeZooKeeperServer()
    tokens = BrokerDelegationTokens(1, Settings())
    with ExitStack() as undo:
        scheduler = Scheduler()
        undo.callback(scheduler.shutdown)
        tokens.follow(KeptSession(server), scheduler, undo)
    tokens.load()
    tokens.on_session()
    tokens.on_watch("/delegation_token/token_changes")
    assert tokens.manager is None
    assert server.snapshot().keys() <= {"/"}


def test_the_controller_deletes_expired_tokens_only_with_a_secret(secret_file: Path):
    assert not controller_settings(Settings()).delegation_tokens_are_on
    settings = settings_with(secret_file, delegation_token_expiry_check_interval_ms=77)
    found = controller_settings(settings)
    assert found.delegation_tokens_are_on
    assert found.delegation_token_expiry_check_interval_ms == 77


def test_tokens_live_as_long_as_the_settings_say(secret_file: Path):
    settings = settings_with(
        secret_file,
        delegation_token_max_lifetime_ms=90_000,
        delegation_token_expiry_time_ms=30_000,
    )
    broker = Following(FakeZooKeeperServer(), settings)
    token = broker.tokens.create(ALICE, ALICE, (), -1).token
    broker.close()
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 90_000
    assert token.expiry_timestamp_ms - token.issue_timestamp_ms == 30_000


def test_the_end_of_the_line_is_no_part_of_the_secret(tmp_path: Path, secret_file: Path):
    write_private(tmp_path / "other", SECRET)
    server = FakeZooKeeperServer()
    first = Following(server, settings_with(secret_file))
    second = Following(server, settings_with(tmp_path / "other"))
    created = first.tokens.create(ALICE, ALICE, (), -1)
    assert second.tokens.renew(ALICE, created.hmac, -1) > 0
    first.close()
    second.close()


def test_a_missing_open_or_short_secret_ends_the_start_in_one_line(
    secret_file: Path,
):
    damages: dict[Callable[[], None], str] = {
        lambda: secret_file.chmod(0o640): f"mode 0640.*chmod 600 {secret_file}",
        lambda: write_private(secret_file, "short"): "at least 16 characters",
        lambda: write_private(secret_file, ""): "at least 16 characters",
        secret_file.unlink: "cannot be read",
    }
    for damage, reason in damages.items():
        damage()
        with pytest.raises(RegentError, match=reason) as refused:
            BrokerDelegationTokens(1, settings_with(secret_file))
        assert f"delegation_tokens.{NAMED}" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_the_secret_is_in_no_setting(secret_file: Path):
    assert SECRET not in repr(settings_with(secret_file))


def test_a_broker_learns_the_tokens_of_others(brokers: list[Following]):
    first, second = brokers
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    eventually(lambda: second.knows(token_id), "the token is known")
    hmac = first.tokens.describe(ALICE, None, lambda _: False)[0].hmac
    first.tokens.expire(ALICE, hmac, -1)
    eventually(lambda: not second.knows(token_id), "the token is gone")


def test_a_broker_learns_in_its_next_session_what_it_has_missed(brokers: list[Following]):
    first, second = brokers
    second.session.expire()
    token_id = first.tokens.create(BOB, BOB, (), -1).token.token_id
    assert not second.knows(token_id)
    second.session.renew(second.on_watch)
    second.broker.on_session()
    eventually(lambda: second.knows(token_id), "the token is known")
    another = first.tokens.create(BOB, BOB, (), -1).token.token_id
    eventually(lambda: second.knows(another), "the next token is known")


def test_a_broker_learns_what_an_acl_hid(brokers: list[Following]):
    first, second = brokers
    server = second.session.server
    server.deny(DelegationTokenChangeNotificationZNode.PATH)
    token_id = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    assert server.paths_with_lost_events, "no watch fires"
    eventually(lambda: second.knows(token_id), "the token is known")
    server.allow(DelegationTokenChangeNotificationZNode.PATH)
    another = first.tokens.create(ALICE, ALICE, (), -1).token.token_id
    eventually(lambda: second.knows(another), "the next token is known")
