"""Requests of tools about topics: sliced, repeated while the controller moves, refused by name."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import regent.client.topics
from regent.client.controller_ref import ControllerRef
from regent.client.topics import TopicsClient, TopicsRefusedError, creation, growth, slices
from regent.core.errors import Errors
from regent.core.protocol.topics import (
    AssignedPartition,
    CreatableTopic,
    CreateTopicsRequest,
    PlacementOptions,
)
from regent.transport.control.codec import Request, Response
from tests.support.fake_cluster import FakeCluster, replicas


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.with_brokers(3)
    yield cluster
    cluster.close()


def client_of(endpoint: str) -> TopicsClient:
    controller = ControllerRef(lambda: endpoint, client_id="test")
    return TopicsClient(controller, deadline=time.monotonic() + 10)


@pytest.fixture
def client(cluster: FakeCluster) -> TopicsClient:
    return client_of(cluster.serve(cluster.lead))


def lose_the_first_answer(cluster: FakeCluster) -> TopicsClient:
    lost: list[Request] = []

    def answer(request: Request) -> Response | Errors | None:
        response = cluster.lead(request)
        lost.append(request)
        return Errors.BROKER_NOT_AVAILABLE if len(lost) == 1 else response

    return client_of(cluster.serve(answer))


def test_a_slice_holds_a_limited_number_of_topics_and_partitions_or_one_large_topic():
    topics = [CreatableTopic("large", 50_000), *(CreatableTopic(f"t{n}", 4_000) for n in range(3))]
    topics += [CreatableTopic(f"u{n}") for n in range(1_500)]
    sizes = [
        (len(part), sum(max(topic.partitions, 1) for topic in part)) for part in slices(topics)
    ]
    assert sizes == [(1, 50_000), (2, 8_000), (1_000, 4_999), (501, 501)]
    rows = tuple(AssignedPartition(number, (0,)) for number in range(6_000))
    assert [len(part) for part in slices([CreatableTopic("a", assignment=rows)] * 3)] == [1, 1, 1]


def test_topics_collide_also_across_slices_and_nothing_is_written(
    cluster: FakeCluster, client: TopicsClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.client.topics, "_MAX_SLICE_TOPICS", 1)
    topics = [CreatableTopic(name, 1, 1) for name in ("a.b", "c", "a_b")]
    problems = client.validate(topics)
    assert {topic: problem.error_code for topic, problem in problems.items()} == {
        "a_b": Errors.INVALID_TOPIC_EXCEPTION
    }
    assert "/brokers/topics/c" not in cluster.writes


def test_the_ring_continues_from_one_slice_to_the_next(
    cluster: FakeCluster, client: TopicsClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.client.topics, "_MAX_SLICE_TOPICS", 1)
    topics = [CreatableTopic(name, 2, 1) for name in "ab"]
    placement = PlacementOptions("ring", "1", "batch")
    for response in client.create(topics, placement, waits=True):
        assert response.error_code is Errors.NONE
    assert [replicas(cluster, topic) for topic in "ab"] == [{0: (1,), 1: (2,)}, {0: (0,), 1: (1,)}]


def test_a_request_that_waits_for_the_cluster_says_for_how_long(
    cluster: FakeCluster, client: TopicsClient
):
    for waits in (True, False):
        list(client.create([CreatableTopic(f"t{waits}", 1, 1)], None, waits=waits))
    waited, at_once = (r for r in cluster.received if isinstance(r, CreateTopicsRequest))
    assert (9_000 < waited.timeout_ms <= 10_000, at_once.timeout_ms) == (True, 0)


def test_the_effect_of_an_attempt_with_a_lost_answer_counts_as_success(cluster: FakeCluster):
    cluster.put_topic("t", {0: (0,)})
    request = growth("t", 2, PlacementOptions("ring"))
    (grown,) = lose_the_first_answer(cluster).grow(request).outcomes
    assert (grown.error_code, sorted(replicas(cluster, "t"))) == (Errors.NONE, [0, 1])
    (deleted,) = lose_the_first_answer(cluster).delete(["t"]).outcomes
    assert deleted.error_code is Errors.NONE


def test_an_invalid_request_does_not_wait_for_the_placement_service(
    cluster: FakeCluster, client: TopicsClient
):
    cluster.placer.starting = iter(lambda: "Spark is starting", "")
    request = creation([CreatableTopic("t", 0, 1)], PlacementOptions("ring"))
    with pytest.raises(TopicsRefusedError, match="topic t: the number of partitions"):
        client.await_placement_service(request, lambda _: None, deadline=time.monotonic() + 10)
