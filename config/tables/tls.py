"""The table ``[tls]``: keys, certificates and what they prove, of listeners and of clients."""

from __future__ import annotations

from dataclasses import dataclass

from regent.core.setting import ConfigType, Scope, setting

_ANY_TEXT = r"(?s).*"  # PEM has several lines
_OF_ONE = {"scope": Scope.PER_BROKER}
_STORE = {"pattern": "PEM|PKCS12|JKS", "form": "PEM or PKCS12", **_OF_ONE}
_SECRET = {"type": ConfigType.PASSWORD, "pattern": _ANY_TEXT, **_OF_ONE}


@dataclass(frozen=True)
class TlsConfig:
    """The table ``[tls]``."""

    ssl_keystore_type: str = setting(
        "PEM",
        "The form of the file with the key: PEM or PKCS12. A keystore of Java (JKS) is converted"
        " with `keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype"
        " PKCS12`.",
        **_STORE,
    )
    ssl_keystore_location: str = setting(
        "",
        "The file with the private key and the certificates that belong to it: first the one of"
        " the key, then those that signed it. Only the user of the broker may read the file. A"
        " changed file is taken within a minute, at once after SIGHUP, without a restart, if its"
        " certificate has the same subject.",
        **_OF_ONE,
    )
    ssl_keystore_key: str = setting(
        "",
        "The private key itself, as PEM text, instead of a file. The file of settings must be"
        " private then.",
        **_SECRET,
    )
    ssl_keystore_certificate_chain: str = setting(
        "", "The certificates that belong to ssl_keystore_key, as PEM text.", **_SECRET
    )
    ssl_keystore_password: str = setting("", "The password of a PKCS12 file.", **_SECRET)
    ssl_key_password: str = setting(
        "", "The password of the private key, if the key is encrypted.", **_SECRET
    )
    ssl_truststore_type: str = setting(
        "PEM", "The form of the file with trusted certificates: PEM or PKCS12.", **_STORE
    )
    ssl_truststore_location: str = setting(
        "",
        "The file with the certificates of those who may sign the certificates of the other side."
        " Who they sign for decides who is which user: for clients do not name public authorities."
        " A broker or command that connects trusts the system's authorities if it is empty.",
        **_OF_ONE,
    )
    ssl_truststore_certificates: str = setting(
        "", "The trusted certificates themselves, as PEM text, instead of a file.", **_SECRET
    )
    ssl_truststore_password: str = setting("", "The password of a PKCS12 file.", **_SECRET)
    ssl_client_auth: str = setting(
        "none",
        "Whether clients prove who they are by a certificate: required, requested (who has none is"
        " User:ANONYMOUS), or none.",
        choices=("required", "requested", "none"),
        **_OF_ONE,
    )
    ssl_enabled_protocols: str = setting(
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that are spoken.",
        type=ConfigType.LIST,
        choices=("TLSv1.2", "TLSv1.3"),
        **_OF_ONE,
    )
    ssl_cipher_suites: str = setting(
        "",
        "The ciphers of TLS 1.2, by OpenSSL's names, the preferred first; empty: Python's choice."
        " Those of TLS 1.3 cannot be chosen.",
        type=ConfigType.LIST,
        **_OF_ONE,
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        "What makes the name of a user out of the subject of its certificate, the first rule that"
        " matches: DEFAULT (the subject itself: CN=me,O=company), or RULE:PATTERN/REPLACEMENT/ with"
        " L or U behind it for small or capital letters: RULE:^CN=([^,]+),.*$/$1/. Who has a"
        " certificate that no rule matches is refused.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "Whether who connects compares the name or address of the server with its certificate:"
        " https; empty: not at all.",
        pattern=r"(?i:https)|",
        form="https, or empty",
        **_OF_ONE,
    )
    ssl_allow_dn_changes: bool = setting(
        False, "Whether a changed keystore may have a certificate with another subject."
    )
    ssl_allow_san_changes: bool = setting(
        False,
        "Whether a changed keystore may lack names or addresses that the certificate had.",
    )
