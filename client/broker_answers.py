"""What the brokers say about themselves and their followers, requested from all at once.

A broker of Kafka says nothing of this kind; it is asked for its log directories.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from regent.client.wording import listed
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerInfo, BrokerRegistration
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
    return answers_and_failures(registrations)[0]


def answers_and_failures(
    registrations: Collection[BrokerRegistration],
) -> tuple[BrokerAnswers, Mapping[BrokerId, RegentError]]:
    """Return the answers by broker, without partitions, and why others do not answer."""
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
            answers = {broker_id: answer.result() for broker_id, answer in asked}
        failures = {b: row for b, row in answers.items() if isinstance(row, RegentError)}
        return {b: row for b, row in answers.items() if not isinstance(row, RegentError)}, failures
    finally:
        context.destroy(linger=0)


def silence_of(failures: Mapping[BrokerId, RegentError]) -> Iterator[str]:
    """Yield lines that name the brokers that have not answered: connected ones, and others."""
    from regent.transport.control.client import PeerUnreachableError
    from regent.transport.control.key_files import doubt_of_keys

    apart = [b for b, error in failures.items() if isinstance(error, PeerUnreachableError)]
    for silent, doubt in (
        ([b for b in failures if b not in apart], ""),
        (apart, f"; no connection: does it run, and {doubt_of_keys()}"),
    ):
        if silent:
            alone = len(silent) == 1
            which = f"broker {silent[0]} does" if alone else f"brokers {listed(silent)} do"
            whose = "its" if alone else "their"
            yield (
                f"{which} not answer within {_ASK_TIMEOUT_S} s: warnings of {whose} own are missing"
                f" here{doubt}"
            )


def warnings_of(answers: BrokerAnswers) -> Iterator[str]:
    """Yield a line for each warning of a broker about itself."""
    for broker_id, answer in answers.items():
        for warning in answer.warnings:
            yield f"broker {broker_id}: {warning}"


def failed_log_dirs_of(brokers: Iterable[BrokerInfo]) -> Mapping[BrokerId, list[str]]:
    """Return the failed log directories of brokers of Kafka; none of one that does not answer."""
    from regent.client.broker_request import failed_log_dirs

    of_kafka = [info for info in brokers if info.is_of_kafka][:_MAX_BROKERS]
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        found = executor.map(lambda info: failed_log_dirs(info, _ASK_TIMEOUT_S), of_kafka)
        return {info.broker_id: paths for info, paths in zip(of_kafka, found, strict=True)}


def warnings_of_kafka(brokers: Iterable[BrokerInfo]) -> Iterator[str]:
    """Yield a line for each failed log directory of a broker of Kafka."""
    for broker_id, paths in failed_log_dirs_of(brokers).items():
        for path in paths:
            yield (
                f"broker {broker_id}: log directory {path} has failed: replace its disk, and"
                " restart the broker"
            )


def _ask(context: Context, endpoint: str) -> DescribeMetadataResponse | RegentError:
    from regent.transport.control.remote_ref import RemoteActorRef, ask

    request = DescribeMetadataRequest(topics=())
    try:
        with RemoteActorRef(context, endpoint, client_id=_CLIENT_ID) as actor:
            return ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_TIMEOUT_S)
    except RegentError as error:
        return error
