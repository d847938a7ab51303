"""What the brokers say about themselves and their followers, requested from all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse

if TYPE_CHECKING:
    from regent.transport.control.sockets import Context

BrokerAnswers = Mapping[BrokerId, DescribeMetadataResponse]

_CLIENT_ID: Final = "regent-cli"
_AT_ONCE: Final = 32
_ASK_TIMEOUT_S: Final = 0.5
_MAX_BROKERS: Final = 200  # metrics are better for a larger cluster


def ask_brokers(registrations: Collection[BrokerRegistration]) -> BrokerAnswers:
    """Return the answers by broker, without partitions; skip brokers that do not answer."""
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
            answers = [(broker_id, answer.result()) for broker_id, answer in asked]
            return {broker_id: answer for broker_id, answer in answers if answer is not None}
    finally:
        context.destroy(linger=0)


def warnings_of(answers: BrokerAnswers) -> Iterator[str]:
    """Yield a line for each warning of a broker about itself."""
    for broker_id, answer in answers.items():
        for warning in answer.warnings:
            yield f"broker {broker_id}: {warning}"


def _ask(context: Context, endpoint: str) -> DescribeMetadataResponse | None:
    from regent.transport.control.remote_ref import RemoteActorRef, ask

    request = DescribeMetadataRequest(topics=())
    try:
        with RemoteActorRef(context, endpoint, client_id=_CLIENT_ID) as actor:
            return ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_TIMEOUT_S)
    except RegentError:
        return None
