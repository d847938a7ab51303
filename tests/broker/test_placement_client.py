"""New topics are placed by the placement service, or without it when it is not available."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from regent.broker.placement_client import PAUSE_S, PlacementClient, placement_finder
from regent.cluster.cluster_file import ClusterFile, PlacementEntry
from regent.cluster.cluster_plan import ClusterPlan
from regent.core.errors import Errors
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementHost,
    PlacementSpec,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.testing.waits import scaled
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.control.sockets import Context
from tests.support.keys import EVERYBODY_OPERATES, KEYS, context_for_test

REQUEST = PlaceTopicsRequest(
    (PlacementSpec("t", 2, 2, 0), PlacementSpec("u", 1, 1, 3)),
    tuple(PlacementBroker(broker_id, None, 0) for broker_id in (0, 1, 2)),
    "ring",
    "0",
    "per-topic",
    0,
)
BY_THE_CLIENT = place(REQUEST)
BY_THE_SERVICE = [row._replace(replicas=row.replicas[::-1]) for row in BY_THE_CLIENT]
assert BY_THE_CLIENT != BY_THE_SERVICE


class Service:
    """A placement service that reverses replicas, so that its placements can be recognised."""

    def __init__(self, context: Context, stack: ExitStack) -> None:
        self.state = "ready"
        self.answer: Callable[[IncomingRequest], None] = self.place
        self.asked = 0
        self._server = ControlServer(
            KEYS, EVERYBODY_OPERATES, "tcp://127.0.0.1:0", self._dispatch, name="placement"
        )
        stack.callback(self._server.stop)
        self._server.start()
        self.endpoint = self._server.endpoint

    def place(self, incoming: IncomingRequest) -> None:
        incoming.reply(PlaceTopicsResponse(Errors.NONE, partitions=tuple(BY_THE_SERVICE)))

    def stop(self) -> None:
        self._server.stop()

    def _dispatch(self, incoming: IncomingRequest) -> None:
        self.asked += 1
        if isinstance(incoming.body, PlacementStatusRequest):
            incoming.reply(PlacementStatusResponse(Errors.NONE, self.state))
        else:
            assert isinstance(incoming.body, PlaceTopicsRequest)
            assert replace(incoming.body, hosts=()) == REQUEST
            self.answer(incoming)


class Stage:
    """A client, its service, and the clock."""

    def __init__(self, stack: ExitStack) -> None:
        context = context_for_test()
        stack.callback(context.destroy, linger=0)
        self.service = Service(context, stack)
        self.endpoint: str | None = self.service.endpoint
        self.now = 0.0
        self.client = PlacementClient(
            context,
            lambda: self.endpoint,
            client_id="b",
            timeout_s=scaled(0.2),
            clock=lambda: self.now,
        )

    def place(self) -> list[PlacedPartition]:
        self.answer = self.client.place(REQUEST, use_service=True)
        return list(self.answer.partitions)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


def test_a_ready_service_places(stage: Stage):
    assert stage.place() == BY_THE_SERVICE
    assert (stage.client.placements, stage.client.fallbacks) == (1, 0)


def refuse(incoming: IncomingRequest) -> None:
    incoming.reply(PlaceTopicsResponse(Errors.OPERATION_NOT_ATTEMPTED, "100 requests wait already"))


def do_not_answer(incoming: IncomingRequest) -> None:
    del incoming


def answer(*rows: PlacedPartition) -> Callable[[IncomingRequest], None]:
    return lambda incoming: incoming.reply(PlaceTopicsResponse(Errors.NONE, partitions=rows))


T0, T1, U3 = BY_THE_SERVICE


@pytest.mark.parametrize(
    "reply",
    [
        refuse,
        do_not_answer,
        answer(),
        answer(T0, T1),
        answer(T0, T1, U3, U3),
        answer(T0, T1, U3._replace(partition=0)),
        answer(T0._replace(replicas=(1, 1)), T1, U3),
        answer(T0._replace(replicas=(1,)), T1, U3),
        answer(T0._replace(replicas=(1, 9)), T1, U3),
    ],
    ids=[
        "refused",
        "no answer",
        "no partitions",
        "a missing partition",
        "a partition twice",
        "another partition",
        "two replicas on one broker",
        "too few replicas",
        "an unknown broker",
    ],
)
def test_an_unusable_answer_is_replaced_by_the_same_algorithm(
    stage: Stage, reply: Callable[[IncomingRequest], None]
):
    stage.service.answer = reply
    assert stage.place() == BY_THE_CLIENT
    assert (stage.client.placements, stage.client.fallbacks) == (1, 1)


def test_a_service_that_knows_no_hosts_is_not_used_where_brokers_share_one(stage: Stage):
    hosts = tuple(PlacementHost(broker_id, f"m{broker_id % 2}") for broker_id in (0, 1, 2))
    asked = replace(REQUEST, hosts=hosts)
    apart = PlacedPartition("t", 0, (0, 1)), PlacedPartition("t", 1, (1, 2)), U3
    stage.service.answer = answer(*apart)
    assert list(stage.client.place(asked, use_service=True).partitions) == list(apart)
    stage.service.answer = answer(apart[0], apart[1]._replace(replicas=(0, 2)), U3)
    assert list(stage.client.place(asked, use_service=True).partitions) == place(asked)
    assert stage.client.fallbacks == 1


@pytest.mark.parametrize("state", ["starting", "warming", "failed"])
def test_a_service_that_is_not_ready_is_not_asked_to_place(stage: Stage, state: str):
    stage.service.state = state
    assert stage.place() == BY_THE_CLIENT
    assert stage.service.asked == 1, "one status request"
    reason = f"the placement service is {state}"
    assert stage.answer.message == f"{reason}: placed by the same algorithm, without Spark"
    assert stage.client.warming() == ("" if state == "failed" else state)


def test_use_service_false_sends_no_request(stage: Stage):
    placed = stage.client.place(REQUEST, use_service=False)
    assert (list(placed.partitions), placed.message) == (BY_THE_CLIENT, "")
    assert stage.service.asked == 0


def test_without_a_service_the_client_places(stage: Stage):
    stage.endpoint = None
    assert stage.place() == BY_THE_CLIENT
    assert stage.answer.message.startswith("there is no placement service: placed by")
    assert stage.client.warming() == ""
    stage.endpoint = stage.service.endpoint
    stage.now += PAUSE_S
    stage.service.stop()
    assert stage.place() == BY_THE_CLIENT
    assert stage.client.fallbacks == 2


def test_a_failed_service_is_not_asked_during_a_pause_and_logged_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    stage.service.answer = refuse
    for _ in range(3):
        assert stage.place() == BY_THE_CLIENT
    assert stage.service.asked == 2, "one status request, one placement"
    stage.now += PAUSE_S
    stage.place()
    assert stage.service.asked == 4
    stage.service.answer = stage.service.place
    assert stage.place() == BY_THE_CLIENT
    stage.now += PAUSE_S
    assert stage.place() == BY_THE_SERVICE
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]


def test_the_service_is_found_by_its_endpoint_or_in_the_cluster_file(tmp_path: Path):
    assert placement_finder("")() is None
    assert placement_finder("tcp://host:1")() == "tcp://host:1"
    file = tmp_path / "cluster.json"
    find = placement_finder(str(file))
    assert find() is None
    ClusterFile(file, "host:2181", placement=PlacementEntry(1, "tcp://host:2")).write()
    assert find() == "tcp://host:2"
    ClusterFile(file, "host:2181").write()
    assert find() is None
    file.write_text("{")
    assert find() is None


@pytest.mark.parametrize("has_service", [True, False])
def test_a_cluster_passes_the_service_to_its_brokers(tmp_path: Path, has_service: bool):
    plan = ClusterPlan(
        program=("regent",),
        data_dir=tmp_path,
        broker_count=1,
        base_port=0,
        zookeeper=None,
        zookeeper_nodes=1,
        session_timeout_ms=6_000,
        config=None,
        placement_service=has_service,
        restart=False,
    )
    command = plan.broker_command(0, plan.broker_ports(0), "127.0.0.1:2181")
    assert ("--placement-service" in command) is has_service
    assert (str(tmp_path / "cluster.json") in command) is has_service
