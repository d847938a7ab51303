"""The event of each watch."""

from __future__ import annotations

import pytest

from regent.core.controller.events import (
    BrokerChange,
    BrokerModifications,
    ControllerChange,
    ControllerEvent,
    PartitionModifications,
    Reelect,
    RegistrationDeleted,
    TopicChange,
)
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.stores.watches import controller_event

CREATED, CHANGED = WatchKind.CREATED, WatchKind.CHANGED
DELETED, CHILDREN = WatchKind.DELETED, WatchKind.CHILDREN


@pytest.mark.parametrize(
    ("kind", "path", "event"),
    [
        (CREATED, "/controller", ControllerChange()),
        (CHANGED, "/controller", ControllerChange()),
        (DELETED, "/controller", Reelect()),
        (CHILDREN, "/brokers/ids", BrokerChange()),
        (CHANGED, "/brokers/ids/0", BrokerModifications(0)),
        (CHANGED, "/brokers/ids/1001", BrokerModifications(1001)),
        (DELETED, "/brokers/ids/7", RegistrationDeleted()),
        (DELETED, "/brokers/ids/1", BrokerChange()),
        (CHILDREN, "/brokers/topics", TopicChange()),
        (DELETED, "/brokers/topics", TopicChange()),
        (CREATED, "/brokers/topics", TopicChange()),
        (CHANGED, "/brokers/topics/my.topic_1-a", PartitionModifications("my.topic_1-a")),
        (DELETED, "/brokers/topics/t", PartitionModifications("t")),
    ],
)
def test_events(kind: WatchKind, path: str, event: ControllerEvent) -> None:
    assert controller_event(WatchEvent(kind, path), broker_id=7) == event


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (CREATED, "/brokers/ids/1"),
        (CREATED, "/brokers/topics/t"),
        (CHANGED, "/brokers/ids/one"),
        (CHANGED, "/brokers/ids"),
        (CHANGED, "/brokers/topics"),
        (CHILDREN, "/brokers/topics/t"),
        (CHANGED, "/brokers/topics/t/partitions/zero/state"),
        (DELETED, "/brokers/topics/t/partitions/0/state"),
        (CHANGED, "/brokers/topics/t/partitions"),
        (CHANGED, "/controller_epoch"),
        (CHANGED, "/config/changes"),
        (CHANGED, "/"),
    ],
)
def test_other_watches_have_no_event(kind: WatchKind, path: str) -> None:
    assert controller_event(WatchEvent(kind, path), broker_id=7) is None
