"""Requests of tools about topics: sliced, sent to the next broker, repeated, refused by name."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

import regent.client.topics
from regent.client.topics import NoBrokerError, TopicsClient, raise_if_refused, slices
from regent.core.admin.admin_requests import refuse
from regent.core.errors import Errors
from regent.core.model import EndPoint
from regent.core.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from regent.core.protocol.messages.topics import (
    CreateTopicsRequest,
    PlacementOptions,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer
from tests.support.fake_cluster import FakeCluster, replicas
from tests.support.topic_controller import AnswerAboutTopics
from tests.support.topic_requests import alteration, assigned, creatable, errors_of

RING = PlacementOptions(strategy="ring")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    cluster.with_brokers(3)
    yield cluster
    cluster.close()


def client_of(*ports: int, timeout_s: float = 10.0) -> TopicsClient:
    brokers = [EndPoint("", "127.0.0.1", port) for port in ports]
    return TopicsClient(brokers, timeout_s=timeout_s)


@pytest.fixture
def client(cluster: FakeCluster) -> TopicsClient:
    return client_of(cluster.listen())


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def lose_the_first_answer(cluster: FakeCluster, then: str = "") -> AnswerAboutTopics:
    """Decide, and close the first connection instead of answering; remove a path then."""
    lost: list[TopicsRequest] = []

    def lose(request: TopicsRequest) -> TopicsResponse | None:
        response = cluster.decide(request)
        lost.append(request)
        if len(lost) > 1:
            return response
        if then:
            cluster.zookeeper.remove(then)
        return None

    return lose


def test_a_slice_holds_a_limited_number_of_topics_and_partitions_or_one_large_topic():
    topics = [creatable("large", 50_000), *(creatable(f"t{n}", 4_000) for n in range(3))]
    topics += [creatable(f"u{n}") for n in range(1_500)]
    sizes = [
        (len(part), sum(max(topic.num_partitions, 1) for topic in part)) for part in slices(topics)
    ]
    assert sizes == [(1, 50_000), (2, 8_000), (1_000, 4_999), (501, 501)]
    rows = assigned(*((number, (0,)) for number in range(6_000)))
    assert [len(part) for part in slices([creatable("a", assignments=rows)] * 3)] == [1, 1, 1]


def test_topics_collide_also_across_slices_and_nothing_is_written(
    cluster: FakeCluster, client: TopicsClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.client.topics, "_MAX_SLICE_TOPICS", 1)
    topics = [creatable(name, 1, 1) for name in ("a.b", "c", "a_b")]
    problems = client.validate(topics)
    assert {topic: problem.error_code for topic, problem in problems.items()} == {
        "a_b": Errors.INVALID_TOPIC_EXCEPTION
    }
    assert "/brokers/topics/c" not in cluster.writes


def test_the_ring_continues_from_one_slice_to_the_next(
    cluster: FakeCluster, client: TopicsClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(regent.client.topics, "_MAX_SLICE_TOPICS", 1)
    topics = [creatable(name, 2, 1) for name in "ab"]
    placement = PlacementOptions(strategy="ring", start_index="1", index="batch")
    for response in client.create(topics, placement):
        raise_if_refused(response.topics)
    assert [replicas(cluster, topic) for topic in "ab"] == [{0: (1,), 1: (2,)}, {0: (0,), 1: (1,)}]


def test_a_request_that_waits_for_the_cluster_says_for_how_long(
    cluster: FakeCluster, client: TopicsClient
):
    for waits in (True, False):
        (response,) = client.create([creatable(f"t{waits}", 1, 1)], None, waits=waits)
        raise_if_refused(response.topics)
    waited, at_once = (r for r in cluster.received if isinstance(r, CreateTopicsRequest))
    assert (9_000 < waited.timeout_ms <= 10_000, at_once.timeout_ms) == (True, 0)
    assert (waited.waits, at_once.waits) == (True, False)


# --- brokers that do not answer -------------------------------------------------------------------


def test_the_next_broker_is_asked_when_one_does_not_listen(cluster: FakeCluster):
    client = client_of(closed_port(), cluster.listen())
    (response,) = client.create([creatable("t", 1, 1)], None)
    assert errors_of(response) == [("t", Errors.NONE)]
    deleted = client.delete(["unknown"], waits=False, all_or_none=True)
    assert errors_of(deleted) == [("unknown", Errors.UNKNOWN_TOPIC_OR_PARTITION)], "not: it is gone"


def test_without_a_broker_there_is_an_error_that_names_the_last():
    port = closed_port()
    with pytest.raises(NoBrokerError, match=rf"broker 127\.0\.0\.1:{port} does not answer: "):
        client_of(port, timeout_s=0.0).delete(["t"], waits=False, all_or_none=True)
    with pytest.raises(NoBrokerError, match="there is no broker"):
        client_of(timeout_s=0.0).delete(["t"], waits=False, all_or_none=True)


def test_the_effect_of_an_attempt_with_a_lost_answer_counts_as_success(cluster: FakeCluster):
    cluster.put_topic("t", {0: (0,)})
    client = client_of(cluster.listen(lose_the_first_answer(cluster)))
    assert errors_of(client.grow("t", 2, RING)) == [("t", Errors.NONE)]
    assert sorted(replicas(cluster, "t")) == [0, 1]
    client = client_of(cluster.listen(lose_the_first_answer(cluster, "/brokers/topics/t")))
    deleted = client.delete(["t"], waits=False, all_or_none=True)
    assert errors_of(deleted) == [("t", Errors.NONE)]


def test_a_lost_answer_hides_no_refusal(cluster: FakeCluster):
    cluster.put_topic("t", {0: (0,), 1: (1,), 2: (2,)})
    client = client_of(cluster.listen(lose_the_first_answer(cluster)))
    assert errors_of(client.grow("t", 2, RING)) == [("t", Errors.INVALID_PARTITIONS)]


@pytest.mark.parametrize(
    "error", [Errors.NOT_CONTROLLER, Errors.THROTTLING_QUOTA_EXCEEDED], ids=lambda e: e.name
)
def test_a_request_that_a_broker_cannot_pass_on_yet_is_sent_again(
    cluster: FakeCluster, error: Errors
):
    asked: list[TopicsRequest] = []

    def decide_later(request: TopicsRequest) -> TopicsResponse:
        asked.append(request)
        refused = refuse(request, error, "later")
        return refused if len(asked) < 3 else cluster.decide(request)

    (response,) = client_of(cluster.listen(decide_later)).create([creatable("t", 1, 1)], None)
    assert errors_of(response) == [("t", Errors.NONE)]
    asked.clear()
    client = client_of(cluster.listen(decide_later))
    deleted = client.delete(["unknown"], waits=False, all_or_none=True)
    assert errors_of(deleted) == [("unknown", Errors.UNKNOWN_TOPIC_OR_PARTITION)], "not: it is gone"
    cluster.put_topic("full", {0: (0,), 1: (0,)})
    asked.clear()
    assert errors_of(client.grow("full", 2, RING)) == [("full", Errors.INVALID_PARTITIONS)]
    client = client_of(cluster.listen(lambda request: refuse(request, error, "never")), timeout_s=0)
    (response,) = client.create([creatable("u", 1, 1)], None)
    assert errors_of(response) == [("u", error)]


def test_a_broker_of_kafkas_that_is_not_the_controller_tells_which_is(cluster: FakeCluster):
    controller = cluster.listen()

    async def describe(request: KafkaRequest) -> KafkaAnswer:
        row = DescribeClusterBroker(broker_id=1, host="127.0.0.1", port=controller, rack=None)
        return answer(DescribeClusterResponse(controller_id=1, brokers=(row,)), request)

    apis = [KafkaApi(KafkaApiKey.DESCRIBE_CLUSTER, 0, 0, describe)]
    other = cluster.listen(lambda request: refuse(request, Errors.NOT_CONTROLLER, "not I"), apis)
    (response,) = client_of(other).create([creatable("t", 1, 1)], None)
    assert errors_of(response) == [("t", Errors.NONE)]


# --- the placement service ------------------------------------------------------------------------


def test_nothing_is_placed_while_the_placement_service_starts(
    cluster: FakeCluster, client: TopicsClient
):
    cluster.placer.starting = iter(["starting", "Spark is warming up"])
    said: list[str] = []
    awaits = PlacementOptions(strategy="ring", awaits_service=True)
    until = time.monotonic() + 10
    (response,) = client.create([creatable("t", 1, 1)], awaits, await_service=(said.append, until))
    assert (errors_of(response), said) == (
        [("t", Errors.NONE)],
        ["starting", "Spark is warming up"],
    )
    cluster.placer.starting = iter(lambda: "Spark is starting", "")
    grown = client.grow("t", 2, awaits, (said.append, 0.0))
    loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
    assert errors_of(grown) == [("t", loading)], "the wait is limited"


def test_an_invalid_request_does_not_wait_for_the_placement_service(
    cluster: FakeCluster, client: TopicsClient
):
    cluster.placer.starting = iter(lambda: "Spark is starting", "")
    awaits = PlacementOptions(strategy="ring", awaits_service=True)
    until = time.monotonic() + 10
    (response,) = client.create(
        [creatable("t", 0, 1)], awaits, await_service=(lambda _: None, until)
    )
    assert errors_of(response) == [("t", Errors.INVALID_PARTITIONS)]


def test_settings_of_a_topic_are_changed(cluster: FakeCluster, client: TopicsClient):
    cluster.put_topic("t", {0: (0,)})
    assert errors_of(client.configure("t", [alteration("retention.ms", value="5")])) == [
        ("t", Errors.NONE)
    ]
    refused = client.configure("t", [alteration("retention.ms", value="soon")])
    assert errors_of(refused) == [("t", Errors.INVALID_CONFIG)]


def test_more_brokers_are_looked_for_once_if_none_answers(cluster: FakeCluster):
    found: list[EndPoint] = []

    def find_others() -> list[EndPoint]:
        found.append(EndPoint("PLAINTEXT", "127.0.0.1", cluster.listen()))
        return found

    stale = EndPoint("", "127.0.0.1", closed_port())
    client = TopicsClient([stale], timeout_s=10.0, find_others=find_others)
    for name in "ab":
        (response,) = client.create([creatable(name, 1, 1)], RING)
        raise_if_refused(response.topics)
    assert len(found) == 1
