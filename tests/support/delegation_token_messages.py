"""The messages of delegation tokens as classes of kafka-python, which has no schemas of them.

The schemas are those of Kafka 3.9, one field a line.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final
from unittest.mock import patch

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka.protocol.api_data
    from kafka.protocol.api_message import ApiMessage

SCHEMAS: Final[Mapping[str, tuple[int, int, str]]] = {
    "CreateDelegationTokenRequest": (
        38,
        3,
        """
        OwnerPrincipalType string 3+ nullable
        OwnerPrincipalName string 3+ nullable
        Renewers []CreatableRenewers 0+
          PrincipalType string 0+
          PrincipalName string 0+
        MaxLifetimeMs int64 0+
        """,
    ),
    "CreateDelegationTokenResponse": (
        38,
        3,
        """
        ErrorCode int16 0+
        PrincipalType string 0+
        PrincipalName string 0+
        TokenRequesterPrincipalType string 3+
        TokenRequesterPrincipalName string 3+
        IssueTimestampMs int64 0+
        ExpiryTimestampMs int64 0+
        MaxTimestampMs int64 0+
        TokenId string 0+
        Hmac bytes 0+
        ThrottleTimeMs int32 0+
        """,
    ),
    "RenewDelegationTokenRequest": (39, 2, "Hmac bytes 0+\nRenewPeriodMs int64 0+"),
    "RenewDelegationTokenResponse": (
        39,
        2,
        "ErrorCode int16 0+\nExpiryTimestampMs int64 0+\nThrottleTimeMs int32 0+",
    ),
    "ExpireDelegationTokenRequest": (40, 2, "Hmac bytes 0+\nExpiryTimePeriodMs int64 0+"),
    "ExpireDelegationTokenResponse": (
        40,
        2,
        "ErrorCode int16 0+\nExpiryTimestampMs int64 0+\nThrottleTimeMs int32 0+",
    ),
    "DescribeDelegationTokenRequest": (
        41,
        3,
        """
        Owners []DescribeDelegationTokenOwner 0+ nullable
          PrincipalType string 0+
          PrincipalName string 0+
        """,
    ),
    "DescribeDelegationTokenResponse": (
        41,
        3,
        """
        ErrorCode int16 0+
        Tokens []DescribedDelegationToken 0+
          PrincipalType string 0+
          PrincipalName string 0+
          TokenRequesterPrincipalType string 3+
          TokenRequesterPrincipalName string 3+
          IssueTimestamp int64 0+
          ExpiryTimestamp int64 0+
          MaxTimestamp int64 0+
          TokenId string 0+
          Hmac bytes 0+
          Renewers []DescribedDelegationTokenRenewer 0+
            PrincipalType string 0+
            PrincipalName string 0+
        ThrottleTimeMs int32 0+
        """,
    ),
}
"""The API key, the last version and the fields of each."""


def _schema(name: str, package: object = None) -> dict[str, Any]:
    key, last, fields = SCHEMAS[name]
    return {
        "apiKey": key,
        "type": "request" if name.endswith("Request") else "response",
        "name": name,
        "validVersions": f"0-{last}",
        "flexibleVersions": "2+",
        "fields": _fields(fields),
    }


def _fields(text: str) -> list[dict[str, Any]]:
    """The fields; a line that is further to the right is in the structure above it."""
    top: list[dict[str, Any]] = []
    structures = [(-1, top)]
    for indent, field in _lines(text):
        while structures[-1][0] >= indent:
            structures.pop()
        structures[-1][1].append(field)
        if field["type"].startswith("[]"):
            field["fields"] = []
            structures.append((indent, field["fields"]))
    return top


def _lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line in filter(str.strip, text.splitlines()):
        name, kind, versions, *nullable = line.split()
        field = {"name": name, "type": kind, "versions": versions}
        if nullable:
            field["nullableVersions"] = versions
        yield len(line) - len(line.lstrip()), field


def _message(name: str) -> Any:
    message: Any = ApiMessage
    with patch.object(kafka.protocol.api_data, "load_json", _schema):
        return type(message)(name, (message,), {"__module__": __name__})


CreateDelegationTokenRequest = _message("CreateDelegationTokenRequest")
CreateDelegationTokenResponse = _message("CreateDelegationTokenResponse")
RenewDelegationTokenRequest = _message("RenewDelegationTokenRequest")
RenewDelegationTokenResponse = _message("RenewDelegationTokenResponse")
ExpireDelegationTokenRequest = _message("ExpireDelegationTokenRequest")
ExpireDelegationTokenResponse = _message("ExpireDelegationTokenResponse")
DescribeDelegationTokenRequest = _message("DescribeDelegationTokenRequest")
DescribeDelegationTokenResponse = _message("DescribeDelegationTokenResponse")
