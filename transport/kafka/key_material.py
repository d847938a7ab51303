"""Reads private keys and certificates, and refuses what could not serve.

Each error is one line that names the setting, the file and the remedy. No message has a part of a
key or a password.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from regent.config.private_files import read_private
from regent.config.tables.tls import TlsConfig
from regent.core.errors import RegentError

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_JKS: Final = b"\xfe\xed\xfe\xed"
_DAY_S: Final = 86_400


class TlsError(RegentError):
    """Settings, keys or certificates cannot serve; the message names the setting."""


class KeyMaterial(NamedTuple):
    """A private key with its certificates, the one of the key first.

    The key is PEM, encrypted with ``password``, which nobody else knows: so it can go through a
    file, the only way into OpenSSL.
    """

    key: bytes
    password: str
    certificates: tuple[x509.Certificate, ...]

    @property
    def chain(self) -> str:
        """The certificates as PEM."""
        return _pem(self.certificates)

    @property
    def subject(self) -> bytes:
        """The name of whom the certificate is for."""
        return self.certificates[0].subject.public_bytes()

    @property
    def alternative_names(self) -> Collection[x509.GeneralName]:
        """The names and addresses that the certificate is for."""
        extensions = self.certificates[0].extensions
        try:
            names = extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return ()
        return set(names.value)

    def days_left(self) -> float:
        """Return in how many days the first of the certificates expires."""
        end = min(certificate.not_valid_after_utc for certificate in self.certificates)
        return (end - _now()).total_seconds() / _DAY_S


def files_of(config: TlsConfig) -> list[Path]:
    """Return the files that a table names."""
    names = (config.ssl_keystore_location, config.ssl_truststore_location)
    return [Path(name) for name in names if name]


def read_keys(config: TlsConfig) -> KeyMaterial | None:
    """Return the key and its certificates; None if the table has none. Raises ``TlsError``."""
    inline = (config.ssl_keystore_key, config.ssl_keystore_certificate_chain)
    location = config.ssl_keystore_location
    if not location and not any(inline):
        return None
    if location and any(inline):
        raise TlsError(
            "ssl_keystore_location and ssl_keystore_key or ssl_keystore_certificate_chain are set:"
            " name a file, or give the texts"
        )
    password = config.ssl_key_password
    if not location:
        if not all(inline):
            raise TlsError(
                "ssl_keystore_key and ssl_keystore_certificate_chain go together: set both"
            )
        key = _key_of("ssl_keystore_key", inline[0].encode(), password)
        chain = _certificates_of("ssl_keystore_certificate_chain", inline[1].encode())
        return _checked("ssl_keystore_certificate_chain", key, chain)
    source = f"ssl_keystore_location: {location}"
    try:
        content = read_private(Path(location), "a private key")
    except RegentError as error:
        raise TlsError(f"ssl_keystore_location: {error}") from None
    if _is_pkcs12(source, config.ssl_keystore_type, content):
        store = _pkcs12(source, content, config.ssl_keystore_password, "ssl_keystore_password")
        if store[0] is None:
            raise TlsError(f"{source} has no private key")
        return _checked(source, store[0], store[1])
    if config.ssl_keystore_password:
        raise TlsError(
            "ssl_keystore_password is for PKCS12: a key in a PEM file has ssl_key_password"
        )
    return _checked(source, _key_of(source, content, password), _certificates_of(source, content))


def read_trusted(config: TlsConfig) -> str:
    """Return the trusted certificates as PEM; empty if the table has none. Raises ``TlsError``."""
    location, inline = config.ssl_truststore_location, config.ssl_truststore_certificates
    if location and inline:
        raise TlsError(
            "ssl_truststore_location and ssl_truststore_certificates are set: name a file, or give"
            " the text"
        )
    if inline:
        return _pem(_certificates_of("ssl_truststore_certificates", inline.encode()))
    if not location:
        return ""
    source = f"ssl_truststore_location: {location}"
    try:
        content = Path(location).read_bytes()
    except OSError as error:
        raise TlsError(f"{source} cannot be read: {error.strerror}") from None
    if _is_pkcs12(source, config.ssl_truststore_type, content):
        password = config.ssl_truststore_password
        return _pem(_pkcs12(source, content, password, "ssl_truststore_password")[1])
    if config.ssl_truststore_password:
        raise TlsError("ssl_truststore_password is for PKCS12: a PEM file has no password")
    return _pem(_certificates_of(source, content))


def _is_pkcs12(source: str, kind: str, content: bytes) -> bool:
    """Whether a file is PKCS12; refuse Java's own form."""
    path = source.partition(": ")[2]
    if kind == "JKS" or content.startswith(_JKS):
        raise TlsError(
            f"{source} is a keystore of Java, which is not supported: convert it with `keytool"
            f" -importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12`,"
            " and set the type to PKCS12"
        )
    return kind == "PKCS12"


def _pkcs12(
    source: str, content: bytes, password: str, password_setting: str
) -> tuple[PrivateKeyTypes | None, list[x509.Certificate]]:
    try:
        store = load_pkcs12(content, password.encode() or None)
    except (ValueError, UnsupportedAlgorithm):
        raise TlsError(
            f"{source} is not a PKCS12 file, or {password_setting} is not its password"
        ) from None
    found = ([store.cert] if store.cert else []) + store.additional_certs
    if not found:
        raise TlsError(f"{source} has no certificate")
    return store.key, [one.certificate for one in found]


def _key_of(source: str, content: bytes, password: str) -> PrivateKeyTypes:
    blocks = [found[0] for found in _BLOCK.finditer(content) if found[1].endswith(b"PRIVATE KEY")]
    if len(blocks) != 1:
        raise TlsError(
            f"{source} has {len(blocks)} private keys in PEM (-----BEGIN PRIVATE KEY-----), and not"
            " one"
        )
    try:
        return load_pem_private_key(blocks[0], password.encode() or None)
    except TypeError:
        given = "is set, and the key is not encrypted" if password else "must have its password"
        what = "" if password else "the key is encrypted: "
        raise TlsError(f"{source}: {what}ssl_key_password {given}") from None
    except (ValueError, UnsupportedAlgorithm):
        hint = ", or ssl_key_password is wrong" if password else ""
        raise TlsError(f"{source} has a private key that cannot be read{hint}") from None


def _certificates_of(source: str, content: bytes) -> list[x509.Certificate]:
    blocks = [found[0] for found in _BLOCK.finditer(content) if found[1] == b"CERTIFICATE"]
    if not blocks:
        raise TlsError(f"{source} has no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    try:
        return [x509.load_pem_x509_certificate(block) for block in blocks]
    except ValueError as error:
        raise TlsError(f"{source} has a certificate that cannot be read: {error}") from None


def _checked(
    source: str, key: PrivateKeyTypes, certificates: Sequence[x509.Certificate]
) -> KeyMaterial:
    """Put a key and its certificates together. Raises ``TlsError`` if no client could use them."""
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    own = certificates[0].public_key().public_bytes(*form)
    if own != key.public_key().public_bytes(*form):
        raise TlsError(
            f"{source}: the first certificate is not that of the private key: put the certificate"
            " of the key first, then those that signed it"
        )
    now = _now()
    for certificate in certificates:
        name = certificate.subject.rfc4514_string()
        if certificate.not_valid_after_utc <= now:
            raise TlsError(
                f"{source}: the certificate of {name} has expired, on"
                f" {certificate.not_valid_after_utc:%Y-%m-%d}: get a new one"
            )
        if certificate.not_valid_before_utc > now:
            raise TlsError(
                f"{source}: the certificate of {name} is not valid before"
                f" {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: is the clock right?"
            )
    password = secrets.token_urlsafe()
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    )
    return KeyMaterial(encrypted, password, tuple(certificates))


def _pem(certificates: Sequence[x509.Certificate]) -> str:
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in certificates)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
