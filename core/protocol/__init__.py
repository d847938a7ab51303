"""Requests between processes as plain values; ``transport.codec`` turns them into bytes.

A body is a dataclass (a map on the wire, Kafka's field names in snake case); a row that comes by
the hundred thousand is a ``NamedTuple`` (an array on the wire, in the declared order). Epochs of a
control request travel beside the body, in ``ControlHeader``, so that one encoded body can be sent
to many brokers.
"""
