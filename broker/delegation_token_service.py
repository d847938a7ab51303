"""The delegation tokens of one broker: the secret, and what follows the tokens in ZooKeeper."""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from regent.actors.config_listener import Following
from regent.actors.scheduler import RepeatingTimer, Scheduler
from regent.broker.machine_settings import filled
from regent.config.private_files import read_private
from regent.config.settings import Settings
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.security.delegation_token_manager import (
    DelegationTokenManager,
    DelegationTokenSettings,
)
from regent.core.security.scram import ScramCredential, ScramMechanism
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.delegation_token_store import ZkDelegationTokenStore
from regent.zk.znodes import DelegationTokenChangeNotificationZNode

_SETTING: Final = "delegation_tokens.delegation_token_secret_key_file"
_LEAST_BYTES: Final = 16
_LOOK_MS: Final = 60_000  # for changes whose watch did not fire
_STOP_TIMEOUT_S: Final = 2.0


class BrokerDelegationTokens:
    """Does nothing without a secret.

    Raises ``RegentError`` for a file that cannot be read, that others may read, or without a good
    secret.
    """

    def __init__(self, broker_id: BrokerId, settings: Settings) -> None:
        self.manager: DelegationTokenManager | None = None
        """What answers clients; None: there are no tokens."""
        self._broker_id = broker_id
        self._settings = settings
        self._secret = _secret(settings.delegation_tokens.delegation_token_secret_key_file)
        self._listener: Following | None = None

    def follow(self, zookeeper: ZooKeeper, scheduler: Scheduler, undo: ExitStack) -> None:
        """Follow the tokens from now on; ``undo`` ends this."""
        if not self._secret:
            return
        self.manager = DelegationTokenManager(
            ZkDelegationTokenStore(zookeeper),
            self._secret,
            filled(DelegationTokenSettings, self._settings),
            now_ms=lambda: time.time_ns() // 1_000_000,
            random_bytes=secrets.token_bytes,
            lock=threading.Lock(),
        )
        self._listener = Following(f"delegation-tokens-{self._broker_id}", self.manager)
        undo.callback(self._listener.close)
        undo.callback(RepeatingTimer(scheduler, _LOOK_MS, self._look).cancel)

    def scram(
        self, mechanism: ScramMechanism, username: str, by_token: bool
    ) -> ScramCredential | None:
        """See ``CredentialProvider``."""
        return None if self.manager is None else self.manager.scram(mechanism, username, by_token)

    def load(self) -> None:
        """Read all tokens, before clients are served. Raises ``RegentError``."""
        if self.manager is not None:
            self.manager.load()

    def on_session(self) -> None:
        """Read all tokens again: a session has begun, and changes may have been missed."""
        if self.manager is not None:
            self.manager.expect_gaps()
            self._look()

    def on_watch(self, path: str) -> None:
        """Read the tokens that changed, if this watch is about them."""
        if path == DelegationTokenChangeNotificationZNode.PATH:
            self._look()

    def _look(self) -> None:
        if self._listener is not None:
            self._listener.look()


def _secret(file: str) -> bytes:
    if not file:
        return b""
    secret = read_private(Path(file), f"the secret of {_SETTING}").strip()
    if len(secret) < _LEAST_BYTES:
        raise RegentError(
            f"{file}, with the secret of {_SETTING}, must have at least {_LEAST_BYTES} characters:"
            f" make one with `(umask 077; openssl rand -base64 32 > {file})`"
        )
    return secret
