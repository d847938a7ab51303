"""The messages of the Kafka protocol that are declared and not coded by hand, by subject.

The names of the fields are Kafka's, in Python case. Not here: messages on the path of records
(Produce, Fetch, ListOffsets, OffsetForLeaderEpoch), Metadata and ApiVersions. Their handlers encode
them by hand, for speed.

They are here and not beside their bytes (``transport.kafka.message_codec``), because core uses them
as its values: a coordinator answers with a ``JoinGroupResponse``.
"""
