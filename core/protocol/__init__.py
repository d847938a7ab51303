"""Requests between processes as plain values; ``transport.codec`` turns them into bytes.

A body is a dataclass (a map on the wire, Kafka's field names in snake case). A row, of which a body
may have a hundred thousand, is a ``NamedTuple`` (an array on the wire, in the declared order). The
epochs of a control request are not in the body but in ``ControlHeader``, so that one encoded body
can be sent to many brokers.
"""
