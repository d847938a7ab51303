"""A cluster for tests of the command line: a fake ZooKeeper, and servers for its actors.

The servers speak the real protocol on free ports; the test sets their answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from click.testing import CliRunner, Result

from regent.cli.main import cli
from regent.cluster.cluster_file import BrokerEntry, ClusterFile, PlacementEntry
from regent.config.addresses import host_of, key_of, port_of
from regent.config.cluster_location import CLUSTER_FILE
from regent.core.errors import ApiError, Errors
from regent.core.model import (
    BrokerId,
    BrokerInfo,
    EndPoint,
)
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.controller import (
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.core.protocol.placement import (
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.transport.control.codec import CONTROL_VERSION, Request, Response
from regent.transport.control.server import ControlServer, IncomingRequest
from regent.transport.kafka.api import KafkaApi
from regent.zk import znodes
from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.admin_store import ZkAdminStore
from tests.support.fake_zookeeper import FakeZooKeeper, Hook
from tests.support.keys import EVERYBODY_OPERATES, KEYS, context_for_test
from tests.support.local_placer import LocalPlacer
from tests.support.topic_controller import AnswerAboutTopics, KafkaPort, TopicController
from tests.support.world import World

ADDRESS = "fake:2181"

Answer: TypeAlias = Callable[[Request], Response | Errors | None]


class RecordingPlacer(LocalPlacer):
    """Places without Spark, and stores the requests."""

    def __init__(self) -> None:
        self.requests: list[PlaceTopicsRequest] = []
        self.starting: Iterator[str] = iter(())
        """What a starting placement service does, for each question one."""

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        self.requests.append(request)
        return super().place(request, use_service=use_service)

    def obstacle(self) -> ApiError | None:
        state = next(self.starting, "")
        return ApiError(Errors.COORDINATOR_LOAD_IN_PROGRESS, state) if state else None


class FakeCluster(World):
    """A world, and servers that answer requests."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Hook | None = None
        """Called inside every ZooKeeper call of a command."""
        self.is_reachable = True
        self.received: list[Request | TopicsRequest] = []
        self.answers: dict[type[Request], Answer] = {}
        """The controller's answer to a kind of request, instead of that of ``lead``."""
        self.ports: list[KafkaPort] = []
        self.placer = RecordingPlacer()
        self._context = context_for_test()
        self._servers: list[ControlServer] = []
        self._unanswered: list[IncomingRequest] = []
        for path in znodes.PERSISTENT_PATHS:
            self.put(path)

    @cached_property
    def _topics(self) -> TopicController:
        return TopicController(FakeZooKeeper(self.zookeeper), self.placer)

    def close(self) -> None:
        """Stop the servers."""
        for server in self._servers:
            server.stop()
        for port in self.ports:
            port.close()
        self._context.destroy(linger=0)

    # --- the cluster ------------------------------------------------------------------------------

    def add_broker(
        self,
        broker_id: BrokerId,
        *,
        rack: str | None = None,
        control_endpoint: str | None = None,
        port: int | None = None,
        node_host: str | None = None,
        started_ms: int = 0,
    ) -> None:
        """Register a broker; nothing listens at its ``port``, 9092 + id by default.

        Another process of a broker has another ``started_ms``.
        """
        endpoint = EndPoint("PLAINTEXT", "127.0.0.1", port or 9092 + broker_id)
        replication = f"tcp://127.0.0.1:{29092 + broker_id}"
        info = BrokerInfo(broker_id, (endpoint,), rack, control_endpoint, replication)
        info = replace(info, control_version=CONTROL_VERSION)
        self.register_as(replace(info, node_host=node_host, timestamp_ms=started_ms))

    @property
    def writes(self) -> list[str]:
        """The written paths, in sequence."""
        return [op.path for txn in self.zookeeper.transactions for op in txn.operations]

    # --- servers ----------------------------------------------------------------------------------

    def serve(self, answer: Answer) -> str:
        """Start a server that answers each request, or never if None; return its endpoint."""

        def dispatch(incoming: IncomingRequest) -> None:
            self.received.append(incoming.body)
            response = answer(incoming.body)
            if isinstance(response, Errors):
                incoming.reply.fail(response)
            elif response is not None:
                incoming.reply(response)
            else:
                self._unanswered.append(incoming)  # a reply that is dropped is an answer too

        server = ControlServer(
            KEYS, EVERYBODY_OPERATES, "tcp://127.0.0.1:0", dispatch, name="fake-actor"
        )
        server.start()
        self._servers.append(server)
        return server.endpoint

    def listen(self, answer: AnswerAboutTopics | None = None, more: Sequence[KafkaApi] = ()) -> int:
        """Open the Kafka port of a broker, which answers as ``decide`` by default; return it."""

        def answer_one(request: TopicsRequest) -> TopicsResponse | Errors | None:
            self.received.append(request)
            return (answer or self.decide)(request)

        port = KafkaPort(answer_one, ZkAdminStore(FakeZooKeeper(self.zookeeper)), more)
        self.ports.append(port)
        return port.port

    def decide(self, request: TopicsRequest) -> TopicsResponse:
        """Answer as the active controller's broker; the leaders are elected at once."""
        return self._topics.answer(request)

    def with_brokers(self, count: int, *, racks: Sequence[str | None] = ()) -> None:
        """Register brokers 0, 1, …; broker 0 is the controller, and answers as ``lead``."""
        endpoint, port = self.serve(self.lead), self.listen()
        for broker_id in range(count):
            rack = racks[broker_id] if racks else None
            self.add_broker(broker_id, rack=rack, control_endpoint=endpoint, port=port)
        self.elect(0)

    def lead(self, request: Request) -> Response | Errors | None:
        """Answer as a controller that elects the first replica of every partition."""
        if type(request) in self.answers:
            return self.answers[type(request)](request)
        match request:
            case DescribeControllerRequest():
                return DescribeControllerResponse(Errors.NONE, self.controller_epoch)
            case DescribeMetadataRequest():
                return DescribeMetadataResponse(Errors.NONE, 0, "RunningAsBroker", 0, 1)
            case ListPartitionReassignmentsRequest():
                return ListPartitionReassignmentsResponse.of({})
            case _:
                return Errors.INVALID_REQUEST

    # --- the command line -------------------------------------------------------------------------

    @contextmanager
    def open(self, address: str, limit_s: float | None) -> Iterator[ZooKeeper]:
        """Open a session, as ``cli.find_cluster.OpenZooKeeper``."""
        del limit_s
        if not self.is_reachable:
            raise ConnectionLossError(f"no server at {address}")
        session = FakeZooKeeper(self.zookeeper, hook=self.hook)
        try:
            yield session
        finally:
            session.close()

    def run(self, *arguments: str, stdin: bytes | None = None) -> Result:
        """Run a command line; a traceback is a failure of the test."""
        result = CliRunner().invoke(cli, arguments, input=stdin, obj=self.open)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        """Run a command line with ``-o json`` and return what it printed."""
        result = self.run(*arguments, "-o", "json")
        assert result.exit_code == exit_code, result.stderr
        return json.loads(result.stdout)


def failing(result: Result) -> str:
    """Return the line on stderr of a command that failed with exit code 1."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("regent: ")
    return line.removeprefix("regent: ")


def warm_placement(request: Request) -> Response | Errors:
    """Answer as a placement service that is ready."""
    is_known = isinstance(request, PlacementStatusRequest)
    return PlacementStatusResponse(Errors.NONE, "ready") if is_known else Errors.INVALID_REQUEST


def write_cluster_file(
    data_dir: Path,
    *,
    zookeeper: str = ADDRESS,
    brokers: Mapping[BrokerId, str] | None = None,
    placement: str | None = None,
    placement_pid: int = 1,
    kafka_port: int = 9092,
) -> None:
    """Write ``cluster.json`` atomically; ``brokers`` are control endpoints by id."""
    file = ClusterFile(data_dir / CLUSTER_FILE, zookeeper)
    for broker_id, endpoint in (brokers or {}).items():
        host, port = host_of(endpoint), port_of(endpoint)
        file.brokers[broker_id] = BrokerEntry(
            broker_id, 4710 + broker_id, host, kafka_port, port, 9094, 9095, key_of(endpoint)
        )
    if placement is not None:
        file.placement = PlacementEntry(placement_pid, placement)
    file.write()


def replicas(cluster: FakeCluster, topic: str) -> dict[int, tuple[int, ...]]:
    """Return the replicas of each partition of a topic."""
    return {p: a.replicas for p, a in cluster.topic(topic).partitions.items()}


def placed(cluster: FakeCluster) -> PlaceTopicsRequest:
    """Return the only request to place partitions."""
    (request,) = cluster.placer.requests
    return request
