"""TLS of listeners: contexts, handshakes, and the users that certificates name.

Sockets do not block here: who calls waits. Mirrors ``org.apache.kafka.common.security.ssl``'s
``DefaultSslEngineFactory`` and ``SslFactory``.
"""

from __future__ import annotations

import logging
import socket
import ssl
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.serialization import Encoding

from regent.config.tables.tls import TlsConfig
from regent.core.security.distinguished_name import BadCertificateError, subject_of
from regent.core.security.session import ANONYMOUS, USER_TYPE, KafkaPrincipal
from regent.core.security.ssl_principal_mapper import (
    BadRuleError,
    NoMatchingRuleError,
    SslPrincipalMapper,
)
from regent.transport.kafka.key_material import (
    KeyMaterial,
    TlsError,
    files_of,
    read_keys,
    read_trusted,
)
from regent.transport.kafka.tls_stream import close_refused, complete_handshake, reason_of

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 10.0
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsHandshakeError(Exception):
    """A client is not let in; the message says why."""


class _Loaded(NamedTuple):
    """What the files had when they were read last."""

    context: ssl.SSLContext
    keys: KeyMaterial


class ServerTls:
    """The keys of a listener, which change when its files do. Thread-safe.

    Handshakes that have begun, and connections, keep the keys that they began with.
    """

    def __init__(self, config: TlsConfig, *, is_of_brokers: bool = False) -> None:
        """Read the files. Raises ``TlsError``.

        ``is_of_brokers``: brokers with the same settings connect to this listener.
        """
        self._config = config
        self._is_of_brokers = is_of_brokers
        self._users = _mapper(config)
        self._files = files_of(config)
        self._seen: list[object] | None = self._state_of_files()
        self._loaded = self._load(config)
        self._reloading = threading.Lock()
        self.reload_failures = 0
        """How often changed files were not taken, since the start."""

    @classmethod
    def of(cls, config: TlsConfig, *, is_of_brokers: bool = False) -> ServerTls:
        """Return the keys that a table names. Raises ``TlsError``."""
        return cls(config, is_of_brokers=is_of_brokers)

    def days_until_expiry(self) -> float:
        """Return in how many days the first of the certificates expires."""
        return self._loaded.keys.days_left()

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """Return what takes the place of an accepted socket; its handshake has not begun."""
        return self._loaded.context.wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False
        )

    @staticmethod
    def reason_of(error: BaseException) -> str:
        """Return why a handshake failed, in a few words."""
        return reason_of(error)

    def principal_of(self, sock: ssl.SSLSocket) -> KafkaPrincipal:
        """Return the user that the certificate of a client names; ANONYMOUS if it has none.

        Raises ``TlsHandshakeError`` for a certificate that names nobody.
        """
        certificate = sock.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            return KafkaPrincipal(USER_TYPE, self._users.name_of(subject_of(certificate)))
        except (NoMatchingRuleError, BadCertificateError) as error:
            raise TlsHandshakeError(str(error)) from None

    def handshake(
        self, sock: socket.socket, timeout_s: float = HANDSHAKE_TIMEOUT_S
    ) -> tuple[ssl.SSLSocket, KafkaPrincipal]:
        """Wait for the whole handshake with a client; return the socket, and the user.

        The socket blocks for ``timeout_s`` at most. Raises ``TlsHandshakeError``, and closes it.
        """
        wrapped = self.wrap(sock)
        try:
            complete_handshake(wrapped, time.monotonic() + timeout_s)
            principal = self.principal_of(wrapped)
        except (OSError, TlsHandshakeError) as error:
            close_refused(wrapped)
            raise TlsHandshakeError(reason_of(error)) from None
        wrapped.settimeout(timeout_s)
        return wrapped, principal

    def check(self, config: TlsConfig) -> None:
        """Raise ``TlsError`` if this listener could not take the keys that a table names."""
        self._check_same(self._load(config).keys)

    def reconfigure(self, config: TlsConfig) -> None:
        """Take the keys that another table names, as ``reload_if_changed`` does.

        If they cannot serve, this is tried again when their files change.
        """
        with self._reloading:
            if config != self._config:
                self._config, self._files, self._seen = config, files_of(config), None
        self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """Read the files again if one has changed; return whether new keys are in use.

        Files that cannot serve are logged and counted, and the keys stay as they are.
        """
        with self._reloading:
            state = self._state_of_files()
            if state == self._seen:
                return False
            try:
                loaded = self._load(self._config)
                self._check_same(loaded.keys)
            except (TlsError, OSError) as error:
                # Without a descriptor or space the same files may serve the next time.
                self._seen = self._seen if isinstance(error, OSError) else state
                self.reload_failures += 1
                logger.error("The keys of TLS stay as they are: %s", error)
                return False
            self._seen, self._loaded = state, loaded
            logger.info("New keys of TLS are in use, for %.0f days", loaded.keys.days_left())
            return True

    def _load(self, config: TlsConfig) -> _Loaded:
        loaded = _loaded(config)
        if self._is_of_brokers:
            _check_among_brokers(loaded.context, config)
        return loaded

    def _check_same(self, keys: KeyMaterial) -> None:
        """Check Kafka's rules: clients know this listener by its names."""
        old, config = self._loaded.keys, self._config
        if keys.subject != old.subject and not config.ssl_allow_dn_changes:
            raise TlsError(
                "the certificate has another subject: restart the broker, or set"
                " ssl_allow_dn_changes"
            )
        missing = set(old.alternative_names) - set(keys.alternative_names)
        if missing and not config.ssl_allow_san_changes:
            raise TlsError(
                "the certificate lacks names that the old one has: restart the broker, or set"
                " ssl_allow_san_changes"
            )

    def _state_of_files(self) -> list[object]:
        return [state_of(path) for path in self._files]


def base_context(config: TlsConfig, purpose: int) -> ssl.SSLContext:
    """Return a context with the versions and ciphers of a table. Raises ``TlsError``."""
    context = ssl.SSLContext(purpose)
    versions = [
        _VERSIONS[name]
        for name in map(str.strip, config.ssl_enabled_protocols.split(","))
        if name in _VERSIONS
    ]
    if not versions:
        raise TlsError("ssl_enabled_protocols is empty: name TLSv1.2, TLSv1.3, or both")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # As in Java, a certificate that is trusted need not be one that signed itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    names = [name for name in map(str.strip, config.ssl_cipher_suites.split(",")) if name]
    if names:
        known = {found["name"] for found in context.get_ciphers() if found["protocol"] != "TLSv1.3"}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise TlsError(
                f"ssl_cipher_suites: {unknown[0]} is not a cipher of TLS 1.2 that can be chosen:"
                " use OpenSSL's names (ECDHE-RSA-AES256-GCM-SHA384), and leave out those of TLS 1.3"
            )
        context.set_ciphers(":".join(names))
    return context


def use_keys(context: ssl.SSLContext, keys: KeyMaterial) -> None:
    """Let a context prove who it is. Raises ``TlsError``."""
    # OpenSSL reads files only. The key in this one is encrypted.
    with tempfile.NamedTemporaryFile() as file:
        file.write(keys.key + keys.chain.encode())
        file.flush()
        try:
            context.load_cert_chain(file.name, password=keys.password)
        except ssl.SSLError as error:
            raise TlsError(f"OpenSSL does not take the key or its certificates: {error}") from None


def trust(context: ssl.SSLContext, certificates: str) -> None:
    """Let a context believe what these certificates have signed. Raises ``TlsError``."""
    try:
        context.load_verify_locations(cadata=certificates)
    except ssl.SSLError as error:
        raise TlsError(f"OpenSSL does not take the trusted certificates: {error}") from None


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return what a client has with the settings of a table. Raises ``TlsError``."""
    context = base_context(config, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(config.ssl_endpoint_identification_algorithm)
    trusted = read_trusted(config)
    if trusted:
        trust(context, trusted)
    else:
        context.load_default_certs()
    keys = read_keys(config)
    if keys is not None:
        use_keys(context, keys)
    return context


def user_of_broker(config: TlsConfig) -> str:
    """Return the user that the certificate of a listener names; empty: it names nobody.

    Raises ``RegentError``.
    """
    keys = read_keys(config)
    if keys is None:
        return ""
    try:
        return _mapper(config).name_of(subject_of(keys.certificates[0].public_bytes(Encoding.DER)))
    except (NoMatchingRuleError, BadCertificateError) as error:
        raise TlsError(str(error)) from None


def _mapper(config: TlsConfig) -> SslPrincipalMapper:
    try:
        return SslPrincipalMapper(config.ssl_principal_mapping_rules)
    except BadRuleError as error:
        raise TlsError(f"ssl_principal_mapping_rules: {error}") from None


def _loaded(config: TlsConfig) -> _Loaded:
    """Read the files and try them. Raises ``TlsError``."""
    keys = read_keys(config)
    if keys is None:
        raise TlsError(
            "a listener with TLS needs a key: set tls.ssl_keystore_location to a PEM file with the"
            " private key and its certificates"
        )
    context = base_context(config, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    use_keys(context, keys)
    _try(context)
    trusted = read_trusted(config)
    if config.ssl_client_auth != "none":
        if not trusted:
            raise TlsError(
                f"ssl_client_auth is {config.ssl_client_auth}, and nobody is trusted to sign the"
                " certificates of clients: set tls.ssl_truststore_location"
            )
        # Who resumes a session is not verified again: nobody may.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    if trusted:
        trust(context, trusted)
    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    return _Loaded(context, keys)


def _try(context: ssl.SSLContext) -> None:
    """Do a handshake in memory: a key may not go with the ciphers. Raises ``TlsError``."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        _shake_hands(context, anybody)
    except ssl.SSLError as error:
        raise TlsError(
            f"no client could connect: {reason_of(error)}: do ssl_cipher_suites and"
            " ssl_enabled_protocols go with the key?"
        ) from None


def _check_among_brokers(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Raise ``TlsError`` if a broker with these settings could not connect to this listener."""
    broker = client_context(config)
    broker.check_hostname = False  # other brokers have other names
    try:
        _shake_hands(context, broker)
    except ssl.SSLError as error:
        raise TlsError(
            f"brokers with these settings could not connect to each other: {reason_of(error)}:"
            " ssl_truststore_location must have the certificate that signed the one in"
            " ssl_keystore_location, and that one must be for servers and for clients"
        ) from None


def _shake_hands(server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
    """Do a handshake in memory. Raises ``ssl.SSLError``."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for end in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()


def state_of(path: Path) -> object:
    """Return what changes when a file is replaced, written or becomes readable."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
