"""The messages of the Kafka protocol that are declared and not coded by hand, by subject.

The names of the fields are Kafka's, in Python case. Not here: messages on the path of records
(Produce, Fetch, ListOffsets, OffsetForLeaderEpoch), Metadata and ApiVersions. Their handlers encode
them by hand, for speed.
"""
