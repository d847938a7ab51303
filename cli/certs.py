"""``certs``: certificates of brokers and users for TLS, and the authority that signs them.

For a cluster that has no authority of certificates of its own. Keys are of the curve P-256: a
handshake costs a broker less than with RSA.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import click
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, output_option, print_json, print_table
from regent.core.errors import RegentError

CA_CERTIFICATE: Final = "ca.pem"
_CA_KEY: Final = "ca.key"
_CA_DAYS: Final = 3650
_LONGEST_NAME: Final = 64  # X.509's limit of a common name
_LEEWAY: Final = timedelta(minutes=5)  # other machines' clocks may be behind
_COLUMNS: Final = ("file", "subject", "hosts", "expires")


class CertificateError(RegentError):
    """A certificate that cannot be made or read; the message names the remedy."""


@dataclass(frozen=True)
class _Authority:
    """A certificate that signs others, and its key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey


@click.group(cls=HelpfulGroup)
def certs() -> None:
    """Make certificates for TLS, signed by an authority of this cluster's own.

    Skip this if your organisation gives out certificates. Keep the file ca.key away from brokers:
    who has it can be any broker and any user.
    """


_DIRECTORY = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of the certificates and of the authority; made if there is none.",
)


@certs.command(
    epilog=examples(
        "certs make --dir certs broker-0=192.0.2.10 broker-1=192.0.2.11 alice",
        "certs make --dir certs broker-0=10.0.0.1,broker-0.example --replace",
    )
)
@_DIRECTORY
@click.argument("names", metavar="NAME[=HOST,...]...", nargs=-1, required=True)
@click.option("--days", type=click.IntRange(1, _CA_DAYS), default=397, show_default=True)
@click.option("--replace", is_flag=True, help="Make new ones in the place of old ones.")
def make(directory: Path, names: tuple[str, ...], days: int, replace: bool) -> None:
    """Make a key and a certificate for each NAME: the file NAME.pem has both.

    A broker needs the hosts that others connect to. A user needs none: in Kafka's words, its
    principal is User:CN=NAME. The first call makes the authority: ca.pem is for everybody
    (ssl_truststore_location), ca.key for this command only.
    """
    wanted = [_parsed(name) for name in names]
    paths = [directory / f"{name}.pem" for name, _ in wanted]
    for path in paths:
        if path.exists() and not replace:
            raise CertificateError(f"{path} exists: --replace makes a new one in its place")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(directory)
        for path, (name, hosts) in zip(paths, wanted, strict=True):
            _write(path, _signed(authority, name, hosts, days))
            click.echo(path)
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror}") from None


@certs.command("list", epilog=examples("certs list --dir certs", "certs list --dir certs -o json"))
@_DIRECTORY
@output_option
def list_certs(directory: Path, output: str) -> None:
    """List the certificates of a folder, and when they expire."""
    rows = [row for path in sorted(directory.glob("*.pem")) if (row := _row(path)) is not None]
    if output == Output.JSON:
        print_json(rows)
    else:
        print_table(list(_COLUMNS), [tuple(row.values()) for row in rows])


def _parsed(argument: str) -> tuple[str, list[x509.GeneralName]]:
    name, _, hosts = argument.partition("=")
    if not name or "/" in name or name.startswith(".") or name == Path(CA_CERTIFICATE).stem:
        raise CertificateError(f"{argument!r} has no name for a file before the sign =")
    if len(name.encode()) > _LONGEST_NAME:
        raise CertificateError(
            f"{name!r} is too long: the name in a certificate has at most {_LONGEST_NAME} bytes"
        )
    return name, [_alternative(host) for host in hosts.split(",") if host]


def _authority(directory: Path) -> _Authority:
    """Return the authority of a folder, which is made if there is none."""
    certificate_path, key_path = directory / CA_CERTIFICATE, directory / _CA_KEY
    if not certificate_path.exists() and not key_path.exists():
        key = new_key(SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Regent cluster authority")])
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        made = (
            _new_certificate(name, name, key, _CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, SHA256())
        )
        _write(key_path, _key_bytes(key))
        _write(certificate_path, made.public_bytes(Encoding.PEM))
    try:
        found = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = _checked_key(load_pem_private_key(key_path.read_bytes(), password=None), found)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"{certificate_path} and {key_path} are no authority of this command ({error}): use"
            " another folder"
        ) from None
    return _Authority(found, key)


def _checked_key(key: object, certificate: x509.Certificate) -> EllipticCurvePrivateKey:
    if not isinstance(key, EllipticCurvePrivateKey):
        raise TypeError("the key is not of an elliptic curve")
    if key.public_key() != certificate.public_key():
        raise ValueError("the key is another certificate's")
    return key


def _signed(authority: _Authority, name: str, hosts: list[x509.GeneralName], days: int) -> bytes:
    """Return a new key, its certificate and that of the authority, in PEM."""
    key = new_key(SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _new_certificate(subject, authority.certificate.subject, key, days)
    if hosts:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .sign(authority.key, SHA256())
    )
    chain = certificate.public_bytes(Encoding.PEM) + authority.certificate.public_bytes(
        Encoding.PEM
    )
    return _key_bytes(key) + chain


def _new_certificate(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(days=days))
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CertificateError(f"{host!r} is not the name or address of a host") from None


def _key_bytes(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes) -> None:
    """Write a private file, as a whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        new.unlink()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    new.replace(path)


def _row(path: Path) -> dict[str, str] | None:
    """Describe the first certificate of a file; None: there is none."""
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())[0]
    except (OSError, ValueError):
        return None
    hosts: list[str] = []
    with suppress(x509.ExtensionNotFound):
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [str(name.value) for name in names]
    return {
        "file": path.name,
        "subject": found.subject.rfc4514_string(),
        "hosts": ",".join(hosts),
        "expires": f"{found.not_valid_after_utc:%Y-%m-%d}",
    }
