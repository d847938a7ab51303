"""The subject of a certificate as text, as Java prints it.

Mirrors ``javax.security.auth.x500.X500Principal.getName`` (RFC 2253), which names users of Kafka
and of ZooKeeper. Python and OpenSSL print other texts for the same name. Here is only as much DER
as a name needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_CONTEXT_0: Final = 0xA0
_TEXT_TAGS: Final = frozenset((12, 19, 20, 22, 27, 30))  # what Java takes for a string
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANK: Final = " \r"
_LONG_LENGTH: Final = 0x80
_MAX_LENGTH_BYTES: Final = 4


class BadCertificateError(ValueError):
    """Bytes are not a certificate."""


def subject_of(certificate: bytes) -> str:
    """Return the name of the subject of a certificate in DER. Raises ``BadCertificateError``."""
    try:
        signed = next(_elements(next(_elements(certificate))[1]))[1]
        parts = list(_elements(signed))
        # A version may come first; then serial number, algorithm, issuer, validity, subject.
        subject = parts[5 if parts[0][0] == _CONTEXT_0 else 4][1]
        names = [_relative_name(part) for _, part, _ in _elements(subject)]
    except (IndexError, StopIteration, ValueError) as error:
        raise BadCertificateError(f"the subject of a certificate is malformed: {error}") from None
    return ",".join(reversed(names))


def _relative_name(encoded: bytes) -> str:
    return "+".join(_attribute(part) for _, part, _ in _elements(encoded))


def _attribute(encoded: bytes) -> str:
    (_, oid, _), (tag, value, whole) = _elements(encoded)
    number = _dotted(oid)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or number}=#{whole.hex()}"
    # Java reads the bytes of every kind of string as UTF-8, also those of other character sets.
    return f"{keyword}={_escaped(value.decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    escaped = "".join(_escaped_character(character) for character in text)
    leading = len(escaped) - len(escaped.lstrip(_BLANK))
    trailing = len(escaped) if leading == len(escaped) else len(escaped.rstrip(_BLANK))
    return "".join(
        f"\\{character}" if index < leading or index >= trailing else character
        for index, character in enumerate(escaped)
    )


def _escaped_character(character: str) -> str:
    if character == "\0":
        return "\\00"
    return f"\\{character}" if character in _ESCAPED else character


def _elements(encoded: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the tag, the contents and all bytes of each element. Raises ``IndexError``."""
    start = 0
    while start < len(encoded):
        tag, length, at = encoded[start], encoded[start + 1], start + 2
        if length >= _LONG_LENGTH:
            count = length - _LONG_LENGTH
            if not 0 < count <= _MAX_LENGTH_BYTES:
                raise IndexError("the length of an element has no known form")
            length = int.from_bytes(encoded[at : at + count], "big")
            at += count
        end = at + length
        if end > len(encoded):
            raise IndexError("an element is longer than what contains it")
        yield tag, encoded[at:end], encoded[start:end]
        start = end


def _dotted(oid: bytes) -> str:
    numbers, value = [], 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
