"""The SCRAM credentials of users, as a broker follows them in ``/config/users``.

All are read before the first login is decided. A login that comes earlier waits: a broker that knew
no users yet would refuse its own (KAFKA-6772). A changed credential counts for the next login; live
connections stay (``connections_max_reauth_ms`` ends them).
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from regent.config.private_files import read_private
from regent.config.settings import Settings
from regent.core.admin.config_handlers import Configs
from regent.core.errors import BadDataError
from regent.core.quota.quota_entities import QuotaEntity
from regent.core.security.sasl_login import SaslAuthenticationError, shown
from regent.core.security.scram import (
    MIN_ITERATIONS,
    CredentialShape,
    ScramCredential,
    ScramCredentials,
    ScramMechanism,
    parsed_credential,
)

logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 5.0


class UserCredentials:
    """Implements ``CredentialProvider``; ``tokens`` has those of delegation tokens."""

    def __init__(self, tokens: ScramCredentials | None = None) -> None:
        self._tokens = tokens
        self._configs: Mapping[str, Mapping[str, str]] = {}
        self._shapes: dict[ScramMechanism, Sequence[CredentialShape]] = {}  # of these
        self._are_read = threading.Event()

    def replace(self, then: Callable[[Configs], object], configs: Configs) -> None:
        """Use the settings of users, by their paths below ``/config``, then pass all to ``then``.

        Settings of clients and addresses may be among them.
        """
        self._configs, self._shapes = configs, {}
        self._are_read.set()
        then(configs)

    def scram(
        self, mechanism: ScramMechanism, username: str, by_token: bool
    ) -> ScramCredential | None:
        """See ``CredentialProvider``. Raises ``SaslAuthenticationError`` before all are read."""
        if by_token:
            tokens = self._tokens
            return None if tokens is None else tokens.scram(mechanism, username, by_token)
        if not self._are_read.wait(_READ_TIMEOUT_S):
            raise SaslAuthenticationError(
                "Authentication failed: the broker has not read its users yet: try again"
            )
        path = QuotaEntity(user=username).path
        text = self._configs.get(path, {}).get(mechanism.value) if username else None
        try:
            return None if text is None else parsed_credential(mechanism, text)
        except BadDataError as error:
            logger.warning("user %s cannot log in: %s: set it again", shown(username), error)
            return None

    def shapes(self, mechanism: ScramMechanism) -> Sequence[CredentialShape]:
        """See ``CredentialProvider``."""
        cache = self._shapes  # before the settings: it may belong to older ones then, and is lost
        if mechanism not in cache:
            found = []
            for config in self._configs.values():
                with suppress(KeyError, BadDataError):
                    found.append(parsed_credential(mechanism, config[mechanism.value]).shape)
            usable = (shape for shape in found if shape.iterations >= MIN_ITERATIONS)
            cache[mechanism] = sorted(usable, key=str)
        return cache[mechanism]


def salt_secret(settings: Settings) -> bytes:
    """Return what makes up the credentials of users that do not exist: see ``ScramServer``.

    Brokers have it in common if they share the login for ZooKeeper, or their password.
    """
    files = (settings.zookeeper.secret_file, settings.sasl.sasl_inter_broker_password_file)
    for path in filter(None, files):
        content = read_private(Path(path), "a secret of the brokers")
        return hashlib.sha256(b"salts of unknown users:" + content).digest()
    return secrets.token_bytes(hashlib.sha256().digest_size)
