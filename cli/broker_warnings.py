"""Warnings of the brokers about themselves, requested from all at once.

A broker of Kafka gives none; it is asked for its log directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerInfo, BrokerRegistration
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
                (info.broker_id, executor.submit(_ask, context, endpoint))
                if (endpoint := info.control_peer) is not None
                else (info.broker_id, executor.submit(_warnings_of_kafka, info))
                for info in (r.info for r in list(registrations)[:_MAX_BROKERS])
            ]
            for broker_id, answer in asked:
                for warning in answer.result():
                    yield f"broker {broker_id}: {warning}"
    finally:
        context.destroy(linger=0)


def failed_log_dirs_of(brokers: Iterable[BrokerInfo]) -> Mapping[BrokerId, list[str]]:
    """Return the failed log directories of brokers of Kafka; none of one that does not answer."""
    from regent.client.broker_request import failed_log_dirs

    of_kafka = [info for info in brokers if info.is_of_kafka][:_MAX_BROKERS]
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        found = executor.map(lambda info: failed_log_dirs(info, _ASK_TIMEOUT_S), of_kafka)
        return {info.broker_id: paths for info, paths in zip(of_kafka, found, strict=True)}


def _warnings_of_kafka(info: BrokerInfo) -> tuple[str, ...]:
    from regent.client.broker_request import failed_log_dirs

    return tuple(
        f"log directory {path} has failed: replace its disk, and restart the broker"
        for path in failed_log_dirs(info, _ASK_TIMEOUT_S)
    )


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
