"""Questions to a broker over Kafka's protocol: whether it leads, and whether it takes a record.

They are sent before a stopped broker continues, and wait in its socket: so it answers them before
it hears of anything that has happened meanwhile.
"""

from __future__ import annotations

import socket
from typing import Final

from regent.core.errors import Errors, RegentError
from regent.testing.waits import scaled
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.primitives import Reader, Writer

_LIST_OFFSETS: Final = (KafkaApiKey.LIST_OFFSETS, 1)
_PRODUCE: Final = (KafkaApiKey.PRODUCE, 3)
_LATEST: Final = -1
_NO_REPLICA: Final = -1
_ALL: Final = -1
_TIMEOUT_S: Final = scaled(20.0)
_PRODUCE_TIMEOUT_MS: Final = 5_000
_BATCH: Final = bytes.fromhex(  # one record with the value "x"
    "0000000000000000000000390000000002dbcd7cd800000000000000000174876e8000"
    "00000174876e8000ffffffffffffffffffffffffffff000000010e00000001027800"
)


class KafkaQuestions:
    """A connection to a broker at ``host:port``. Answers come in the sequence of the questions."""

    def __init__(self, host: str, port: int, topic: str) -> None:
        self._topic = topic
        self._socket = socket.create_connection((host, port), _TIMEOUT_S)
        self._answers = self._socket.makefile("rb")

    def ask_whether_it_leads(self) -> None:
        """Ask for the end of partition 0, which only a leader tells."""
        question = Writer()
        question.int32(_NO_REPLICA)
        self._begin(question)
        question.int64(_LATEST)
        self._send(_LIST_OFFSETS, question)

    def produce(self) -> None:
        """Send a record for partition 0 with acks=all."""
        question = Writer()
        question.nullable_string(None)
        question.int16(_ALL)
        question.int32(_PRODUCE_TIMEOUT_MS)
        self._begin(question)
        question.bytes_(_BATCH)
        self._send(_PRODUCE, question)

    def is_answered_without_error(self) -> bool:
        """Return whether the answer to the next question has no error."""
        size = int.from_bytes(self._read(4))
        answer = Reader(memoryview(self._read(size)))
        answer.int32()  # the correlation id
        answer.array_length()
        answer.string()
        answer.array_length()
        answer.int32()  # the partition
        return answer.int16() == Errors.NONE

    def close(self) -> None:
        """Disconnect."""
        self._answers.close()
        self._socket.close()

    def _begin(self, question: Writer) -> None:
        """Write that the question is about partition 0 of one topic."""
        question.array_length(1)
        question.string(self._topic)
        question.array_length(1)
        question.int32(0)

    def _send(self, api: tuple[KafkaApiKey, int], question: Writer) -> None:
        header = Writer()
        header.int16(api[0])
        header.int16(api[1])
        header.int32(0)
        header.nullable_string("designs")
        frame = header.whole() + question.whole()
        self._socket.sendall(len(frame).to_bytes(4) + frame)

    def _read(self, size: int) -> bytes:
        try:
            found = self._answers.read(size)
        except OSError as error:
            raise RegentError(f"the broker does not answer: {error}") from None
        if len(found) < size:
            raise RegentError("the broker has closed the connection")
        return found
