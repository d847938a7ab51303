"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from regent.core.protocol.message import Int8, Int16, Int32, message


@message
class UserName:
    """A user to describe."""

    name: str


@message
class DescribeUserScramCredentialsRequest:
    """A client asks which credentials users have; None, or no user: all users."""

    users: tuple[UserName, ...] | None


@message
class CredentialInfo:
    """What may be known of a credential; ``mechanism`` 1 is SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    mechanism: Int8
    iterations: Int32


@message
class DescribeUserScramCredentialsResult:
    """The credentials of a user, or the reason why there are none."""

    user: str
    error_code: Int16 = 0
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


@message
class DescribeUserScramCredentialsResponse:
    """A result for each user."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    results: tuple[DescribeUserScramCredentialsResult, ...] = ()


@message
class ScramCredentialDeletion:
    """A credential to remove."""

    name: str
    mechanism: Int8


@message
class ScramCredentialUpsertion:
    """A credential to set; the client has salted the password."""

    name: str
    mechanism: Int8
    iterations: Int32
    salt: bytes
    salted_password: bytes


@message
class AlterUserScramCredentialsRequest:
    """Removes and sets credentials of users."""

    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


@message
class AlterUserScramCredentialsResult:
    """The outcome for a user: all changes, or none."""

    user: str
    error_code: Int16
    error_message: str | None


@message
class AlterUserScramCredentialsResponse:
    """A result for each user."""

    throttle_time_ms: Int32 = 0
    results: tuple[AlterUserScramCredentialsResult, ...] = ()
