"""One request to one broker over Kafka's protocol, without a Kafka client library."""

from __future__ import annotations

import struct
from contextlib import closing
from typing import Final, TypeVar

from regent.client.command_config import SECURITY_OF_COMMAND
from regent.config.addresses import tcp_endpoint
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerInfo, EndPoint
from regent.core.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from regent.transport.control.client import (
    PeerUnreachableError,
    RequestError,
    RequestFailedError,
)
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

T = TypeVar("T")

_CONNECT_S: Final = 5.0  # a host that is down must not use up the time for the others
_CLIENT_ID: Final = "regent"
_LOG_DIRS_VERSION: Final = 1  # all releases that can be in the cluster know it


class NoAnswerError(Exception):
    """A broker has not given a whole answer in time; the message says why."""


class NotConnectedError(NoAnswerError):
    """A broker cannot be reached; nothing was sent to it."""


def ask_broker(
    broker: EndPoint,
    api: tuple[KafkaApiKey, int],
    request: object,
    answer: type[T],
    timeout_s: float,
) -> T:
    """Send a request in a version of an API, over a new connection; return the broker's answer.

    Raises ``NoAnswerError``, ``NotConnectedError`` if nothing was sent, and ``RegentError`` if the
    broker does not log us in, or a number does not fit into the request.
    """
    is_flexible = api[1] >= FIRST_FLEXIBLE_VERSION[api[0]]
    try:
        body = encoded(request, api[1], is_flexible=is_flexible)
    except (struct.error, OverflowError):
        kind = type(request).__name__
        raise RegentError(f"a number does not fit into a {kind} of Kafka's protocol") from None
    connection = BrokerConnection(
        tcp_endpoint(broker.host, broker.port),
        client_id=_CLIENT_ID,
        connect_timeout_ms=round(min(timeout_s, _CONNECT_S) * 1000),
        security=SECURITY_OF_COMMAND.security,
    )
    with closing(connection):
        try:
            received = connection.exchange(*api, body, timeout_ms=round(timeout_s * 1000))
            return decoded(answer, received, api[1], is_flexible=is_flexible)
        except PeerUnreachableError as error:
            raise NotConnectedError(str(error)) from None
        except RequestFailedError as error:
            if error.error_code is Errors.SASL_AUTHENTICATION_FAILED:
                raise RegentError(str(error)) from None
            raise NoAnswerError(str(error)) from None
        except (RequestError, MalformedRequestError) as error:
            raise NoAnswerError(str(error)) from None


def failed_log_dirs(info: BrokerInfo, timeout_s: float) -> list[str]:
    """Return the failed log directories of a broker; none if it does not answer in time."""
    endpoint = SECURITY_OF_COMMAND.endpoint_of(info)
    if endpoint is None:
        return []
    request = DescribeLogDirsRequest(topics=())
    api = (KafkaApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION)
    try:
        answer = ask_broker(endpoint, api, request, DescribeLogDirsResponse, timeout_s)
    except (NoAnswerError, RegentError):
        return []
    return [r.log_dir for r in answer.results if r.error_code == Errors.KAFKA_STORAGE_ERROR]
