"""Random rules of ``ssl.principal.mapping.rules``, and subjects of certificates that may match.

A rule is put together from the pieces of patterns, of Java's and of others, so that what one
language has and the other has not, or takes otherwise, comes often and in every place.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier

_PLAIN: Final = (
    *("CN=", "cn=", "OU=", "O=", ",", "a", "b", "é", "1", " ", "=", "&", "~", "#", "<", ">", ":"),
    *("-", "!", "_", "]", "}", '"', "@", "K", "ſ", "İ", "\t", "\u00a0", "😀"),
)
_USUAL: Final = ("(.*)", "(.*?)", "([^,]+)", ".*", "[A-Za-z0-9.]*", "^", "$", "(,.*|$)", r"(\w+)")
_ESCAPES: Final = (
    *(rf"\{letter}" for letter in "abcdefghijklmnopqrstuvwxyzABDGHLNPQRSUVWXYZz"),
    *(r"\,", r"\\", r"\.", r"\[", r"\(", r"\/", r"\-", r"\_", r"\ ", r"\é", r"\#", r"\+", r"\<"),
    *(r"\1", r"\2", r"\11", r"\111", r"\0", r"\0101", r"\012", r"\12", r"\x41", r"\x{41}"),
    *(r"\u0041", r"\U00000041", r"\N{DIGIT ONE}", r"\cA", r"\p{L}", r"\p{Alpha}", r"\Qa.\E"),
    *(r"\k<n>", r"\k<m>", r"\g<1>", r"(?P=n)"),
)
_OPENINGS: Final = (
    *("(", "(", "(", "(?:", "(?<n>", "(?<m>", "(?P<n>", "(?<né>", "(?<n_1>", "(?=", "(?!"),
    *("(?<=", "(?<!", "(?>", "(?i:", "(?s:", "(?x:", "(?-i:", "(?u:", "(?a:", "(?(1)", "(?|"),
)
_FLAGS: Final = (
    *("(?i)", "(?s)", "(?m)", "(?x)", "(?u)", "(?d)", "(?a)", "(?L)", "(?im)", "(?-i)", "(?U)"),
    *("(?#a)", "(?i)(?s)", "(?si)"),
)
_QUANTIFIERS: Final = (
    *("*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{1}", "{1,}", "{0,1}", "{,1}", "{1,2}?"),
    *("{1}+", "{ 1}", "{}", "{", "{a}", "**", "{1}{2}", "+*", "{2,1}", "{٢}"),
)
_IN_SETS: Final = (
    *("a", "b", "a-z", "A-Z", "0-9", ",", "=", "é", r"\w", r"\d", r"\s", r"\W", r"\S", r"\D", "."),
    *("-", "^", "]", "[", "[b]", "&&", "&", "--", "||", "~~", "|", r"\]", r"\-", r"\\", r"\b"),
    *(r"\x41", r"\u0041", r"\N{DIGIT ONE}", r"\p{L}", "[:alpha:]", "(?<n>", " ", "#", "$", "z-a"),
    *(r"\d-a", "a-c-e", r"a-\d", r"\,", r"\n", r"\v", r"\h", r"\0", r"\1", r"\k<n>", "é-ü", "<"),
)
_REPLACEMENTS: Final = (
    *("$0", "$1", "$2", "$3", "$9", "$10", "$11", "$12", "$123", "$01", "$1x", "$99999999999"),
    *("${n}", "${m}", "${x}", "${né}", "${1}", "${n", "$", "$x", "$٣", "$1٣", "$-1", "x", "@"),
    *(r"\$1", r"\$9", r"\\", r"\\$1", r"\x", "é", "İ", "ß", "ſ", "K", "Σ", " ", "a", r"\/", "&"),
)
_NO_RULES: Final = (
    *("DEFAULT", "DEFAULT", "DEFAULT", "", " ", "default", "DEFAULTS", "RULE:", "RULE:a/b", "x"),
    *("DEFAULT\u00a0", "\u3000DEFAULT", "\x1fDEFAULT", "DEFAULT/L", "RULE:a/b/LU", "RULE:a/b/l"),
    *("rule:a/b/", "RULE:a/b/c/", "\u0085DEFAULT", "DEFAULT\u2028", "RULE:(/a/", "\nDEFAULT"),
)
_VALUES: Final = (
    *("a", "b", "ab", "aa", "aab", "A", "Duke", r"Tkac\, Adam", "é", "1", "12", "a b", "x=y"),
    *("", "ſ", "K", "İ", "ΑΣ", "ß", "😀", "a-b", "]", r"a\\b", "$1", "&", "#", "\t", "\x0c"),
    *("\x0b", "\u00a0", "٣", "_", r"\"q\"", "n", r"\+", "<n>"),
)
_KEYS: Final = ("CN", "CN", "CN", "cn", "OU", "O", "UID", "1.2.3.4", "")


def subject(chance: random.Random) -> str:
    """Return the text of a subject, also one that no certificate has."""
    count = chance.choice((1, 1, 2, 3))
    names = [f"{chance.choice(_KEYS)}={chance.choice(_VALUES)}" for _ in range(count)]
    return chance.choice((",", ",", ",", "+", "")).join(names)


def rules(chance: random.Random) -> str:
    """Return the text of the setting."""
    found = [_rule(chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    return chance.choice((",", ",", ", ", " ,", ",,", ",\n", ",\u3000", " ")).join(found)


def _rule(chance: random.Random) -> str:
    if chance.random() < 0.15:
        return chance.choice(_NO_RULES)
    replacement = "".join(chance.choice(_REPLACEMENTS) for _ in range(chance.choice((1, 1, 2, 3))))
    if chance.random() < 0.4:
        replacement = "$1"
    case = chance.choice(("", "", "", "L", "U"))
    return f"RULE:{_pattern(chance)}/{replacement}/{case}"


def _pattern(chance: random.Random) -> str:
    begin = chance.choice(_FLAGS) if chance.random() < 0.1 else ""
    if chance.random() < 0.5:
        begin += chance.choice(("^CN=", "CN=", "^.*[Cc][Nn]=", "(?i)cn="))
    end = chance.choice((".*", ".*", ".*", "$", ""))
    return begin + _sequence(chance, chance.randrange(3)) + end


def _sequence(chance: random.Random, depth: int) -> str:
    parts = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        part = _atom(chance, depth)
        if chance.random() < 0.25:
            part += chance.choice(_QUANTIFIERS[:9] if chance.random() < 0.8 else _QUANTIFIERS)
        parts.append(part)
    if chance.random() < 0.1:
        parts.insert(chance.randrange(len(parts) + 1), "|")
    return "".join(parts)


def _atom(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(_USUAL)
    if kind < 0.55:
        return chance.choice(_PLAIN)
    if kind < 0.65:
        return chance.choice(_ESCAPES)
    if kind < 0.8:
        return _set(chance)
    if kind < 0.83:
        return chance.choice(_FLAGS)
    if depth:
        return f"{chance.choice(_OPENINGS)}{_sequence(chance, depth - 1)})"
    return chance.choice(_USUAL)


def _set(chance: random.Random) -> str:
    inside = "".join(chance.choice(_IN_SETS) for _ in range(chance.choice((1, 1, 2, 3, 4))))
    return f"[{chance.choice(('', '', '^'))}{inside}]"


_ATTRIBUTES: Final = (
    *(NameOID.COMMON_NAME, NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.USER_ID),
    *(NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.DOMAIN_COMPONENT, NameOID.LOCALITY_NAME),
    *(NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.EMAIL_ADDRESS),
    *(NameOID.SERIAL_NUMBER, NameOID.TITLE, ObjectIdentifier("1.2.3.4")),
)
_CHARACTERS: Final = 'aZ09 ,=+<>#;"\\/\t\r\n\0é😀*/.:-_\x7f\u00a0\u2028K'
_PRINTABLE: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 '()+,-./:=?"
)
_FORMS: Final = (_ASN1Type.UTF8String, _ASN1Type.UTF8String, _ASN1Type.BMPString)


def certificate(chance: random.Random, key: EllipticCurvePrivateKey) -> bytes:
    """Return a certificate with any subject, signed with ``key``, in DER."""
    names = [
        x509.RelativeDistinguishedName(_attributes(chance)) for _ in range(chance.randrange(1, 5))
    ]
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    builder = x509.CertificateBuilder().subject_name(x509.Name(names)).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)


def _attributes(chance: random.Random) -> list[x509.NameAttribute[str]]:
    found: dict[ObjectIdentifier, x509.NameAttribute[str]] = {}
    for _ in range(chance.choice((1, 1, 1, 2))):
        kind = chance.choice(_ATTRIBUTES)
        value = "".join(chance.choice(_CHARACTERS) for _ in range(chance.randrange(1, 6)))
        form = chance.choice(_FORMS)
        if set(value) <= _PRINTABLE:
            form = chance.choice((form, _ASN1Type.PrintableString))
        elif value.isascii():
            form = chance.choice((form, _ASN1Type.IA5String, _ASN1Type.T61String))
        found[kind] = x509.NameAttribute(kind, value, form, _validate=False)
    return list(found.values())
