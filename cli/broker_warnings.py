"""Warnings of the brokers about themselves, requested from all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from regent.core.errors import RegentError
from regent.core.model import BrokerRegistration
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse

if TYPE_CHECKING:
    from regent.transport.control.sockets import Context

_AT_ONCE = 32
_ASK_TIMEOUT_S = 0.5
_MAX_BROKERS = 200  # metrics are better for a larger cluster


def broker_warnings(registrations: Collection[BrokerRegistration]) -> Iterator[str]:
    """Yield a line for each warning; skip brokers that do not answer."""
    from regent.transport.control.key_files import keys_of_command
    from regent.transport.control.sockets import new_context

    context = new_context(keys_of_command())
    try:
        with ThreadPoolExecutor(_AT_ONCE) as executor:
            asked = [
                (registration.info.broker_id, executor.submit(_ask, context, endpoint))
                for registration in list(registrations)[:_MAX_BROKERS]
                if (endpoint := registration.info.control_peer) is not None
            ]
            for broker_id, answer in asked:
                for warning in answer.result():
                    yield f"broker {broker_id}: {warning}"
    finally:
        context.destroy(linger=0)


def _ask(context: Context, endpoint: str) -> tuple[str, ...]:
    from regent.cli.remote_actors import CLIENT_ID
    from regent.transport.control.remote_ref import RemoteActorRef, ask

    request = DescribeMetadataRequest(topics=())
    try:
        with RemoteActorRef(context, endpoint, client_id=CLIENT_ID) as actor:
            answer = ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_TIMEOUT_S)
    except RegentError:
        return ()
    return answer.warnings
