"""The keys of a listener: what is taken, what is refused at the start, and what is taken later."""

from __future__ import annotations

import errno
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_certificates

from regent.config.tables.tls import TlsConfig
from regent.core.security.session import ANONYMOUS, USER_TYPE, KafkaPrincipal
from regent.testing.waits import scaled
from regent.transport.kafka.key_material import TlsError, read_keys
from regent.transport.kafka.tls import ServerTls, TlsHandshakeError
from tests.support.certificates import Authority

WAIT_S = scaled(10.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def shake(tls: ServerTls, client: Callable[[socket.socket], object]) -> KafkaPrincipal:
    """Return who a client is, which uses the other end of a socket on a thread."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT_S)

    def run() -> None:
        with theirs, suppress(OSError):
            client(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        sock, principal = tls.handshake(ours, WAIT_S)
        sock.close()
        return principal
    finally:
        thread.join(WAIT_S)


def client_of(context: ssl.SSLContext) -> Callable[[socket.socket], object]:
    def talk(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_hostname="localhost") as wrapped:
            wrapped.recv(1)

    return talk


# --- who a client is ---


def test_a_certificate_names_its_user(authority: Authority):
    tls = ServerTls.of(authority.config(ssl_client_auth="required"))
    who = shake(tls, client_of(authority.client_context("alice")))
    assert who == KafkaPrincipal(USER_TYPE, "CN=alice,OU=Tests,O=Regent")


def test_rules_make_a_name_of_the_subject(authority: Authority):
    rules = "RULE:^CN=([^,]+),.*$/$1/U"
    config = authority.config(ssl_client_auth="required", ssl_principal_mapping_rules=rules)
    assert shake(ServerTls(config), client_of(authority.client_context("alice"))).name == "ALICE"


def test_a_client_without_a_certificate_is_anonymous_where_none_is_required(authority: Authority):
    for client_auth in ("none", "requested"):
        tls = ServerTls(authority.config(ssl_client_auth=client_auth))
        assert shake(tls, client_of(authority.client_context())) == ANONYMOUS


def test_a_certificate_that_is_not_asked_for_does_not_count(authority: Authority):
    tls = ServerTls(authority.config(ssl_client_auth="none"))
    assert shake(tls, client_of(authority.client_context("alice"))) == ANONYMOUS


@pytest.mark.parametrize("client_auth", ["required", "requested"])
@pytest.mark.parametrize("fault", ["foreign", "expired", "unmapped"])
def test_a_bad_certificate_is_refused_and_never_anonymous(
    authority: Authority, tmp_path: Path, client_auth: str, fault: str
):
    rules = "RULE:^CN=bob,.*$/bob/" if fault == "unmapped" else "DEFAULT"
    config = authority.config(ssl_client_auth=client_auth, ssl_principal_mapping_rules=rules)
    other = Authority(tmp_path, "other") if fault == "foreign" else authority
    context = authority.client_context()
    context.load_cert_chain(other.keystore("alice", days=-1 if fault == "expired" else 90))
    expected = {
        "foreign": "the certificate is not accepted",
        "expired": "certificate has expired",
        "unmapped": "no rule of ssl_principal_mapping_rules",
    }
    with pytest.raises(TlsHandshakeError, match=expected[fault]):
        shake(ServerTls(config), client_of(context))


def test_a_client_without_the_required_certificate_is_refused(authority: Authority):
    tls = ServerTls(authority.config(ssl_client_auth="required"))
    with pytest.raises(TlsHandshakeError, match="the client has no certificate"):
        shake(tls, client_of(authority.client_context()))


def test_old_versions_of_tls_are_refused(authority: Authority):
    context = authority.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(TlsHandshakeError, match="an old version of TLS"):
        shake(ServerTls(authority.config()), client_of(context))


@pytest.mark.parametrize("first", [b"\0\0\0\x14\0\x12\0\0", b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
def test_clients_that_do_not_speak_tls_are_refused(authority: Authority, first: bytes):
    with pytest.raises(TlsHandshakeError, match="the client does not speak TLS"):
        shake(ServerTls(authority.config()), lambda sock: sock.send(first) and sock.recv(1))


def test_a_handshake_that_never_ends_is_given_up(authority: Authority):
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(TlsHandshakeError, match="took too long"):
        ServerTls(authority.config()).handshake(ours, 0.05)


def test_versions_and_ciphers_are_those_of_the_settings(authority: Authority):
    config = authority.config(
        ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites="ECDHE-ECDSA-AES256-GCM-SHA384"
    )
    seen = []

    def talk(sock: socket.socket) -> None:
        with authority.client_context().wrap_socket(sock, server_hostname="localhost") as wrapped:
            seen.append((wrapped.version(), (wrapped.cipher() or ("",))[0]))

    shake(ServerTls(config), talk)
    assert seen == [("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")]


# --- forms of keys ---


def parts(keystore: Path) -> tuple[str, str]:
    """The key and the certificates of a PEM file."""
    text = keystore.read_text()
    split = text.index("-----BEGIN CERTIFICATE")
    return text[:split], text[split:]


def test_a_key_may_be_given_as_text(authority: Authority):
    key, chain = parts(authority.keystore("broker"))
    config = TlsConfig(
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=chain,
        ssl_truststore_certificates=authority.trusted.read_text(),
        ssl_client_auth="required",
    )
    who = shake(ServerTls(config), client_of(authority.client_context("alice")))
    assert who.name.startswith("CN=alice")
    assert "BEGIN" not in repr(config)


def test_a_key_may_be_encrypted(authority: Authority):
    path = authority.keystore("broker")
    key, chain = parts(path)
    loaded = load_pem_private_key(key.encode(), None)
    form = (Encoding.PEM, PrivateFormat.PKCS8)
    encrypted = loaded.private_bytes(*form, BestAvailableEncryption(b"secret")).decode()
    path.write_text(encrypted + chain)
    config = TlsConfig(ssl_keystore_location=str(path), ssl_key_password="secret")
    assert shake(ServerTls(config), client_of(authority.client_context())) == ANONYMOUS
    for password, problem in (("", "must have its password"), ("wrong", "is wrong")):
        with pytest.raises(TlsError, match=problem):
            ServerTls(replace(config, ssl_key_password=password))


def test_a_key_may_be_in_pkcs12(authority: Authority):
    path = authority.keystore("broker")
    key, chain = parts(path)
    certificates = load_pem_x509_certificates(chain.encode())
    loaded = load_pem_private_key(key.encode(), None)
    assert isinstance(loaded, EllipticCurvePrivateKey)
    encryption = BestAvailableEncryption(b"secret")
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"broker", loaded, certificates[0], certificates[1:], encryption
        )
    )
    trusted = authority.folder / "trusted.p12"
    ca = load_pem_x509_certificate(authority.trusted.read_bytes())
    trusted.write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, [ca], encryption))
    config = TlsConfig(
        ssl_keystore_type="PKCS12",
        ssl_keystore_location=str(path),
        ssl_keystore_password="secret",
        ssl_truststore_type="PKCS12",
        ssl_truststore_location=str(trusted),
        ssl_truststore_password="secret",
        ssl_client_auth="required",
    )
    who = shake(ServerTls(config), client_of(authority.client_context("alice")))
    assert who.name.startswith("CN=alice")
    for name in ("ssl_keystore_password", "ssl_truststore_password"):
        with pytest.raises(TlsError, match=f"{name} is not its password"):
            ServerTls(config_with(config, name, "wrong"))


def config_with(config: TlsConfig, name: str, value: Any) -> TlsConfig:
    return replace(config, **{name: value})


# --- what ends the start ---


def expired(authority: Authority) -> TlsConfig:
    return TlsConfig(ssl_keystore_location=str(authority.keystore("broker", days=-1)))


def readable(authority: Authority) -> TlsConfig:
    path = authority.keystore("broker")
    path.chmod(0o640)
    return TlsConfig(ssl_keystore_location=str(path))


def with_another_key(authority: Authority) -> TlsConfig:
    path = authority.keystore("broker")
    key, _ = parts(authority.keystore("other"))
    path.write_text(key + parts(path)[1])
    return TlsConfig(ssl_keystore_location=str(path))


def written(content: bytes, **settings: Any) -> Callable[[Authority], TlsConfig]:
    def config(authority: Authority) -> TlsConfig:
        path = authority.keystore("broker")
        path.write_bytes(content)
        return TlsConfig(ssl_keystore_location=str(path), **settings)

    return config


def with_two_keys(authority: Authority) -> TlsConfig:
    path = authority.keystore("broker")
    path.write_text(path.read_text() * 2)
    return TlsConfig(ssl_keystore_location=str(path))


def changed(**settings: str) -> Callable[[Authority], TlsConfig]:
    return lambda authority: authority.config(**settings)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (lambda _: TlsConfig(), "set tls.ssl_keystore_location"),
        (changed(ssl_keystore_location="/none.pem"), "/none.pem.* cannot be read: No such file"),
        (readable, "mode 0640.*chmod 600 .*broker.pem"),
        (expired, "the certificate of .*CN=broker.* has expired"),
        (with_another_key, "the first certificate is not that of the private key"),
        (written(b""), "has 0 private keys"),
        (with_two_keys, "has 2 private keys"),
        (written(b"\xfe\xed\xfe\xed", ssl_keystore_type="PKCS12"), "keytool -importkeystore"),
        (written(b"x", ssl_keystore_type="JKS"), "a keystore of Java.*keytool -importkeystore"),
        (written(b"x", ssl_keystore_type="PKCS12"), "is not a PKCS12 file"),
        (changed(ssl_keystore_password="x"), "ssl_keystore_password is for PKCS12"),
        (changed(ssl_key_password="x"), "the key is not encrypted"),
        (changed(ssl_keystore_key="x"), "name a file, or give the texts"),
        (lambda _: TlsConfig(ssl_keystore_key="x"), "go together"),
        (changed(ssl_truststore_certificates="x"), "name a file, or give the text"),
        (changed(ssl_truststore_location="/none.pem"), "/none.pem cannot be read"),
        (changed(ssl_truststore_location="/dev/null"), "/dev/null has no certificate"),
        (
            changed(ssl_client_auth="required", ssl_truststore_location=""),
            "nobody is trusted .* set tls.ssl_truststore_location",
        ),
        (changed(ssl_principal_mapping_rules="x"), "ssl_principal_mapping_rules: 'x' is neither"),
        (changed(ssl_enabled_protocols=""), "ssl_enabled_protocols is empty"),
        (changed(ssl_cipher_suites="TLS_AES_128_GCM_SHA256"), "TLS_AES_128_GCM_SHA256 is not"),
        (changed(ssl_cipher_suites="NULL-SHA256"), "NULL-SHA256 is not"),
        (changed(ssl_cipher_suites="ALL"), "ALL is not"),
        (
            changed(
                ssl_cipher_suites="ECDHE-RSA-AES256-GCM-SHA384", ssl_enabled_protocols="TLSv1.2"
            ),
            "no client could connect",
        ),
    ],
)
def test_what_cannot_serve_ends_the_start_and_is_named(
    authority: Authority, config: Callable[[Authority], TlsConfig], problem: str
):
    with pytest.raises(TlsError, match=problem) as raised:
        ServerTls(config(authority))
    assert "\n" not in str(raised.value)


# --- new keys without a restart ---


def served_name(authority: Authority, tls: ServerTls) -> str:
    """The serial number of the certificate that new clients see."""
    seen = []

    def talk(sock: socket.socket) -> None:
        with authority.client_context().wrap_socket(sock, server_hostname="localhost") as wrapped:
            seen.append(str((wrapped.getpeercert() or {})["serialNumber"]))

    shake(tls, talk)
    return seen[0]


def test_changed_files_are_taken_and_others_are_not_read_again(authority: Authority):
    tls = ServerTls(authority.config())
    first = served_name(authority, tls)
    assert not tls.reload_if_changed()
    authority.keystore("broker")
    assert tls.reload_if_changed()
    assert served_name(authority, tls) != first
    assert not tls.reload_if_changed()
    assert 88 < tls.days_until_expiry() < 91


def test_an_authority_that_is_taken_away_is_trusted_no_more(authority: Authority, tmp_path: Path):
    tls = ServerTls(authority.config(ssl_client_auth="required"))
    context = authority.client_context("alice")
    assert shake(tls, client_of(context)).name.startswith("CN=alice")
    authority.trusted.write_bytes(Authority(tmp_path, "other").trusted.read_bytes())
    assert tls.reload_if_changed()
    with pytest.raises(TlsHandshakeError, match="the certificate is not accepted"):
        shake(tls, client_of(context))


def empty(authority: Authority) -> None:
    (authority.folder / "broker.pem").write_text("")


def removed(authority: Authority) -> None:
    (authority.folder / "broker.pem").unlink()


def opened(authority: Authority) -> None:
    (authority.folder / "broker.pem").chmod(0o644)


def of_another_subject(authority: Authority) -> None:
    shutil.copyfile(authority.keystore("else"), authority.folder / "broker.pem")


def with_fewer_names(authority: Authority) -> None:
    authority.keystore("broker", "localhost")


def expired_now(authority: Authority) -> None:
    authority.keystore("broker", days=-1)


@pytest.mark.parametrize(
    "change", [empty, removed, opened, of_another_subject, with_fewer_names, expired_now]
)
def test_files_that_cannot_serve_leave_the_old_keys_in_use(
    authority: Authority, change: Callable[[Authority], None]
):
    tls = ServerTls(authority.config())
    first = served_name(authority, tls)
    change(authority)
    assert not tls.reload_if_changed()
    assert tls.reload_failures == 1
    assert not tls.reload_if_changed()
    assert tls.reload_failures == 1
    assert served_name(authority, tls) == first

    authority.keystore("broker").chmod(0o600)
    assert tls.reload_if_changed()


def test_new_keys_that_could_not_be_loaded_for_want_of_space_are_loaded_the_next_time(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
):
    tls = ServerTls(authority.config())
    first = served_name(authority, tls)
    authority.keystore("broker").chmod(0o600)

    def no_space(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "NamedTemporaryFile", no_space)
        assert not tls.reload_if_changed()
    assert served_name(authority, tls) == first
    assert tls.reload_if_changed()


def test_brokers_do_not_take_keys_with_which_they_could_not_connect(
    authority: Authority, tmp_path: Path
):
    tls = ServerTls(authority.config(), is_of_brokers=True)
    first = served_name(authority, tls)
    others = tmp_path / "others"
    others.mkdir()
    stranger = Authority(others)
    trusted, keys = authority.trusted.read_bytes(), authority.keystore("broker")
    keys.write_bytes(stranger.keystore("broker").read_bytes())
    assert not tls.reload_if_changed()
    assert served_name(authority, tls) == first
    authority.trusted.write_bytes(trusted + stranger.trusted.read_bytes())
    assert tls.reload_if_changed(), "the other authority is trusted now"


def test_another_subject_and_fewer_names_can_be_allowed(authority: Authority):
    tls = ServerTls(authority.config(ssl_allow_dn_changes=True, ssl_allow_san_changes=True))
    path = authority.folder / "broker.pem"
    shutil.copyfile(authority.keystore("else", "localhost"), path)
    assert tls.reload_if_changed()


def test_a_key_is_nowhere_on_disk_in_clear_text(authority: Authority):

    keys = read_keys(authority.config())
    assert keys is not None
    assert b"ENCRYPTED PRIVATE KEY" in keys.key
    with pytest.raises(TypeError):
        load_pem_private_key(keys.key, None)
