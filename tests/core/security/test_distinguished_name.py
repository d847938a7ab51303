"""Names as Java 17 prints them: the expected texts are those of ``X500Principal.getName()``."""

from __future__ import annotations

import datetime
import random
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type as StringType
from cryptography.x509.oid import NameOID, ObjectIdentifier

from regent.core.security.distinguished_name import BadCertificateError, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
CN, UID = NameOID.COMMON_NAME, NameOID.USER_ID


def attribute(
    kind: ObjectIdentifier, value: str, form: StringType | None = None
) -> x509.NameAttribute[str]:
    return x509.NameAttribute(kind, value, form, _validate=False)


def certificate(*names: list[x509.NameAttribute[str]]) -> bytes:
    subject = x509.Name([x509.RelativeDistinguishedName(name) for name in names])
    return (
        x509.CertificateBuilder(ISSUER, subject, KEY.public_key(), 1, NOW, NOW)
        .sign(KEY, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ([(NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "o"), (CN, "me")],
         "CN=me,O=o,C=DE"),
        ([(NameOID.DOMAIN_COMPONENT, "org"), (UID, "u"), (NameOID.STREET_ADDRESS, "s"),
          (NameOID.STATE_OR_PROVINCE_NAME, "st"), (NameOID.LOCALITY_NAME, "l"),
          (NameOID.ORGANIZATIONAL_UNIT_NAME, "ou")],
         "OU=ou,L=l,ST=st,STREET=s,UID=u,DC=org"),
        ([(NameOID.EMAIL_ADDRESS, "b@x.org"), (CN, "a")],
         "CN=a,1.2.840.113549.1.9.1=#16076240782e6f7267"),
        ([(NameOID.TITLE, "Dr"), (CN, "a")], "CN=a,2.5.4.12=#0c024472"),
        ([(ObjectIdentifier("2.999.3"), "x"), (CN, "a")], "CN=a,2.999.3=#0c0178"),
        ([(CN, "Tkac, Adam")], r"CN=Tkac\, Adam"),
        ([(CN, 'a,b+c"d\\e<f>g;h#i=j')], r'CN=a\,b\+c\"d\\e\<f\>g\;h\#i\=j'),
        ([(CN, "  two ")], r"CN=\ \ two\ "),
        ([(CN, " ")], r"CN=\ "),
        ([(CN, "nul\0l")], r"CN=nul\00l"),
        ([(CN, "Zoë 日本 😀")], "CN=Zoë 日本 😀"),
        ([(CN, "me,O=admin")], r"CN=me\,O\=admin"),
    ],
)  # fmt: skip
def test_a_name_is_printed_as_java_prints_it(
    attributes: list[tuple[ObjectIdentifier, str]], expected: str
):
    assert subject_of(certificate(*([attribute(*one)] for one in attributes))) == expected


def test_several_attributes_of_one_part_are_joined():
    part = [attribute(CN, "me"), attribute(UID, "7")]
    assert subject_of(certificate(part, [attribute(NameOID.ORGANIZATION_NAME, "o")])) in (
        "O=o,CN=me+UID=7",
        "O=o,UID=7+CN=me",
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (StringType.PrintableString, "CN=a b"),
        (StringType.IA5String, "CN=a b"),
        (StringType.T61String, "CN=a b"),
        (StringType.BMPString, r"CN=\00a\00 \00b"),
        (StringType.VisibleString, "CN=#1a03612062"),
        (StringType.UniversalString, "CN=#1c0c000000610000002000000062"),
    ],
)
def test_each_form_of_a_string_is_printed_as_java_prints_it(form: StringType, expected: str):
    assert subject_of(certificate([attribute(CN, "a b", form)])) == expected


def test_a_name_may_be_empty():
    assert subject_of(certificate()) == ""


def test_bytes_that_are_no_certificate_are_refused_and_nothing_else_happens():
    whole = certificate([attribute(CN, "me")], [attribute(UID, "x" * 200)])
    dice = random.Random(1)
    for end in range(40):
        with pytest.raises(BadCertificateError):
            subject_of(whole[:end])
    for _ in range(5_000):
        mutated = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            mutated[dice.randrange(250)] = dice.randrange(256)
        with suppress(BadCertificateError):
            subject_of(bytes(mutated))
