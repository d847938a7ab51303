"""SCRAM (RFC 5802, RFC 7677): credentials of users, and the server's part of a login.

The client proves that it has the password, and the server that it has the credential; neither is
sent. The names, limits and texts are Kafka's: ``ScramMessages``, ``ScramSaslServer``,
``ScramFormatter`` and ``ScramCredentialUtils``. Other than Kafka's server, this one signs the bytes
that were received, compares the whole nonce, and goes on with an unknown user: the refusal comes
where that of a wrong password does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import string
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from regent.core.errors import BadDataError
from regent.core.security.sasl_login import (
    SASL_NAME,
    LoggedIn,
    SaslAuthenticationError,
    invalid_credentials,
    sasl_name,
    shown,
    stand_in,
    strict_base64,
    user,
)
from regent.core.security.session import KafkaPrincipal

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
RANDOM_BITS: Final = 130
"""The random bits of a nonce and of a salt."""

_DIGITS: Final = string.digits + string.ascii_lowercase
_LETTERS: Final = _DIGITS.encode()
_SALT_LENGTHS: Final = (25, 26)  # of ``RANDOM_BITS`` in these letters
_PRINTABLE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSION: Final = rb",[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+"
_BASE64: Final = rb"[A-Za-z0-9+/]+={0,2}"
_CLIENT_FIRST: Final = re.compile(
    rb"(?P<gs2>n,(?:a=(?P<authzid>%s))?,)"
    rb"(?P<bare>(?:m=[\x01-\x2b\x2d-\x7f]+,)?n=(?P<name>%s),r=(?P<nonce>%s)(?P<extensions>(?:%s)*))"
    % (SASL_NAME, SASL_NAME, _PRINTABLE, _EXTENSION)
)
_CLIENT_FINAL: Final = re.compile(
    rb"(?P<without_proof>c=(?P<binding>%s),r=(?P<nonce>%s)(?:%s)*),p=(?P<proof>%s)"
    % (_BASE64, _PRINTABLE, _EXTENSION, _BASE64)
)
_SERVER_FIRST: Final = re.compile(
    rb"r=(?P<nonce>%s),s=(?P<salt>%s),i=(?P<iterations>[1-9][0-9]{0,8})(?:%s)*"
    % (_PRINTABLE, _BASE64, _EXTENSION)
)
_MAX_OF_SERVER: Final = 1_000_000  # it could keep the client busy otherwise
_TOKEN_LOGIN: Final = "tokenauth"
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")
_ITERATIONS: Final = re.compile("[0-9]{1,9}")


class ScramMechanism(Enum):
    """The mechanisms, by their names."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        """The number in Kafka's messages."""
        return 1 if self is ScramMechanism.SCRAM_SHA_256 else 2

    @property
    def hash_name(self) -> str:
        """The name of the hash function."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The length of a key."""
        return hashlib.new(self.hash_name).digest_size

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return the code of ``data``."""
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """Return the hash of ``data``."""
        return hashlib.new(self.hash_name, data).digest()


class ScramCredential(NamedTuple):
    """What a server knows of a password.

    ``owner`` is whom the credential of a delegation token logs in, None: the user of that name.
    ``expires_at_ms``: when that token ends, by the wall clock.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    owner: KafkaPrincipal | None = None
    expires_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"

    @property
    def shape(self) -> CredentialShape:
        """What strangers see of it."""
        is_printable = len(self.salt) in _SALT_LENGTHS and not self.salt.translate(None, _LETTERS)
        return CredentialShape(self.iterations, None if is_printable else len(self.salt))

    @property
    def text(self) -> str:
        """The value of the setting of a user, as Kafka writes it."""
        salt, stored_key, server_key = (base64.b64encode(data).decode() for data in self[:3])
        return (
            f"salt={salt},stored_key={stored_key},server_key={server_key}"
            f",iterations={self.iterations}"
        )


class CredentialShape(NamedTuple):
    """What a client that does not know the password sees of a credential.

    ``salt_bytes`` is None for a salt as Kafka makes it: ``RANDOM_BITS``, printable.
    """

    iterations: int = MIN_ITERATIONS
    salt_bytes: int | None = None


class ScramCredentials(Protocol):
    """The credentials of users and of delegation tokens; any thread asks."""

    def scram(
        self, mechanism: ScramMechanism, username: str, by_token: bool
    ) -> ScramCredential | None:
        """Return a credential; None: there is none.

        ``by_token``: ``username`` is the id of a delegation token.
        """
        ...


class CredentialProvider(ScramCredentials, Protocol):
    """Knows also what all credentials look like."""

    def shapes(self, mechanism: ScramMechanism) -> Sequence[CredentialShape]:
        """Return the shape of each user's credential with which one can log in, sorted."""
        ...


def derive(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Return the credential of a password; takes milliseconds. As in Kafka without SASLprep."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password."""
    stored_key = mechanism.hash(mechanism.hmac(salted_password, b"Client Key"))
    server_key = mechanism.hmac(salted_password, b"Server Key")
    return ScramCredential(salt, stored_key, server_key, iterations)


def parsed_credential(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Return the credential in a setting of a user. Raises ``BadDataError``, without its values."""
    fields = dict(item.split("=", 1) for item in text.split(",") if "=" in item)
    if fields.keys() != set(_FIELDS) or text.count(",") != len(_FIELDS) - 1:
        raise BadDataError(f"a {mechanism.value} credential must have {', '.join(_FIELDS)}")
    salt, stored_key, server_key = (strict_base64(fields[name].encode()) for name in _FIELDS[:3])
    if not salt or stored_key is None or server_key is None:
        raise BadDataError(f"a {mechanism.value} credential must have salt and keys in base64")
    if {len(stored_key), len(server_key)} != {mechanism.key_bytes}:
        raise BadDataError(f"the keys of a {mechanism.value} credential have a wrong length")
    if not _ITERATIONS.fullmatch(fields["iterations"]):
        raise BadDataError(f"the iterations of a {mechanism.value} credential must be a number")
    return ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))


def printable(number: int) -> str:
    """Return a number, such as ``RANDOM_BITS`` random bits, in the letters of nonces and salts."""
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits or "0"


class ScramServer:
    """One login; ``nonce`` is random and printable.

    ``salt_secret`` makes up the credentials of users that do not exist. It is the same on all
    brokers of a cluster: if they disagreed, a client would see who does not exist.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: CredentialProvider,
        nonce: str,
        salt_secret: bytes,
    ) -> None:
        self.login: LoggedIn | None = None
        self._mechanism = mechanism
        self._credentials = credentials
        self._server_nonce = nonce.encode()
        self._salt_secret = salt_secret
        self._begun: _Begun | None = None
        self._is_over = False

    def evaluate(self, token: bytes) -> bytes:
        """See ``SaslServer``."""
        if self._is_over:
            raise self._refused("a token after the last one")
        if self._begun is None:
            return self._begin(token)
        self._is_over = True
        return self._finish(token, self._begun)

    def _begin(self, token: bytes) -> bytes:
        found = _CLIENT_FIRST.fullmatch(token)
        if found is None:
            self._is_over = True
            raise self._malformed("first")
        name = sasl_name(found["name"])
        if found["authzid"] is not None and sasl_name(found["authzid"]) != name:
            self._is_over = True
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        extensions = dict(
            item.split("=", 1) for item in found["extensions"].decode().split(",") if item
        )
        by_token = extensions.get(_TOKEN_LOGIN, "").lower() == "true"
        credential = self._credentials.scram(self._mechanism, name, by_token)
        is_usable = credential is not None and credential.iterations >= MIN_ITERATIONS
        if credential is None or not is_usable:
            credential = self._made_up(name)
        nonce = found["nonce"] + self._server_nonce
        salt = base64.b64encode(credential.salt)
        answer = b"r=%s,s=%s,i=%d" % (nonce, salt, credential.iterations)
        signed = found["bare"] + b"," + answer
        self._begun = _Begun(name, by_token, credential, is_usable, found["gs2"], nonce, signed)
        return answer

    def _finish(self, token: bytes, begun: _Begun) -> bytes:
        found = _CLIENT_FINAL.fullmatch(token)
        if found is None:
            raise self._malformed("final")
        binding, proof = strict_base64(found["binding"]), strict_base64(found["proof"])
        if binding != begun.gs2 or not hmac.compare_digest(found["nonce"], begun.nonce):
            raise self._refused(f"the nonce or channel binding of {shown(begun.name)} is not ours")
        mechanism, credential = self._mechanism, begun.credential
        if proof is None or len(proof) != mechanism.key_bytes:
            raise self._malformed("final")
        signed = begun.signed + b"," + found["without_proof"]
        signature = mechanism.hmac(credential.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        if not (is_right and begun.is_known):
            kind = "delegation token" if begun.by_token else "user"
            reason = "wrong password" if begun.is_known else f"there is no such {kind}"
            raise self._refused(f"{kind} {shown(begun.name)}: {reason}")
        principal = credential.owner or user(begun.name)
        self.login = LoggedIn(principal, credential.expires_at_ms, begun.by_token)
        return b"v=" + base64.b64encode(mechanism.hmac(credential.server_key, signed))

    def _made_up(self, name: str) -> ScramCredential:
        """Return a credential that looks like those of users, the same each time."""
        shapes = self._credentials.shapes(self._mechanism) or (CredentialShape(),)
        shape = stand_in(self._salt_secret, name, shapes)
        seed = f"{self._mechanism.value}:{name}".encode()
        digest = hmac.digest(self._salt_secret, seed, "sha512")
        salt = printable(int.from_bytes(digest) >> (len(digest) * 8 - RANDOM_BITS)).encode()
        if shape.salt_bytes is not None:
            salt = hashlib.shake_256(digest).digest(shape.salt_bytes)
        key = self._mechanism.hmac(self._salt_secret, digest)
        return ScramCredential(salt, key, key, shape.iterations)

    def _malformed(self, which: str) -> SaslAuthenticationError:
        return self._refused(f"the client's {which} message is not one of SCRAM")

    def _refused(self, detail: str) -> SaslAuthenticationError:
        return invalid_credentials(self._mechanism.value, detail)


class _Begun(NamedTuple):
    """What is known after the client's first message."""

    name: str
    by_token: bool
    credential: ScramCredential
    is_known: bool
    gs2: bytes
    nonce: bytes
    signed: bytes


class ScramClient:
    """A client's part of a login; raises ``SaslAuthenticationError`` for a false server."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        name: str,
        password: str,
        nonce: str,
        *,
        by_token: bool = False,
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce.encode()
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = b"n=%s,r=%s" % (escaped.encode(), self._nonce)
        if by_token:
            self._bare += f",{_TOKEN_LOGIN}=true".encode()
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return b"n,," + self._bare

    def final(self, answer: bytes) -> bytes:
        """Return the last message, after the server's first."""
        found = _SERVER_FIRST.fullmatch(answer)
        salt = None if found is None else strict_base64(found["salt"])
        if found is None or salt is None:
            raise SaslAuthenticationError("the server does not speak SCRAM")
        iterations = int(found["iterations"])
        if not found["nonce"].startswith(self._nonce) or found["nonce"] == self._nonce:
            raise SaslAuthenticationError("the server's nonce does not begin with the client's")
        if not MIN_ITERATIONS <= iterations <= _MAX_OF_SERVER:
            raise SaslAuthenticationError(
                f"the server asks for {iterations} iterations;"
                f" {MIN_ITERATIONS} to {_MAX_OF_SERVER} are accepted"
            )
        mechanism = self._mechanism
        salted = hashlib.pbkdf2_hmac(mechanism.hash_name, self._password.encode(), salt, iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        without_proof = b"c=biws,r=" + found["nonce"]
        signed = b",".join((self._bare, answer, without_proof))
        signature = mechanism.hmac(mechanism.hash(client_key), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return without_proof + b",p=" + base64.b64encode(proof)

    def check(self, answer: bytes) -> None:
        """Check that the server has the credential."""
        expected = b"v=" + base64.b64encode(self._server_signature)
        if not hmac.compare_digest(answer, expected):
            raise SaslAuthenticationError("the server does not know the user: it is a false one")
