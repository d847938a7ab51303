"""Users who log in, and their passwords in the forms that brokers know."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regent.config.private_files import write_private
from regent.config.tables.sasl import SaslConfig
from regent.core.security.plain import hashed
from regent.core.security.scram import (
    CredentialShape,
    ScramCredential,
    ScramMechanism,
    derive,
)
from regent.transport.kafka.sasl_mechanisms import sasl_listener
from regent.transport.kafka.sasl_server import SaslListener

NAME, PASSWORD = "alice", "alice's secret, = and ü"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SALT_SECRET = b"the same on all brokers"


class Users:
    """The SCRAM credentials of users. Implements ``CredentialProvider``."""

    def __init__(self, *names: str, iterations: int = 4096) -> None:
        self.credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {
            (mechanism, name): derive(mechanism, PASSWORD, b"salt of " + name.encode(), iterations)
            for mechanism in ScramMechanism
            for name in names
        }

    def scram(
        self, mechanism: ScramMechanism, username: str, by_token: bool
    ) -> ScramCredential | None:
        return None if by_token else self.credentials.get((mechanism, username))

    def shapes(self, mechanism: ScramMechanism) -> Sequence[CredentialShape]:
        found = [c.shape for (m, _), c in self.credentials.items() if m is mechanism]
        return sorted((shape for shape in found if shape.iterations >= 4096), key=str)


def users_file(directory: Path, *names: str) -> Path:
    """A file with users of PLAIN."""
    path = directory / "plain.users"
    lines = [f"{name}:{hashed(PASSWORD, b'a salt of theirs').text}\n" for name in names]
    write_private(path, "".join(lines))
    return path


def sasl_for_test(directory: Path, names: Sequence[str] = (NAME,), **settings: Any) -> SaslListener:
    """Logins of users with every mechanism on loopback; tokens need no signature."""
    config = SaslConfig(
        **{
            "sasl_enabled_mechanisms": ",".join(MECHANISMS),
            "sasl_plain_users_file": str(users_file(directory, *names)),
            "sasl_oauthbearer_unsecured": True,
            "connection_failed_authentication_delay_ms": 0,
            **settings,
        }
    )
    return sasl_listener(
        config, Users(*names), salt_secret=SALT_SECRET, has_tls=False, is_loopback=True
    )


def unsecured_token(name: str = NAME, lifetime_s: float = 3600, **claims: object) -> str:
    """A bearer token without a signature."""
    now = time.time()
    content = {"sub": name, "iat": now, "exp": now + lifetime_s, **claims}
    parts = ({"alg": "none"}, {key: value for key, value in content.items() if value is not None})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
    return ".".join(text.rstrip("=") for text in texts) + "."
