"""The table ``[sasl]``: how clients log in, and how this broker logs in to others."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import LONG_INTERVAL_MS, NOT_NEGATIVE
from regent.core.setting import INT_MAX, LONG_MAX, ConfigType, setting

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_NAMES = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER (GSSAPI, Kerberos, is not offered)"


@dataclass(frozen=True)
class SaslConfig:
    """The table ``[sasl]``, for listeners whose protocol is SASL_PLAINTEXT or SASL_SSL."""

    sasl_enabled_mechanisms: str = setting(
        "SCRAM-SHA-256,SCRAM-SHA-512",
        f"The mechanisms with which clients may log in, separated by commas: {_NAMES}.",
        type=ConfigType.LIST,
        choices=_MECHANISMS,
        form=f"one or more of {_NAMES}, separated by commas",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "SCRAM-SHA-512",
        "The mechanism with which this broker logs in to other brokers. The brokers' listener must"
        " have it in sasl_enabled_mechanisms.",
        choices=_MECHANISMS,
        form=f"one of {_NAMES}",
    )
    sasl_inter_broker_user: str = setting(
        "",
        "The user that this broker logs in as at other brokers. The users broker-N may only"
        " replicate as broker N; `regent users add` makes one before the first start.",
        ours=True,
    )
    sasl_inter_broker_password_file: str = setting(
        "",
        "The file with the password of that user, or with its token for OAUTHBEARER: one line,"
        " readable by the user of the broker only. It is read for each login.",
        ours=True,
    )
    sasl_plain_users_file: str = setting(
        "",
        "The users of PLAIN: a file with lines NAME:scrypt$…, which `regent users line` prints,"
        " readable by the user of the broker only. It is read again when it changes.",
        ours=True,
    )
    allow_plain_without_tls: bool = setting(
        False,
        "Whether clients may send passwords (PLAIN) or tokens (OAUTHBEARER) unencrypted over a"
        " network: on a SASL_PLAINTEXT listener that is not on loopback.",
        ours=True,
    )
    sasl_server_max_receive_size: int = setting(
        65_536,
        "The largest request of a client that has not logged in.",
        limits=NOT_NEGATIVE,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100,
        "How long a client whose login fails waits for the answer. It must be shorter than"
        " connections_max_idle_ms.",
        limits=(0, 60_000),
    )
    connections_max_reauth_ms: int = setting(
        0,
        "How long a login is valid: then the client must log in again, or its connection is"
        " closed. 0: as long as the token of the client, if it has one, else for ever.",
        limits=(0, LONG_MAX),
        type=ConfigType.LONG,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "",
        "Where the keys are that sign the tokens of OAUTHBEARER: https://… or file://….",
        pattern="|https://.+|file:///.+",
        form="https://HOST/PATH or file:///PATH",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000,
        "How often these keys are read again.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100,
        "The first pause after these keys could not be read; each further one is twice as long.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000, "The longest pause.", limits=LONG_INTERVAL_MS, type=ConfigType.LONG
    )
    sasl_oauthbearer_expected_audience: str = setting(
        "",
        "The audiences (claim aud) that are accepted, separated by commas. Required for"
        " OAUTHBEARER with keys.",
        type=ConfigType.LIST,
    )
    sasl_oauthbearer_expected_issuer: str = setting(
        "",
        "The issuer (claim iss) that is accepted. Required for OAUTHBEARER with keys.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, "How far the clock of the issuer may be from this one, in seconds.", limits=(0, INT_MAX)
    )
    sasl_oauthbearer_sub_claim_name: str = setting("sub", "The claim with the user of a token.")
    sasl_oauthbearer_unsecured: bool = setting(
        False,
        "Whether OAUTHBEARER accepts tokens without a signature, which everybody can make: for"
        " tests, on loopback only, instead of keys.",
        ours=True,
    )
