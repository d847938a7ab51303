"""How a broker or command connects to a Kafka port that is secured."""

from __future__ import annotations

from dataclasses import dataclass

from regent.transport.kafka.sasl_client import ClientSasl


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """``sasl``: how to log in; None: not at all."""

    sasl: ClientSasl | None = None
