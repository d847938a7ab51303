"""Logins with random changes, and an independent decision about who may be let in by each.

A login is a genuine one of some mechanism. One of its tokens is changed as what it is (a proof, a
name, a claim), or as bytes, or a frame around a token is changed. ``Issuer`` signs bearer tokens,
genuine ones and many that must not be accepted.

The references below read what was really sent. They share no code with the product. They may refuse
what a server may accept only where this is said; what they refuse must never log in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import struct
import time
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.sasl_users import NAME, PASSWORD

USERS: Final[Mapping[bytes, bytes]] = {NAME.encode(): PASSWORD.encode(), b"bob": b"bob's secret"}
"""The passwords of all users, for PLAIN and SCRAM."""
HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
AUDIENCE, ISSUER = "regent", "https://issuer.example"
KID: Final = "1"

_HANDSHAKE, _AUTHENTICATE, _METADATA, _VERSIONS = 17, 36, 3, 18
LAST: Final = 77
"""The correlation id of the request after a login."""
_ODD: Final = (b"", b"\0", b",", b"=", b"\x01", b"\xff" * 9, b"a" * 70_000, b"\r\n", b"%s", b"=2C")
_INTEGERS: Final = (0, 1, 255, 2**31 - 1, 2**31, 2**32 - 1)

Conversation: TypeAlias = Generator[bytes, bytes | None, "Outcome"]
"""Yields what to send; takes the next answer without its size, None if there is none."""


class Outcome(NamedTuple):
    """``allowed``: who may be logged in by what was sent, None: nobody.

    ``body``: the answer for who is logged in, None: nobody is. ``is_genuine``: nothing was changed.
    """

    allowed: str | None
    body: bytes | None
    is_genuine: bool
    sent: Sequence[bytes]


# --- changes of bytes ---


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with one to three random changes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(changed) + 1)
        end = min(len(changed), at + chance.choice((1, 2, 8, 40)))
        match chance.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at:end] = chance.randbytes(end - at)
            case 2:
                changed[at:at] = chance.choice(_ODD)
            case 3:
                del changed[at:end]
            case 4:
                del changed[at:]
            case 5:
                changed[at:at] = changed[at:end]
            case 6:
                changed[at : at + 4] = struct.pack(">I", chance.choice(_INTEGERS))
            case _:
                changed[at:end] = bytes(changed[at:end]).swapcase()
    return bytes(changed)


# --- SCRAM ---


@cache
def _salted(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def scram_proof(hash_name: str, salted: bytes, signed: bytes) -> bytes:
    """Return the proof of RFC 5802."""
    key = hmac.digest(salted, b"Client Key", hash_name)
    signature = hmac.digest(hashlib.new(hash_name, key).digest(), signed, hash_name)
    return bytes(a ^ b for a, b in zip(key, signature, strict=True))


def _fields(text: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for part in text.split(b","):
        key, _, value = part.partition(b"=")
        found.setdefault(key, value)
    return found


def scram_first(name: bytes, nonce: bytes) -> bytes:
    """Return the first message of a client."""
    return b"n,,n=" + name + b",r=" + nonce


def scram_final(mechanism: str, first: bytes, answer: bytes, password: bytes) -> bytes | None:
    """Return the last message of a client; None if the answer is not the first of a server."""
    fields = _fields(answer)
    if not {b"r", b"s", b"i"} <= fields.keys() or first.count(b",") < 2:
        return None
    scheme, authorization_id, bare = first.split(b",", 2)
    binding = base64.b64encode(scheme + b"," + authorization_id + b",")
    without_proof = b"c=" + binding + b",r=" + fields[b"r"]
    hash_name, salt = HASHES[mechanism], base64.b64decode(fields[b"s"])
    salted = _salted(hash_name, password, salt, int(fields[b"i"]))
    proof = scram_proof(hash_name, salted, b",".join((bare, answer, without_proof)))
    return without_proof + b",p=" + base64.b64encode(proof)


def scram_user(mechanism: str, first: bytes, answer: bytes, final: bytes) -> bytes | None:
    """Decide who has proved its password."""
    parts = first.split(b",", 2)
    without_proof, found, proof = final.rpartition(b",p=")
    if len(parts) < 3 or not found:
        return None
    scheme, authorization_id, bare = parts
    name, told, last = _fields(bare).get(b"n", b""), _fields(answer), _fields(without_proof)
    is_own = authorization_id in (b"", b"a=" + name)
    if name not in USERS or scheme != b"n" or not is_own:
        return None
    if last.get(b"r") != told.get(b"r") or not {b"s", b"i"} <= told.keys():
        return None
    if last.get(b"c") != base64.b64encode(scheme + b"," + authorization_id + b","):
        return None
    hash_name = HASHES[mechanism]
    salt, iterations = base64.b64decode(told[b"s"]), int(told[b"i"])
    salted = _salted(hash_name, USERS[name], salt, iterations)
    right = scram_proof(hash_name, salted, b",".join((bare, answer, without_proof)))
    return name if base64.b64encode(right) == proof else None


def changed_scram_first(first: bytes, chance: random.Random) -> bytes:
    """Return a first message of somebody else, or of nobody."""
    name = chance.choice((b"bob", b"nobody", b"=2C", b"alice\0", b"alice=3D", b"Alice", b""))
    return chance.choice(
        (
            lambda: changed_bytes(first, chance),
            lambda: first.replace(
                b"n,,", chance.choice((b"y,,", b"p=tls-unique,,", b"n,", b"")), 1
            ),
            lambda: first.replace(b"n,,", b"n,a=" + name + b",", 1),
            lambda: first.replace(NAME.encode(), name, 1),
            lambda: first + chance.choice((b",tokenauth=true", b",x=y", b",", b",m=1", b",n=bob")),
            lambda: first.replace(b"n=", b"m=ext,n=", 1),
            lambda: first.replace(b",r=", b",n=bob,r=", 1),
        )
    )()


def changed_scram_final(final: bytes, chance: random.Random) -> bytes:
    """Return a last message whose proof, nonce or binding is another one."""
    without_proof, _, proof = final.rpartition(b",p=")
    raw = bytearray(base64.b64decode(proof))
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    proofs = (bytes(raw), bytes(len(raw)), b"", bytes(raw[:-1]), bytes(raw) + b"\0", raw[::-1])
    return chance.choice(
        (
            lambda: changed_bytes(final, chance),
            lambda: without_proof + b",p=" + base64.b64encode(chance.choice(proofs)),
            lambda: without_proof + b",p=" + changed_bytes(proof, chance),
            lambda: without_proof + b",x=y,p=" + proof,
            lambda: without_proof + b",p=" + proof + b",p=" + proof,
            lambda: final.replace(
                b"c=biws", chance.choice((b"c=eSws", b"c=", b"c=biw", b"d=biws"))
            ),
            lambda: final.replace(b",r=", b",r=" + chance.randbytes(1), 1),
            lambda: without_proof,
        )
    )()


# --- PLAIN ---


def plain_user(token: bytes) -> bytes | None:
    """Decide who has sent its password."""
    parts = token.split(b"\0")
    if len(parts) != 3:
        return None
    authorization_id, name, password = parts
    is_right = name in USERS and USERS[name] == password
    return name if is_right and authorization_id in (b"", name) else None


def plain_users() -> str:
    """Return a file of the users, whose passwords are hashed with little work."""
    lines = []
    for name, password in USERS.items():
        salt = b"salt of " + name
        digest = hashlib.scrypt(password, salt=salt, n=2, r=1, p=1, dklen=32)
        texts = [base64.b64encode(data).decode() for data in (salt, digest)]
        lines.append(f"{name.decode()}:scrypt$2$1$1${texts[0]}${texts[1]}\n")
    return "".join(lines)


def changed_plain(chance: random.Random) -> bytes:
    """Return a message of PLAIN that mixes what is known."""
    names = (*USERS, b"nobody", b"", b"ALICE", b"alice ", b"\xff")
    passwords = (*USERS.values(), b"", b"x", b"x" * 5_000, "s\u00e9".encode())
    if chance.randrange(8):  # hashes of passwords take long: mostly what does not get that far
        message = b"\0" + NAME.encode() + b"\0" + PASSWORD.encode()
        return changed_bytes(message, chance).replace(b"\0", b"", chance.randrange(2))
    parts = [chance.choice((b"", *names)), chance.choice(names), chance.choice(passwords)]
    return b"\0".join(parts)


# --- bearer tokens ---


def _text(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _bytes(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


_ABSURD: Final[Sequence[Any]] = (
    None,
    True,
    "",
    " ",
    "alice\0",
    -1,
    0,
    1e308,
    -1e308,
    2**63,
    [],
    {},
    [None],
    "1",
)
_BOMBS: Final = (b"[" * 50_000, b'{"a":' * 20_000, b'{"exp":1e400}', b"{}", b"null", b'{"a":NaN}')


class Issuer:
    """Signs tokens. ``write_keys`` makes the file of its public key."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self._stranger = rsa.generate_private_key(65537, 2048)
        public = self._key.public_key()
        self._public = [
            public.public_bytes(form, kind)
            for form, kind in (
                (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
                (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
                (serialization.Encoding.DER, serialization.PublicFormat.PKCS1),
            )
        ]
        self._jwk = json.loads(RSAAlgorithm.to_jwk(public))
        self._signed: dict[bytes, tuple[bytes, str | None]] = {}

    def write_keys(self, path: Path) -> str:
        """Write the public key; return the address of the file."""
        path.write_text(json.dumps({"keys": [{**self._jwk, "kid": KID, "use": "sig"}]}))
        return f"file://{path}"

    def user(self, token: bytes) -> str | None:
        """Decide whose token it is: it must be one that was signed here, with the same bytes.

        The signature may be another text of the same bytes.
        """
        signed, dot, signature = token.rpartition(b".")
        known, name = self._signed.get(signed, (b"", None))
        try:
            is_same = bool(dot) and _bytes(signature) == known
        except ValueError:
            is_same = False
        return name if is_same else None

    def claims(self, name: str = NAME) -> dict[str, Any]:
        """Return the claims of a good token."""
        now = int(time.time())
        return {"sub": name, "aud": AUDIENCE, "iss": ISSUER, "iat": now - 5, "exp": now + 9_999}

    def signed(self, claims: bytes, header: Mapping[str, Any], allowed: str | None) -> bytes:
        """Sign claims that let ``allowed`` in, and remember them."""
        start = _text(json.dumps(header).encode()) + b"." + _text(claims)
        method = jwt.get_algorithm_by_name("RS256")
        signature = method.sign(start, self._key)
        self._signed[start] = signature, allowed
        return start + b"." + _text(signature)

    @cache  # noqa: B019 - there are few issuers
    def genuine(self, name: str = NAME) -> bytes:
        """Return a token that is accepted."""
        header = {"alg": "RS256", "kid": KID, "typ": "JWT"}
        return self.signed(json.dumps(self.claims(name)).encode(), header, name)

    def changed(self, chance: random.Random) -> bytes:
        """Return a token that is not accepted, or another text of one that is."""
        genuine = self.genuine(chance.choice((NAME, "bob")))
        return chance.choice((self._forged, self._forged, self._odd, changed_bytes, _other_text))(
            *((genuine, chance))
        )

    def _odd(self, _genuine: bytes, chance: random.Random) -> bytes:
        """Return a token with a right signature, and claims that must be refused."""
        header = {"alg": "RS256", "kid": KID}
        claims = self.claims()
        if chance.randrange(4) == 0:
            return self.signed(chance.choice(_BOMBS), header, None)
        if chance.randrange(4) == 0:  # the last of two claims counts
            twice = json.dumps(claims)[:-1].encode()
            return self.signed(twice + b',"sub":"bob"}', header, "bob")
        key = chance.choice(sorted(claims))
        if chance.randrange(4) == 0:
            del claims[key]
        else:
            claims[key] = chance.choice(_ABSURD)
        name = claims.get("sub")
        is_allowed = isinstance(name, str) and name.strip() and self._is_allowed(claims)
        return self.signed(json.dumps(claims).encode(), header, name if is_allowed else None)

    @staticmethod
    def _is_allowed(claims: Mapping[str, Any]) -> bool:
        now = time.time()
        times: list[float] = []
        for number in (claims.get("iat"), claims.get("exp")):
            if isinstance(number, bool) or not isinstance(number, int | float):
                return False
            if abs(number) >= 1e15:
                return False
            times.append(number)
        is_now = times[0] <= now < times[1]
        return is_now and claims.get("aud") == AUDIENCE and claims.get("iss") == ISSUER

    def _forged(self, genuine: bytes, chance: random.Random) -> bytes:
        """Return a token that is not signed with the issuer's key."""
        _, claims, signature = genuine.split(b".")
        header: dict[str, Any] = {"alg": "RS256", "kid": KID}
        kids: Sequence[Any] = (
            KID,
            "2",
            "",
            "../../dev/null",
            "file:///etc/passwd",
            None,
            1,
            [],
            {},
            "k" * 9_000,
        )
        header["kid"] = chance.choice(kids)
        header["alg"] = chance.choice(
            ("none", "None", "", "HS256", "HS256", "HS512", "RS256", "PS256", "ES256", "EdDSA", 5)
        )
        if chance.randrange(3) == 0:
            header[chance.choice(("jwk", "jku", "x5u", "x5c", "crit", "b64", "zip"))] = (
                chance.choice((self._jwk, "https://127.0.0.1:1/", ["exp"], False, "DEF", True))
            )
        encoded = _text(json.dumps(header).encode())
        if chance.randrange(8) == 0:
            encoded = _text(chance.choice(_BOMBS))
        start = encoded + b"." + claims
        secret = chance.choice((*self._public, b"", KID.encode()))
        stranger = jwt.get_algorithm_by_name("RS256").sign(b"", self._stranger)
        signatures = (
            _text(hmac.digest(secret, start, "sha256")),
            _text(hmac.digest(secret, start, "sha512")),
            _text(stranger),
            signature,
            b"",
        )
        return start + b"." + chance.choice(signatures)


def _other_text(token: bytes, chance: random.Random) -> bytes:
    """Return a token with other letters in base64, which may stand for the same bytes."""
    at = chance.choice([n for n, letter in enumerate(token) if letter != ord(".")][-3:])
    letter = chance.choice(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/")
    return token[:at] + bytes((letter,)) + token[at + 1 :]


def bearer_message(token: bytes, authorization_id: bytes = b"") -> bytes:
    """Return the message of a client with a token."""
    return b"n," + authorization_id + b",\x01auth=Bearer " + token + b"\x01\x01"


def changed_bearer(issuer: Issuer, chance: random.Random) -> bytes:
    """Return a message with a changed token, or a changed message."""
    genuine = issuer.genuine()
    if chance.randrange(3):
        return bearer_message(issuer.changed(chance))
    message = bearer_message(genuine)
    return chance.choice(
        (
            lambda: changed_bytes(message, chance),
            lambda: bearer_message(genuine, b"a=" + chance.choice((b"bob", b"alice", b"", b"=2C"))),
            lambda: message.replace(b"auth=", b"auth=Bearer x\x01auth="),
            lambda: message.replace(
                b"Bearer", chance.choice((b"bearer", b"Basic", b"", b"BEARER "))
            ),
            lambda: message[:-1] + b"a" * chance.choice((1, 9_000)) + b"=b\x01\x01",
        )
    )()


def bearer_user(message: bytes, issuer: Issuer) -> str | None:
    """Decide whose token is in a message; the first ``auth`` counts."""
    start, separator, rest = message.partition(b"\x01")
    parts = start.split(b",")
    pairs = [pair.split(b"=", 1) for pair in rest.split(b"\x01") if b"=" in pair]
    auth = next((value for key, value in pairs if key == b"auth"), b"")
    scheme, _, token = auth.partition(b" ")
    if not separator or len(parts) != 3 or parts[0] != b"n" or scheme.lower() != b"bearer":
        return None
    name = issuer.user(token.strip(b" "))
    is_own = name is not None and parts[1] in (b"", b"a=" + name.encode())
    return name if is_own else None


# --- frames ---


def framed(data: bytes) -> bytes:
    """Return a request with its size."""
    return struct.pack(">i", len(data)) + data


def _request(key: int, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    return framed(struct.pack(">hhih", key, version, correlation_id, 4) + b"fuzz" + body)


def handshake(mechanism: str, version: int) -> bytes:
    """Return the request that begins a login."""
    name = mechanism.encode()
    return _request(_HANDSHAKE, version, struct.pack(">h", len(name)) + name)


def authenticate(token: bytes, version: int) -> bytes:
    """Return the request with a token. 0: a token without a header."""
    if version == 0:
        return framed(token)
    if version == 1:
        return _request(_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
    size, left = b"", len(token) + 1
    while left > 127:
        size += bytes((left & 127 | 128,))
        left >>= 7
    return _request(_AUTHENTICATE, 2, b"\0" + size + bytes((left,)) + token + b"\0")


LAST_REQUEST: Final = _request(_METADATA, 1, struct.pack(">i", 0), LAST)
"""It is answered for those who are logged in."""
VERSIONS_REQUEST: Final = _request(_VERSIONS, 0, b"")


def token_of(answer: bytes | None, version: int) -> bytes | None:
    """Return the token in an answer; None: there is none, or an error."""
    if answer is None or version == 0:
        return answer
    body = answer[4 + (version == 2) :]
    if body[:2] != b"\0\0":
        return None
    at = 4 if version == 1 else 3  # behind the error, and a message that is null
    if version == 1:
        size = struct.unpack_from(">i", body, at)[0]
        return body[at + 4 : at + 4 + size]
    size, shift = 0, 0
    while True:
        byte, at = body[at], at + 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return body[at : at + size - 1]


# --- conversations ---

MECHANISMS: Final = ("PLAIN", *HASHES, "OAUTHBEARER")


class Login:
    """One login of a user, with a change in one of its messages; ``change`` says in which."""

    def __init__(
        self, mechanism: str, issuer: Issuer, chance: random.Random, name: bytes, change: str
    ) -> None:
        self._mechanism = mechanism
        self._issuer = issuer
        self._chance = chance
        self._name = name
        self._change = change
        self.sent: list[bytes] = []

    def tokens(self) -> Generator[bytes, bytes | None, str | None]:
        """Yield tokens, take answers; return who may be let in by the tokens."""
        if self._mechanism in HASHES:
            return (yield from self._scram())
        is_changed = self._change in ("first", "final")
        if self._mechanism == "PLAIN":
            message = b"\0" + self._name + b"\0" + USERS[self._name]
            message = changed_plain(self._chance) if is_changed else message
            yield message
            found = plain_user(message)
            return None if found is None else found.decode()
        message = bearer_message(self._issuer.genuine(self._name.decode()))
        message = changed_bearer(self._issuer, self._chance) if is_changed else message
        yield message
        return bearer_user(message, self._issuer)

    def _scram(self) -> Generator[bytes, bytes | None, str | None]:
        chance = self._chance
        first = scram_first(self._name, b"%032x" % chance.getrandbits(128))
        if self._change == "first":
            first = changed_scram_first(first, chance)
        answer = yield first
        if answer is None:
            return None
        is_wrong = self._change == "final" and chance.randrange(8) == 0
        password = b"wrong" if is_wrong else USERS[self._name]
        final = scram_final(self._mechanism, first, answer, password)
        if final is None:
            return None
        if self._change == "final" and not is_wrong:
            final = changed_scram_final(final, chance)
        yield final
        found = scram_user(self._mechanism, first, answer, final)
        return None if found is None else found.decode()

    def frames(self) -> Generator[bytes, bytes | None, str | None]:
        """Yield requests, take their answers; return who may be let in by the requests."""
        chance, version = self._chance, self._chance.choice((0, 1, 1, 2))
        begin = handshake(self._mechanism, min(version, 1))
        if self._change == "handshake":
            begin = changed_bytes(begin, chance)
        self.sent.append(begin)
        if (yield begin) is None:
            return None
        tokens, is_intact = self.tokens(), True
        token = next(tokens)
        while True:
            frame = authenticate(token, version)
            if self._change == "frame" and chance.randrange(2):
                frame = changed_bytes(frame, chance)
                is_intact = is_intact and token in frame
            self.sent.append(frame)
            answer = token_of((yield frame), version)
            try:
                token = tokens.send(answer)
            except StopIteration as end:
                return end.value if is_intact else None


CHANGES: Final = ("first", "final", "first", "final", "frame", "frame", "handshake", "none")


def conversation(issuer: Issuer, chance: random.Random, logins: int = 1) -> Conversation:
    """Log in with a change, so many times on one connection, and ask for something."""
    mechanism = chance.choice(MECHANISMS)
    first: str | None = None
    sent: list[bytes] = []
    is_genuine = True
    names = chance.choices(tuple(USERS), k=logins)
    if chance.randrange(4) == 0:
        yield VERSIONS_REQUEST
    for number, name in enumerate(names):
        change = chance.choice(CHANGES)
        login = Login(mechanism, issuer, chance, name, change)
        found = yield from login.frames()
        first = first if number else found
        sent += login.sent
        is_genuine = is_genuine and change == "none" and name == names[0]
    answer = yield LAST_REQUEST
    is_in = answer is not None and answer[:4] == struct.pack(">i", LAST)
    body = answer[4:] if is_in and answer is not None else None
    return Outcome(first, body, is_genuine, sent)
