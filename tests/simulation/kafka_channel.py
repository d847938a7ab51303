"""A controller's connection to one broker in Kafka's protocol, as ``KafkaControlChannel``.

One request is unanswered at a time. When it is given up, the connection is closed: what the broker
has not received yet is lost. So a broker of Kafka gets no late copy after a later request.
"""

from __future__ import annotations

from functools import partial

from regent.core.controller import effects as fx
from regent.core.model import BrokerInfo
from regent.transport.kafka.control_channel import KafkaControlBody
from tests.simulation.channel import Channel
from tests.simulation.kafka_protocol import (
    KafkaAnswer,
    KafkaCall,
    control_calls,
    kafka_endpoint,
    read_control_answers,
)
from tests.simulation.network import AnswerBody, Exchange


class KafkaChannel(Channel):
    """For one broker epoch, as ``Channel``; the versions are those of the broker's release."""

    def _endpoint_of(self, info: BrokerInfo) -> str | None:
        return kafka_endpoint(info)

    def _may_send_with(self, first: fx.SendControlRequest, second: fx.SendControlRequest) -> bool:
        return False

    def _attempt(self, effect: fx.SendControlRequest) -> Exchange:
        assert self.endpoint is not None
        release = self._sender.world.release_at(self.endpoint)
        calls = control_calls(KafkaControlBody(effect.request), effect.header, release)
        return self._call(effect, calls, [])

    def _call(
        self, effect: fx.SendControlRequest, calls: list[KafkaCall], answers: list[KafkaAnswer]
    ) -> Exchange:
        assert self.endpoint is not None
        return self._sender.world.network.ask(
            self._sender,
            self.endpoint,
            calls[len(answers)],
            partial(self._on_call_answered, effect, calls, answers),
        )

    def _on_call_answered(
        self,
        effect: fx.SendControlRequest,
        calls: list[KafkaCall],
        answers: list[KafkaAnswer],
        answer: AnswerBody,
    ) -> None:
        assert isinstance(answer, KafkaAnswer)
        answers = [*answers, answer]
        if len(answers) < len(calls):
            self._attempts[:] = [self._call(effect, calls, answers)]
            return
        self._on_answer(effect, read_control_answers(effect.request, answers, calls[0].version))

    def _give_up(self) -> None:
        for attempt in self._attempts:
            self._sender.world.network.drop_request(attempt)
        super()._give_up()
