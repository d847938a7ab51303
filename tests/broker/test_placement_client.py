"""New topics are placed by the placement service and by nothing else, if there is one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from regent.broker import placement_client
from regent.broker.placement_client import PlacementClient, placement_finder
from regent.cluster.cluster_file import ClusterFile, PlacementEntry
from regent.cluster.cluster_plan import ClusterPlan
from regent.core.errors import ApiError, Errors
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
    """A client and its service."""

    def __init__(self, stack: ExitStack) -> None:
        context = context_for_test()
        stack.callback(context.destroy, linger=0)
        self.service = Service(context, stack)
        self.found: str | ApiError = self.service.endpoint
        self.client = PlacementClient(
            context, lambda: self.found, client_id="b", timeout_s=scaled(0.2)
        )
        self.alone = PlacementClient(context, None, client_id="b")

    def place(self) -> ApiError | list[PlacedPartition]:
        answer = self.client.place(REQUEST, use_service=True)
        if answer.error_code is not Errors.NONE:
            assert not answer.partitions
            return ApiError(answer.error_code, answer.message)
        return list(answer.partitions)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(stack)


def test_a_ready_service_places(stage: Stage):
    assert stage.client.obstacle() is None
    assert stage.place() == BY_THE_SERVICE
    assert (stage.client.placements, stage.client.failures) == (1, 0)


LOADING = Errors.COORDINATOR_LOAD_IN_PROGRESS


def refuse(code: Errors) -> Callable[[IncomingRequest], None]:
    return lambda incoming: incoming.reply(PlaceTopicsResponse(code, "it says why"))


def do_not_answer(incoming: IncomingRequest) -> None:
    del incoming


def answer(*rows: PlacedPartition) -> Callable[[IncomingRequest], None]:
    return lambda incoming: incoming.reply(PlaceTopicsResponse(Errors.NONE, partitions=rows))


T0, T1, U3 = BY_THE_SERVICE


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (refuse(Errors.BROKER_NOT_AVAILABLE), LOADING),
        (refuse(Errors.INVALID_PARTITIONS), Errors.INVALID_PARTITIONS),
        (refuse(Errors.UNKNOWN_SERVER_ERROR), Errors.UNKNOWN_SERVER_ERROR),
        (do_not_answer, LOADING),
        (answer(), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0, T1), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0, T1, U3, U3), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0, T1, U3._replace(partition=0)), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0._replace(replicas=(1, 1)), T1, U3), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0._replace(replicas=(1,)), T1, U3), Errors.UNKNOWN_SERVER_ERROR),
        (answer(T0._replace(replicas=(1, 9)), T1, U3), Errors.UNKNOWN_SERVER_ERROR),
    ],
    ids=[
        "ending",
        "too many",
        "a failed job",
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
def test_after_an_unusable_answer_nothing_is_placed(
    stage: Stage, reply: Callable[[IncomingRequest], None], code: Errors
):
    stage.service.answer = reply
    refused = stage.place()
    assert isinstance(refused, ApiError)
    assert refused.error_code is code
    assert refused.message
    assert (stage.client.placements, stage.client.failures) == (1, 1)


def test_a_service_that_knows_no_hosts_is_not_used_where_brokers_share_one(stage: Stage):
    hosts = tuple(PlacementHost(broker_id, f"m{broker_id % 2}") for broker_id in (0, 1, 2))
    asked = replace(REQUEST, hosts=hosts)
    apart = PlacedPartition("t", 0, (0, 1)), PlacedPartition("t", 1, (1, 2)), U3
    stage.service.answer = answer(*apart)
    assert list(stage.client.place(asked, use_service=True).partitions) == list(apart)
    stage.service.answer = answer(apart[0], apart[1]._replace(replicas=(0, 2)), U3)
    refused = stage.client.place(asked, use_service=True)
    assert (refused.error_code, refused.partitions) == (Errors.UNKNOWN_SERVER_ERROR, ())
    assert "two replicas on one host" in refused.message


def test_a_service_that_starts_is_not_asked_to_place(stage: Stage):
    stage.service.state = "starting"
    assert stage.client.obstacle() == (LOADING, "the placement service starts: starting")
    assert stage.service.asked == 1, "one status request"


def test_a_service_that_does_not_answer_may_answer_later(stage: Stage):
    stage.service.stop()
    for error in (stage.client.obstacle(), stage.place()):
        assert isinstance(error, ApiError)
        assert error.error_code is LOADING


def test_why_there_is_no_service_is_told(stage: Stage):
    stage.found = ApiError(Errors.BROKER_NOT_AVAILABLE, "no Java")
    assert stage.client.obstacle() == stage.place() == stage.found


def test_without_a_service_the_broker_places(stage: Stage):
    assert stage.alone.obstacle() is None
    placed = stage.alone.place(REQUEST, use_service=True)
    placed_by_choice = stage.client.place(REQUEST, use_service=False)
    assert list(placed.partitions) == list(placed_by_choice.partitions) == BY_THE_CLIENT
    assert stage.service.asked == 0


def test_failures_are_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    stage.service.answer = refuse(Errors.UNKNOWN_SERVER_ERROR)
    for _ in range(3):
        stage.place()
    stage.service.answer = stage.service.place
    assert stage.place() == BY_THE_SERVICE
    assert stage.client.failures == 3
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "INFO"]


def found_in(tmp_path: Path, entry: PlacementEntry | None) -> str | ApiError:
    file = tmp_path / "cluster.json"
    ClusterFile(file, "host:2181", placement=entry).write()
    find = placement_finder(str(file))
    assert find is not None
    return find()


def test_the_service_is_found_by_its_endpoint_or_in_the_cluster_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert placement_finder("") is None
    by_endpoint = placement_finder("tcp://host:1")
    assert by_endpoint is not None
    assert by_endpoint() == "tcp://host:1"
    assert found_in(tmp_path, PlacementEntry(1, "tcp://host:2")) == "tcp://host:2"
    starting = ApiError(LOADING, "the placement service starts: its process is starting")
    assert found_in(tmp_path, PlacementEntry(1)) == starting


@pytest.mark.parametrize("entry", [None, PlacementEntry(), PlacementEntry(message="no Java")])
def test_a_service_that_does_not_run_is_started_by_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: PlacementEntry | None
):
    answers = iter([PlacementEntry(7), PlacementEntry(message="no Java")])
    asked: list[Path] = []

    def start(data_dir: Path, timeout_s: float) -> PlacementEntry:
        asked.append(data_dir)
        return next(answers)

    monkeypatch.setattr(placement_client, "start_placement", start)
    first, second = found_in(tmp_path, entry), found_in(tmp_path, entry)
    assert isinstance(first, ApiError)
    assert isinstance(second, ApiError)
    assert (first.error_code, second.error_code) == (LOADING, Errors.BROKER_NOT_AVAILABLE)
    assert "no Java; correct this, or use `" in second.message
    assert "topics create --no-placement-service`" in second.message
    assert asked == [tmp_path, tmp_path]


def test_without_a_running_cluster_the_service_may_come_later(tmp_path: Path):
    error = found_in(tmp_path, None)
    assert isinstance(error, ApiError)
    assert error.error_code is LOADING
    assert f"no cluster runs on {tmp_path}" in error.message


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
