"""ApiVersions."""

from __future__ import annotations

from regent.core.protocol.message import message, since


@message
class ApiVersionsRequest:
    """A client asks what is supported, and says what it is (KIP-511)."""

    client_software_name: str = since(3, default="")
    client_software_version: str = since(3, default="")
