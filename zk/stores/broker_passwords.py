"""The passwords of listeners in ``/config/brokers/N``, which are stored encoded, as by Kafka."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from regent.core.admin.config_problems import is_password
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.core.setting import Setting
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.encoded_passwords import decode_password, encode_password
from regent.zk.stores.config_store import BROKERS, ZkConfigStore

log = logging.getLogger(__name__)

_REMEDY: Final = "set it again, or give the broker the secret that it was encoded with"


class BrokerPasswords:
    """Encodes with ``secret``, and decodes also what was encoded with ``old_secret``.

    ``settings`` are those of brokers by Kafka's names. Implements
    ``core.admin.config_alterations.PasswordEncoder``. Thread-safe.
    """

    def __init__(self, secret: str, old_secret: str, settings: Mapping[str, Setting]) -> None:
        self._secret = secret
        self._old_secret = old_secret
        self._settings = settings

    @property
    def is_on(self) -> bool:
        """Whether there is a secret."""
        return bool(self._secret)

    def encode(self, password: str) -> str:
        """Return a password as it is stored."""
        return encode_password(self._secret, password)

    def decoded(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return overrides with their passwords, without those that cannot be decoded."""
        found = {name: self._decoded(name, text) for name, text in config.items()}
        return {name: text for name, text in found.items() if text is not None}

    def encoded_again(self, config: Mapping[str, str]) -> Mapping[str, str]:
        """Return the passwords that only the old secret decodes, encoded with the new one."""
        changes: dict[str, str] = {}
        if self._secret and self._old_secret:
            for name, text in config.items():
                if is_password(name, self._settings) and _attempt(self._secret, text) is None:
                    password = _attempt(self._old_secret, text)
                    if password is not None:
                        changes[name] = self.encode(password)
        return changes

    def _decoded(self, name: str, text: str) -> str | None:
        if not is_password(name, self._settings):
            return text
        for secret in filter(None, (self._secret, self._old_secret)):
            password = _attempt(secret, text)
            if password is not None:
                return password
        log.error(
            "the password %s in ZooKeeper cannot be decoded and is ignored: %s", name, _REMEDY
        )
        return None


class FollowedConfigs(ZkConfigStore):
    """The configurations as a broker follows them: with its passwords.

    What the old secret encoded is encoded again when it is read.
    """

    def __init__(
        self, zookeeper: ZooKeeper, broker_id: BrokerId, passwords: BrokerPasswords
    ) -> None:
        super().__init__(zookeeper)
        self._entity = f"{BROKERS}/{broker_id}"
        self._passwords = passwords

    def read_each(
        self, entities: Collection[str]
    ) -> Mapping[str, Mapping[str, str] | BadDataError]:
        """Read the overrides of each entity; empty if none was ever set."""
        configs = super().read_each(entities)
        own = configs.get(self._entity)
        if not own or isinstance(own, BadDataError):
            return configs
        if self._passwords.encoded_again(own):
            self.change_config(self._entity, self._passwords.encoded_again)
        return {**configs, self._entity: self._passwords.decoded(own)}


def _attempt(secret: str, text: str) -> str | None:
    try:
        return decode_password(secret, text)
    except BadDataError:
        return None
