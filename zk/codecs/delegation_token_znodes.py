"""The data of the znodes of delegation tokens, as ``kafka.server.DelegationTokenManagerZk``."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

import orjson

from regent.core.errors import BadDataError
from regent.core.quota.quota_entities import sanitised
from regent.core.security.delegation_token_manager import DelegationToken
from regent.core.security.session import KafkaPrincipal
from regent.zk.codecs.json_fields import MAX_INT64, Codec, JsonObject, bad_field, decode_object

_VERSION: Final = 3
_FIRST_WITH_REQUESTER: Final = 3


def _encode_token(token: DelegationToken) -> bytes:
    return orjson.dumps(
        {
            "version": _VERSION,
            "owner": sanitised(str(token.owner)),
            "tokenRequester": sanitised(str(token.requester)),
            "renewers": [sanitised(str(renewer)) for renewer in token.renewers],
            "issueTimestamp": token.issue_timestamp_ms,
            "maxTimestamp": token.max_timestamp_ms,
            "expiryTimestamp": token.expiry_timestamp_ms,
            "tokenId": token.token_id,
        }
    )


def _decode_token(node: str, data: bytes, token_id: str) -> DelegationToken:
    """Return the token of version 1 to 3; until 2 its requester is its owner.

    Raises ``BadDataError``, also when it is the data of another token.
    """
    json = decode_object(data, node)
    version = json.integer("version", minimum=1, maximum=_VERSION)
    owner = _principal(node, "owner", json.string("owner"))
    requester = owner
    if version >= _FIRST_WITH_REQUESTER:
        requester = _principal(node, "tokenRequester", json.string("tokenRequester"))
    if json.string("tokenId") != token_id:
        raise bad_field(node, "tokenId", "the name of the znode", json.string("tokenId"))
    return DelegationToken(
        token_id,
        owner,
        requester,
        tuple(_principal(node, "renewers", text) for text in json.array("renewers")),
        _timestamp(json, "issueTimestamp"),
        _timestamp(json, "maxTimestamp"),
        _timestamp(json, "expiryTimestamp"),
    )


def _timestamp(json: JsonObject, key: str) -> int:
    return json.integer(key, minimum=-MAX_INT64 - 1, maximum=MAX_INT64)


def _principal(node: str, key: str, text: object) -> KafkaPrincipal:
    kind, colon, name = unquote_plus(text if isinstance(text, str) else "").partition(":")
    if not colon:
        raise bad_field(node, key, "<type>:<name>", text)
    return KafkaPrincipal(kind, name)


def _encode_change(token_id: str) -> bytes:
    return token_id.encode()


def _decode_change(node: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadDataError(f"{node}: not text: {data[:60]!r}") from None


def _encode_secret_check(check: str) -> bytes:
    return orjson.dumps({"version": 1, "secretCheck": check})


def _decode_secret_check(node: str, data: bytes) -> str | None:
    """Return the check; None: no broker of ours has written one."""
    return decode_object(data, node).optional_string("secretCheck") if data else None


TOKEN = Codec(_encode_token, _decode_token)
TOKEN_CHANGE = Codec(_encode_change, _decode_change)
SECRET_CHECK = Codec(_encode_secret_check, _decode_secret_check)
