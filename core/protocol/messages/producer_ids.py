"""InitProducerId."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Int64, message, since


@message
class InitProducerIdRequest:
    """A producer asks for its id; the id and the epoch that it has are -1 at first (KIP-360)."""

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = since(3, default=-1)
    producer_epoch: Int16 = since(3, default=-1)


@message
class InitProducerIdResponse:
    """The id and epoch of a producer; -1 with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
