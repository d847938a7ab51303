"""SaslHandshake, SaslAuthenticate, and the messages of delegation tokens (KIP-48)."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message, since

_NEVER = -1


@message
class SaslHandshakeRequest:
    """Chooses a mechanism of SASL."""

    mechanism: str


@message
class SaslHandshakeResponse:
    """Whether authentication begins, and the mechanisms that there are."""

    error_code: Int16
    mechanisms: tuple[str, ...] = ()


@message
class SaslAuthenticateRequest:
    """One step of an authentication."""

    auth_bytes: bytes


@message
class SaslAuthenticateResponse:
    """The answer to a step."""

    error_code: Int16
    error_message: str | None
    auth_bytes: bytes = b""
    session_lifetime_ms: Int64 = since(1, default=0)


@message
class CreatableRenewers:
    """Who may renew a token."""

    principal_type: str
    principal_name: str


@message
class CreateDelegationTokenRequest:
    """Creates a token; without a name of an owner it is for the client."""

    owner_principal_type: str | None = since(3, default="")
    owner_principal_name: str | None = since(3, default="")
    renewers: tuple[CreatableRenewers, ...]
    max_lifetime_ms: Int64


@message
class CreateDelegationTokenResponse:
    """The token, or an error."""

    error_code: Int16
    principal_type: str
    principal_name: str
    token_requester_principal_type: str = since(3, default="")
    token_requester_principal_name: str = since(3, default="")
    issue_timestamp_ms: Int64 = _NEVER
    expiry_timestamp_ms: Int64 = _NEVER
    max_timestamp_ms: Int64 = _NEVER
    token_id: str = ""
    hmac: bytes = b""
    throttle_time_ms: Int32 = 0


@message
class RenewDelegationTokenRequest:
    """Makes a token expire later."""

    hmac: bytes
    renew_period_ms: Int64


@message
class RenewDelegationTokenResponse:
    """When the token expires."""

    error_code: Int16
    expiry_timestamp_ms: Int64 = _NEVER
    throttle_time_ms: Int32 = 0


@message
class ExpireDelegationTokenRequest:
    """Makes a token expire earlier."""

    hmac: bytes
    expiry_time_period_ms: Int64


@message
class ExpireDelegationTokenResponse:
    """When the token expires."""

    error_code: Int16
    expiry_timestamp_ms: Int64 = _NEVER
    throttle_time_ms: Int32 = 0


@message
class DescribeDelegationTokenOwner:
    """An owner of tokens."""

    principal_type: str
    principal_name: str


@message
class DescribeDelegationTokenRequest:
    """Asks for the tokens of owners; None: of all."""

    owners: tuple[DescribeDelegationTokenOwner, ...] | None


@message
class DescribedDelegationTokenRenewer:
    """Who may renew a token."""

    principal_type: str
    principal_name: str


@message
class DescribedDelegationToken:
    """A token."""

    principal_type: str
    principal_name: str
    token_requester_principal_type: str = since(3, default="")
    token_requester_principal_name: str = since(3, default="")
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: str
    hmac: bytes
    renewers: tuple[DescribedDelegationTokenRenewer, ...]


@message
class DescribeDelegationTokenResponse:
    """The tokens."""

    error_code: Int16
    tokens: tuple[DescribedDelegationToken, ...] = ()
    throttle_time_ms: Int32 = 0
