"""Passwords in the configurations of brokers, encoded as Kafka's ``PasswordEncoder`` does it.

A text of ``name:value`` fields says how the password was encrypted: the key is derived from the
secret of the cluster by PBKDF2, the cipher is AES. Brokers and tools of Kafka with the same secret
read what is written here, and the other way round.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.padding import PKCS7

from regent.core.errors import BadDataError

_HASHES: Final = {
    f"PBKDF2WithHmacSHA{name}": f"sha{name}" for name in ("1", "224", "256", "384", "512")
}
_KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
_CBC: Final = "AES/CBC/PKCS5Padding"
_GCM: Final = "AES/GCM/NoPadding"
_KEY_BITS: Final = 128
_KEY_SIZES: Final = (128, 192, 256)
_ITERATIONS: Final = 4096
_MOST_ITERATIONS: Final = 1_000_000  # some 0.5 s: who writes the text must not stop a broker
_SALT_BYTES: Final = 256
_BLOCK_BYTES: Final = 16
_BLOCK_BITS: Final = 8 * _BLOCK_BYTES
_FULL_TAG_BITS: Final = 128
_NUMBER: Final = re.compile("[0-9]{1,9}")


def encode_password(secret: str, password: str) -> str:
    """Return a password as it is stored, with Kafka's defaults for the cipher and its key."""
    salt, vector = os.urandom(_SALT_BYTES), os.urandom(_BLOCK_BYTES)
    key = _key(secret, _HASHES[_KEY_FACTORY], salt, _ITERATIONS, _KEY_BITS)
    padder = PKCS7(_BLOCK_BITS).padder()
    padded = padder.update(password.encode()) + padder.finalize()
    encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
    fields = {
        "keyFactoryAlgorithm": _KEY_FACTORY,
        "cipherAlgorithm": _CBC,
        "keyLength": _KEY_BITS,
        "salt": _text(salt),
        "iterations": _ITERATIONS,
        "encryptedPassword": _text(encryptor.update(padded) + encryptor.finalize()),
        "passwordLength": _java_length(password),
        "initializationVector": _text(vector),
    }
    return ",".join(f"{name}:{value}" for name, value in fields.items())


def decode_password(secret: str, encoded: str) -> str:
    """Return the password of a stored text. Raises ``BadDataError``, also for another secret."""
    fields = {
        name.strip(): value.strip()
        for name, _, value in (field.partition(":") for field in encoded.split(","))
    }
    try:
        hash_name = _HASHES[fields["keyFactoryAlgorithm"]]
        bits, iterations = _number(fields, "keyLength"), _number(fields, "iterations")
        if bits not in _KEY_SIZES or not 0 < iterations <= _MOST_ITERATIONS:
            raise ValueError(f"keyLength {bits}, iterations {iterations}")
        key = _key(secret, hash_name, _bytes(fields, "salt"), iterations, bits)
        password = _decrypted(key, fields).decode()
        if _java_length(password) != _number(fields, "passwordLength"):
            raise ValueError("its length is wrong")
    except (KeyError, ValueError, InvalidTag):
        # Neither the text nor the password may be shown.
        raise BadDataError("the password cannot be decoded with this secret") from None
    return password


def _decrypted(key: bytes, fields: Mapping[str, str]) -> bytes:
    encrypted = _bytes(fields, "encryptedPassword")
    vector = _bytes(fields, "initializationVector")
    if fields["cipherAlgorithm"] == _GCM:
        if _number(fields, "authenticationTagLength") != _FULL_TAG_BITS:
            raise ValueError("another authenticationTagLength")
        return AESGCM(key).decrypt(vector, encrypted, None)
    if fields["cipherAlgorithm"] != _CBC:
        raise ValueError("another cipher")
    decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
    unpadder = PKCS7(_BLOCK_BITS).unpadder()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    return unpadder.update(padded) + unpadder.finalize()


def _key(secret: str, hash_name: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, secret.encode(), salt, iterations, bits // 8)


def _java_length(text: str) -> int:
    """Return the length of a text in Java: of its UTF-16 code units."""
    return len(text.encode("utf-16-le")) // 2


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(fields: Mapping[str, str], name: str) -> bytes:
    return base64.b64decode(fields[name], validate=True)


def _number(fields: Mapping[str, str], name: str) -> int:
    if _NUMBER.fullmatch(fields[name]) is None:
        raise ValueError(f"{name} is no number")
    return int(fields[name])
