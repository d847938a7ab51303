"""Answers of a broker's metadata cache: MetadataCacheTest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import PartitionView, TopicView, topic_metadata
from tests.conformance.fields import Case, Fields, UnknownInCaseError, one_of

PLAINTEXT = "PLAINTEXT"


def _brokers(alive: Any) -> tuple[UpdateMetadataBroker, ...]:
    listeners: Mapping[BrokerId, Any]
    if isinstance(alive, Mapping):
        listeners = {int(broker_id): names for broker_id, names in alive.items()}
    else:
        if not all(isinstance(broker_id, int) for broker_id in alive):
            raise UnknownInCaseError(f"alive are {alive!r}")
        listeners = dict.fromkeys(alive, (PLAINTEXT,))
    return tuple(
        UpdateMetadataBroker(
            broker_id,
            1,
            tuple(UpdateMetadataEndPoint(name, f"host-{broker_id}", 9092, name) for name in names),
            None,
            None,
            None,
        )
        for broker_id, names in listeners.items()
    )


def metadata_view(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        cache = MetadataCache()
        is_known = bool({"leader", "replicas"} & given.keys())
        leader = given.take("leader", 0)
        replicas = tuple(given.take("replicas", (leader,)))
        row = UpdateMetadataPartition(
            0,
            1,
            leader,
            1,
            tuple(given.take("isr", replicas)),
            3,
            replicas,
            tuple(given.take("offline", ())),
        )
        topics = (UpdateMetadataTopic("topic", None, (row,)),)
        request = UpdateMetadataRequest(
            topics if is_known else (), _brokers(given.take("alive", [leader]))
        )
        cache.update(ControlHeader(2, 1, 1), request)
        asked = given.take("topic", "topic")
        views = topic_metadata(
            cache.snapshot,
            [asked],
            given.take("listener", PLAINTEXT),
            error_unavailable_endpoints=given.take("error_on_missing_endpoint", False),
            error_unavailable_listeners=given.take("report_missing_listener", False),
        )
        _assert_view(views, expect)


def _assert_view(views: list[TopicView], expect: Fields) -> None:
    for entries in expect.expected("entries"):
        assert len(views) == (len(entries) if isinstance(entries, list) else entries)
    rows: list[PartitionView] = [row for view in views for row in view.partitions]
    for error in expect.expected("error"):
        wanted = one_of(error, Errors.__members__, "the error")
        assert [row.error_code for row in rows] == [wanted]
    for leader in expect.expected("leader"):
        assert [row.leader for row in rows] == [leader]
    for replicas in expect.expected("replicas"):
        assert [list(row.replicas) for row in rows] == [replicas]
    for isr in expect.expected("isr"):
        assert [list(row.isr) for row in rows] == [isr]
    for is_there in expect.expected("isr_nonempty"):
        assert [bool(row.isr) for row in rows] == [is_there]
    for offline in expect.expected("offline"):
        assert [list(row.offline_replicas) for row in rows] == [offline]
