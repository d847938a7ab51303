"""Who this process is to ZooKeeper, and who may use the znodes that it creates.

A secret file has one line, ``user:password``. As with Kafka's JAAS file a login is one for the
whole process, here for each ZooKeeper. Without a login everybody may change every znode. With one,
the ACLs are Kafka's with ``zookeeper.set.acl``.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from regent.config.private_files import read_private, write_private
from regent.core.errors import RegentError

SECRET_FILE: Final = "zookeeper.secret"
SECRET_VARIABLE: Final = "REGENT_ZOOKEEPER_SECRET"
"""The environment variable with the path of a secret file, for commands."""

_USER: Final = "regent"
_PASSWORD_BYTES: Final = 32


class Acl(Enum):
    """Who may do what with a znode."""

    READABLE = "its creator everything, all others read"
    SENSITIVE = "its creator everything, all others nothing"
    OPEN = "everybody everything"


_SENSITIVE: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
_OPEN: Final = "/consumers"  # old consumers create znodes in it


def acl_of(path: str) -> Acl:
    """Return who may use the znode of a path, which does not begin with a chroot.

    Mirrors ``kafka.zk.ZkData.defaultAcls``.
    """
    if path.startswith(_SENSITIVE):
        return Acl.SENSITIVE
    return Acl.OPEN if path == _OPEN else Acl.READABLE


class Login(NamedTuple):
    """A user of ZooKeeper's scheme ``digest``; as ``sasl`` (DIGEST-MD5) Kafka's tools have it."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.user!r}, ...)"

    @property
    def auth_data(self) -> tuple[str, str]:
        """What kazoo sends at the beginning of each connection."""
        return "digest", f"{self.user}:{self.password}"

    @property
    def digest(self) -> str:
        """The id of the user in ACLs, which does not show the password."""
        digest = hashlib.sha1(f"{self.user}:{self.password}".encode()).digest()
        return f"{self.user}:{base64.b64encode(digest).decode()}"

    def jaas(self, section: str) -> str:
        """Return a section of a JAAS file: ``Client`` for Kafka's tools, ``Server``."""
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        if section == "Server":
            options = f'user_{self.user}="{self.password}"'
        else:
            options = f'username="{self.user}" password="{self.password}"'
        return f"{section} {{\n  {module} required {options};\n}};\n"


_logins: dict[str, Login] = {}


def log_in(hosts: str, login: Login) -> None:
    """Use a login for all further sessions of this process with a connect string."""
    _logins[hosts] = login


def log_in_of(data_dir: Path, hosts: str) -> None:
    """Log in with the secret of a local cluster, if the cluster has one; see ``read_login``."""
    if (secret_file := data_dir / SECRET_FILE).exists():
        log_in(hosts, read_login(secret_file))


def login_at(hosts: str) -> Login | None:
    """Return the login of this process for a connect string; None: it has none."""
    return _logins.get(hosts)


def read_login(secret_file: Path) -> Login:
    """Read a secret file; raises ``RegentError`` if it is missing, bad, or open to other users."""
    content, text = read_private(secret_file, "ZooKeeper's login"), ""
    with suppress(UnicodeDecodeError):
        text = content.decode()
    user, colon, password = text.strip().partition(":")
    if not (user and colon and password) or '"' in text or "\n" in text.strip():
        raise RegentError(f"ZooKeeper's secret {secret_file} must have one line, user:password")
    return Login(user, password)


def make_login(secret_file: Path) -> Login:
    """Return the login in a secret file, which is made if it does not exist."""
    text = f"{_USER}:{secrets.token_urlsafe(_PASSWORD_BYTES)}\n"
    if not secret_file.exists():
        partial = secret_file.with_name(f"{secret_file.name}.{os.getpid()}")
        write_private(partial, text)
        partial.rename(secret_file)
    return read_login(secret_file)
