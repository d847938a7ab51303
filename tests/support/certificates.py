"""An authority that signs certificates of brokers and users, and their files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from regent.config.private_files import write_private
from regent.config.tables.tls import TlsConfig

HOSTS = ("localhost", "127.0.0.1")


class Authority:
    """Writes files below ``folder``. Users have certificates of ``CN=name,O=Regent``."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder = folder
        self.ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.trusted = folder / f"{name}.pem"
        self.trusted.write_bytes(self.ca.cert_pem.bytes())

    def keystore(self, name: str, *hosts: str, days: int = 90) -> Path:
        """Write a private file with a new key and its certificates, valid for ``days``."""
        path = self.folder / f"{name}.pem"
        write_private(path, self.issued(name, *hosts, days=days))
        return path

    def issued(self, name: str, *hosts: str, days: int = 90) -> str:
        """Return a new key and its certificates, in PEM; those of -1 ``days`` have expired."""
        end = datetime.now(UTC) + timedelta(days=days)
        issued = self.ca.issue_cert(
            *(hosts or HOSTS),
            common_name=name,
            organization_name="Regent",
            organization_unit_name="Tests",
            not_before=datetime.now(UTC) - timedelta(days=100),
            not_after=end,
            key_type=trustme.KeyType.ECDSA,
        )
        return issued.private_key_and_cert_chain_pem.bytes().decode()

    def config(self, name: str = "broker", **settings: Any) -> TlsConfig:
        """Return settings with a new keystore, which trust this authority."""
        return TlsConfig(
            **{
                "ssl_keystore_location": str(self.keystore(name)),
                "ssl_truststore_location": str(self.trusted),
                **settings,
            }
        )

    def client_context(self, user: str | None = None) -> ssl.SSLContext:
        """Return what a client has that trusts this authority, and may have a certificate."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if user is not None:
            context.load_cert_chain(self.keystore(user))
        return context
