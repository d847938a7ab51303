"""What the commands that are Kafka clients have in common: how they find brokers, and an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regent.cli.output import note
from regent.client.cluster_connection import Cluster
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.config.addresses import bracketed
from regent.core.errors import BadDataError, RegentError


class KafkaClientError(RegentError):
    """Records could not be written or read, or a request about groups failed."""


def tell_throttling() -> Callable[[Any], None]:
    """Return a callback for ``throttle_cb``, which says once that a quota slows the client down."""
    is_told = False

    def tell(event: Any) -> None:
        nonlocal is_told
        if event.throttle_time > 0 and not is_told:
            is_told = True
            note(
                f"regent: because of a quota, broker {event.broker_id} lets this client wait for"
                f" {event.throttle_time:.1f} s"
            )

    return tell


def client_settings(cluster: Cluster) -> dict[str, str | int | float | bool]:
    """Return the settings of a client of librdkafka: it begins with all registered brokers.

    It logs nothing, because commands report errors themselves.
    """
    with cluster.admin() as admin:
        registrations = admin.read_brokers().values()
    infos = [r.info for r in registrations if not isinstance(r, BadDataError)]
    found = map(SECURITY_OF_COMMAND.endpoint_of, infos)
    endpoints = [endpoint for endpoint in found if endpoint is not None]
    if not endpoints:
        why = f"no broker listens for {SECURITY_OF_COMMAND.protocol.value}: see --command-config"
        raise KafkaClientError(why if infos else "no broker is registered")
    servers = ",".join(f"{bracketed(e.host)}:{e.port}" for e in endpoints)
    of_security = SECURITY_OF_COMMAND.for_librdkafka()
    return {
        "bootstrap.servers": servers,
        "client.id": "regent-cli",
        "log_level": 0,
        **of_security,
    }
