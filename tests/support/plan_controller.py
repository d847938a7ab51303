"""A controller that moves partitions on request, and plans for it.

The topic is ``t``; every plan moves partitions of it from two brokers to two others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from regent.client.cluster_connection import cluster_admin
from regent.core.errors import ApiError, Errors
from regent.core.model import LeaderAndIsr, ReplicaAssignment, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.transport.control.codec import Request, Response
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import TopicZNode
from tests.support.fake_cluster import FakeCluster

BEFORE, TARGET = (0, 1), (2, 3)


class MovingController:
    """Moves partitions at once, except for those to refuse or to delay."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.refuses: dict[int, tuple[Errors, str]] = {}
        self.lasts: set[int] = set()
        self.submitted: list[list[int]] = []
        self.turned: list[int] = []  # moves that were superseded
        self.elected: list[int] = []
        self.others: dict[TopicPartition, ReplicaAssignment] = {}
        self.before_answer: Callable[[int], Errors] = lambda _: Errors.NONE
        cluster.answers[AlterPartitionReassignmentsRequest] = self._begin
        cluster.answers[ListPartitionReassignmentsRequest] = self._list
        cluster.answers[ElectLeadersRequest] = self._elect

    def assign(self, changed: Mapping[int, ReplicaAssignment]) -> None:
        """Write partitions of the topic; all their replicas are in sync."""
        is_new = TopicZNode.path("t") not in self.cluster.zookeeper.snapshot()
        known = {} if is_new else self.cluster.topic("t").partitions
        leaders = {n: LeaderAndIsr(a.replicas[0], a.replicas) for n, a in changed.items()}
        self.cluster.put_topic("t", {**known, **changed}, leaders=leaders)

    def out_of_sync(self, partition: int, *isr: int) -> None:
        """Let only these replicas be in sync."""
        partitions = self.cluster.topic("t").partitions
        self.cluster.put_topic("t", partitions, leaders={partition: LeaderAndIsr(isr[0], isr)})

    def replicas(self) -> list[tuple[int, ...]]:
        """Return the assignments of the partitions."""
        return [a.replicas for a in self.cluster.topic("t").partitions.values()]

    def _list(self, _: Request) -> Response:
        own = {
            TopicPartition("t", n): a
            for n, a in self.cluster.topic("t").partitions.items()
            if a.is_being_reassigned
        }
        return ListPartitionReassignmentsResponse.of({**own, **self.others})

    def _elect(self, request: Request) -> Response:
        assert isinstance(request, ElectLeadersRequest)
        assert request.election_type == ElectionType.PREFERRED
        named = request.partitions or ()
        numbers = [partition.partition for partition in named]
        self.elected += numbers
        self.assign({n: self.cluster.topic("t").partitions[n] for n in numbers})
        return ElectLeadersResponse.of(dict.fromkeys(named, NO_ERROR))

    def _begin(self, request: Request) -> Response | Errors:
        assert isinstance(request, AlterPartitionReassignmentsRequest)
        targets = request.targets
        numbers = [partition.partition for partition in targets]
        known = self.cluster.topic("t").partitions
        if all(known[number].is_being_reassigned for number in numbers):
            self.turned += numbers
        else:
            self.submitted.append(numbers)
            problem = self.before_answer(len(self.submitted))
            if problem:
                return problem
        results = {}
        for partition, target in targets.items():
            assert target is not None
            number = partition.partition
            error, message = self.refuses.get(number, (Errors.NONE, ""))
            if not error and number in self.lasts:
                current = self.cluster.topic("t").partitions[number]
                self.assign({number: current.reassign_to(target)})
                self.out_of_sync(number, *current.replicas)
            elif not error:
                self.assign({number: ReplicaAssignment(target)})
            results[partition] = ApiError(error, message)
        return AlterPartitionReassignmentsResponse.of(results)


def write_plan(directory: Path, *partitions: int) -> Path:
    """Write a plan that moves these partitions."""
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text(document(partitions, TARGET))
    (directory / "rollback.json").write_text(document(partitions, BEFORE))
    return directory


def document(partitions: Sequence[int], replicas: tuple[int, ...]) -> str:
    """Return a document that moves partitions of the topic to these replicas."""
    rows = [{"topic": "t", "partition": n, "replicas": replicas} for n in partitions]
    return json.dumps({"version": 1, "partitions": rows})


def opener(cluster: FakeCluster) -> Callable[[str], AbstractContextManager[ZkAdminStore]]:
    """Return a function that opens sessions with the fake ZooKeeper."""
    return partial(cluster_admin, open_zookeeper=cluster.open)
