"""``tokens``: create, show, renew and expire delegation tokens, as Kafka's DelegationTokenCommand.

The HMAC of a token is its password. So no option takes one: a token is named by its id, and the
command asks a broker for the HMAC.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from regent.cli.lazy_group import HelpfulGroup
from regent.cli.output import Output, examples, output_option, print_json, print_table
from regent.client.broker_request import NoAnswerError, NotConnectedError, ask_broker
from regent.client.cluster_connection import Cluster, bootstrap_option, pass_cluster
from regent.client.wording import moment_text
from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.authentication import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from regent.core.security.session import KafkaPrincipal
from regent.transport.kafka.api import KafkaApiKey

T = TypeVar("T")

_CREATE: Final = KafkaApiKey.CREATE_DELEGATION_TOKEN, 3
_RENEW: Final = KafkaApiKey.RENEW_DELEGATION_TOKEN, 2
_EXPIRE: Final = KafkaApiKey.EXPIRE_DELEGATION_TOKEN, 2
_DESCRIBE: Final = KafkaApiKey.DESCRIBE_DELEGATION_TOKEN, 3
_TIMEOUT_S: Final = 30.0
_COLUMNS: Final = ("token id", "owner", "requester", "renewers", "issued", "expires", "ends")

_REASONS: Final = {
    Errors.DELEGATION_TOKEN_AUTH_DISABLED: (
        "the broker has no delegation tokens: set"
        " delegation_tokens.delegation_token_secret_key_file at all brokers"
    ),
    Errors.DELEGATION_TOKEN_NOT_FOUND: "there is no such token any more",
    Errors.DELEGATION_TOKEN_OWNER_MISMATCH: (
        "only the owner of a token and its renewers may renew or expire it"
    ),
    Errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: (
        "the broker does not know who asks: use a listener with a login, and do not log in with a"
        " token"
    ),
    Errors.DELEGATION_TOKEN_AUTHORIZATION_FAILED: (
        "a token of another user needs the permission CreateTokens of this user"
    ),
    Errors.DELEGATION_TOKEN_EXPIRED: "the token has expired: it can only be deleted",
    Errors.INVALID_PRINCIPAL_TYPE: "a renewer must be a user, User:NAME",
}


class TokenError(RegentError):
    """A broker refuses a request about a token, or none answers."""


def _principal(text: str) -> KafkaPrincipal:
    """Parse an option."""
    kind, _, name = text.strip().partition(":")
    if not (kind and name):
        raise click.BadParameter(f"{text!r} must be TYPE:NAME, such as User:alice")
    return KafkaPrincipal(kind, name)


@click.group(cls=HelpfulGroup)
def tokens() -> None:
    """Create, show, renew and expire delegation tokens.

    Who has a token of a user logs in as this user: with SCRAM, the id of the token as the name,
    its HMAC as the password, and tokenauth=true.
    """


@tokens.command(
    epilog=examples(
        "tokens create --bootstrap-server HOST:9093",
        "tokens create --renewer-principal User:scheduler --max-life-time-period 86400000",
    )
)
@click.option(
    "--owner-principal",
    "owner",
    type=_principal,
    metavar="User:NAME",
    help="Whom the token logs in.  [default: who asks]",
)
@click.option(
    "--renewer-principal",
    "renewers",
    type=_principal,
    multiple=True,
    metavar="User:NAME",
    help="Who may renew and expire it, beside its owner.",
)
@click.option(
    "--max-life-time-period",
    "max_lifetime_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="How long it lives at most.  [default: delegation_token_max_lifetime_ms]",
)
@output_option
@bootstrap_option
@pass_cluster
def create(
    cluster: Cluster,
    /,
    owner: KafkaPrincipal | None,
    renewers: Sequence[KafkaPrincipal],
    max_lifetime_ms: int,
    output: str,
) -> None:
    """Create a token, and print it with its HMAC, which is its password."""
    request = CreateDelegationTokenRequest(
        owner_principal_type=owner.principal_type if owner else "",
        owner_principal_name=owner.name if owner else "",
        renewers=tuple(
            CreatableRenewers(principal_type=r.principal_type, principal_name=r.name)
            for r in renewers
        ),
        max_lifetime_ms=max_lifetime_ms,
    )
    created = _ask(cluster, _CREATE, request, CreateDelegationTokenResponse)
    token = DescribedDelegationToken(
        principal_type=created.principal_type,
        principal_name=created.principal_name,
        token_requester_principal_type=created.token_requester_principal_type,
        token_requester_principal_name=created.token_requester_principal_name,
        issue_timestamp=created.issue_timestamp_ms,
        expiry_timestamp=created.expiry_timestamp_ms,
        max_timestamp=created.max_timestamp_ms,
        token_id=created.token_id,
        hmac=created.hmac,
        renewers=(),
    )
    row = {**_row(token, with_hmac=True), "renewers": list(map(str, renewers))}
    if output == Output.JSON:
        print_json(row)
    else:
        _print([row])


@tokens.command(epilog=examples("tokens describe", "tokens describe --owner-principal User:alice"))
@click.option(
    "--owner-principal",
    "owners",
    type=_principal,
    multiple=True,
    metavar="User:NAME",
    help="Only tokens of this owner, requester or renewer.  [default: all that you may see]",
)
@click.option("--hmac", "with_hmac", is_flag=True, help="Show the HMACs, which are passwords.")
@output_option
@bootstrap_option
@pass_cluster
def describe(
    cluster: Cluster, /, owners: Sequence[KafkaPrincipal], with_hmac: bool, output: str
) -> None:
    """List tokens: your own, and those that you may describe."""
    rows = [_row(token, with_hmac=with_hmac) for token in _described(cluster, owners)]
    if output == Output.JSON:
        print_json(rows)
    else:
        _print(rows)


@tokens.command(epilog=examples("tokens renew TOKEN_ID --renew-time-period 3600000"))
@click.argument("token_id")
@click.option(
    "--renew-time-period",
    "period_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="How long it is valid from now on.  [default: delegation_token_expiry_time_ms]",
)
@bootstrap_option
@pass_cluster
def renew(cluster: Cluster, /, token_id: str, period_ms: int) -> None:
    """Let a token expire later, but not after its end."""
    hmac = _hmac(cluster, token_id)
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    answer = _ask(cluster, _RENEW, request, RenewDelegationTokenResponse)
    click.echo(f"Token {token_id} expires at {moment_text(answer.expiry_timestamp_ms)}.")


@tokens.command(epilog=examples("tokens expire TOKEN_ID"))
@click.argument("token_id")
@click.option(
    "--expiry-time-period",
    "period_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="How long it is valid from now on.  [default: it is deleted now]",
)
@bootstrap_option
@pass_cluster
def expire(cluster: Cluster, /, token_id: str, period_ms: int) -> None:
    """Delete a token, or let it expire earlier."""
    hmac = _hmac(cluster, token_id)
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    answer = _ask(cluster, _EXPIRE, request, ExpireDelegationTokenResponse)
    if period_ms < 0:
        click.echo(f"Deleted token {token_id}.")
    else:
        click.echo(f"Token {token_id} expires at {moment_text(answer.expiry_timestamp_ms)}.")


def _ask(
    cluster: Cluster, api: tuple[KafkaApiKey, int], request: object, answer_type: type[T]
) -> T:
    """Ask the brokers until one can be reached. Raises ``TokenError``.

    A request that was sent is not repeated: it may have been done.
    """
    reason = "there is none"
    for broker in cluster.brokers():
        try:
            found: Any = ask_broker(broker, api, request, answer_type, _TIMEOUT_S)
        except NotConnectedError as error:
            reason = f"{broker.host}:{broker.port}: {error}"
            continue
        except NoAnswerError as error:
            raise TokenError(
                f"broker {broker.host}:{broker.port} did not answer: {error}"
            ) from None
        if found.error_code:
            refused = Errors(found.error_code)
            raise TokenError(_REASONS.get(refused, f"the broker answers {refused.name}"))
        return found  # type: ignore[no-any-return]
    raise TokenError(f"no broker can be reached: {reason}")


def _described(
    cluster: Cluster, owners: Iterable[KafkaPrincipal]
) -> Sequence[DescribedDelegationToken]:
    rows = tuple(
        DescribeDelegationTokenOwner(principal_type=o.principal_type, principal_name=o.name)
        for o in owners
    )
    request = DescribeDelegationTokenRequest(owners=rows or None)
    return _ask(cluster, _DESCRIBE, request, DescribeDelegationTokenResponse).tokens


def _hmac(cluster: Cluster, token_id: str) -> bytes:
    for token in _described(cluster, ()):
        if token.token_id == token_id:
            return token.hmac
    raise TokenError(f"there is no token {token_id} that you may see: see `tokens describe`")


def _row(token: DescribedDelegationToken, *, with_hmac: bool) -> dict[str, Any]:
    row = {
        "token_id": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "requester": (
            f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        ),
        "renewers": [f"{r.principal_type}:{r.principal_name}" for r in token.renewers],
        "issued": moment_text(token.issue_timestamp),
        "expires": moment_text(token.expiry_timestamp),
        "ends": moment_text(token.max_timestamp),
    }
    return {**row, "hmac": base64.b64encode(token.hmac).decode()} if with_hmac else row


def _print(rows: Sequence[dict[str, Any]]) -> None:
    columns = [*_COLUMNS, "hmac"] if rows and "hmac" in rows[0] else _COLUMNS
    print_table(columns, [[*({**r, "renewers": ",".join(r["renewers"])}).values()] for r in rows])
