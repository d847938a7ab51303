"""Commits, rebalances and the loading of groups.

``commits``    ``--clients`` members, each of a group of its own, all with one coordinator. Each
               has ``--in-flight`` commits of one position under way, as with ``commitAsync``.
``rebalance``  One group of ``--members``, each with its own connection. They send heartbeats every
               ``--heartbeat`` seconds, and join again when an answer says so, as consumers do.
               ``formed_s`` is from the first JoinGroup to the last answer to a SyncGroup, and
               includes ``group.initial.rebalance.delay.ms``, 3 s by default, once or twice.
               ``joined`` and ``left`` are a rebalance when a member comes and goes: ``seconds``
               from its request to the last SyncGroup, ``after_joins_s`` of it after the last
               member has sent its JoinGroup, which waits for a heartbeat.
``load``       ``--records`` committed positions are in one partition of ``__consumer_offsets``,
               each key ten times, in commits of ``--positions``. Its leadership moves: ``seconds``
               from the request to the controller until the new leader answers an OffsetFetch.
               ``memory_mb`` of the new leader then, and before.

``cpu_s`` is the processor time, user and system, of the broker that coordinates; ``others_cpu_s``
that of all other brokers, which follow its log; ``bench_cpu_s`` that of this process. They are 0
for brokers on another machine. Clients and brokers share this machine.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count, islice
from typing import Any, Final, TypeAlias

import click
from confluent_kafka.admin import AdminClient, BrokerMetadata, ConfigResource, ResourceType

from bench.clients import broker_ports, cluster_at
from bench.frame import benchmark
from bench.kafka_connection import (
    TIMEOUT_S,
    Address,
    KafkaConnection,
    api_of,
    check,
    coordinators_of,
    framed,
    is_not_yet,
    response,
)
from bench.processes import Usage, listening_on, resident_mb
from bench.result import Case, percentiles
from bench.topics import Topics, existing, set_topic_config
from regent.core.coordinator.partition_for import partition_for
from regent.core.errors import Errors
from regent.core.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

Figures: TypeAlias = dict[str, Any]

OFFSETS: Final = "__consumer_offsets"
SESSION_MS: Final = 45_000
REBALANCE_MS: Final = 60_000
WARM_UP_S: Final = 1.0
POLL_S: Final = 0.005
VERSIONS: Final = 10  # of each key
PARTITIONS: Final = 1_000  # of the topic whose positions are loaded
FILLING: Final = 20  # commits under way while a partition is filled
SEGMENT_BYTES: Final = str(2**31 - 1)  # one segment, which is not compacted meanwhile


def usage_at(coordinator: Address) -> Usage:
    """Count the processor time of a coordinator, and of all other brokers, from now on."""
    servers = f"{coordinator.host}:{coordinator.port}"
    return Usage.of_ports([coordinator.port], others=broker_ports(servers))


class Member:
    """A member of a group, with a connection of its own."""

    def __init__(self, connection: KafkaConnection, group_id: str, topic: str) -> None:
        self.connection = connection
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.join_sent = 0.0
        subscription = struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + b"\xff\xff\xff\xff"
        self._protocols = (JoinGroupRequestProtocol(name="range", metadata=subscription),)
        self._assignment = subscription + bytes(4)

    async def join(self) -> None:
        """Join the group; return in a generation that is complete."""
        while not await self._join_once():
            pass

    async def _join_once(self) -> bool:
        """Join and synchronize; False: the group has begun another rebalance."""
        self.join_sent = time.monotonic()
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=self._protocols,
        )
        joined = await self.connection.ask(request)
        self.member_id = joined.member_id
        if joined.error_code == Errors.MEMBER_ID_REQUIRED or is_not_yet(joined.error_code):
            return False
        check(joined.error_code)
        assignments = [
            SyncGroupRequestAssignment(member_id=row.member_id, assignment=self._assignment)
            for row in joined.members  # empty, unless this is the leader
        ]
        sync = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(assignments),
        )
        synced = await self.connection.ask(sync)
        if synced.error_code == Errors.REBALANCE_IN_PROGRESS:
            return False
        check(synced.error_code)
        self.generation_id = joined.generation_id
        return True

    async def must_join_again(self) -> bool:
        """Send a heartbeat; return what the answer says."""
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
        )
        error_code = (await self.connection.ask(request)).error_code
        if error_code == Errors.REBALANCE_IN_PROGRESS:
            return True
        check(error_code)
        return False

    async def leave(self) -> None:
        """Leave the group."""
        request = LeaveGroupRequest(
            group_id=self.group_id, members=(MemberIdentity(member_id=self.member_id),)
        )
        check((await self.connection.ask(request)).error_code)

    def commit_of(self, topic: str, partitions: Sequence[int], offset: int) -> bytes:
        """Return a commit as it is sent."""
        rows = tuple(
            OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=""
            )
            for number in partitions
        )
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=self.generation_id,
            member_id=self.member_id,
            topics=(OffsetCommitRequestTopic(name=topic, partitions=rows),),
        )
        return framed(request)


@asynccontextmanager
async def connections(address: Address, number: int) -> AsyncIterator[list[KafkaConnection]]:
    """Open connections to a broker for the block."""
    opened = [await KafkaConnection.to(address) for _ in range(number)]
    try:
        yield opened
    finally:
        for connection in opened:
            connection.close()


# --- commits ---


class Committer:
    """Commits one position again and again, several times at once."""

    def __init__(self, member: Member, topic: str) -> None:
        self.times_ms: list[float] = []
        self.is_stopping = False
        self._connection = member.connection
        self._frame = member.commit_of(topic, [0], 4711)
        self._good: bytes | None = None

    def commit(self) -> None:
        """Commit, and once more with every answer."""
        sent = time.monotonic()

        def answered(body: bytes) -> None:
            if body != self._good:
                self._check(body)
            self.times_ms.append((time.monotonic() - sent) * 1000)
            if not self.is_stopping:
                self.commit()

        self._connection.send(self._frame, answered)

    def _check(self, body: bytes) -> None:
        for topic in response(api_of(OffsetCommitRequest), body).topics:
            for row in topic.partitions:
                check(row.error_code)
        self._good = body


async def measure_commits(
    address: Address, topic: str, clients: int, in_flight: int, seconds: float
) -> Figures:
    """Let members commit as fast as they are answered."""
    prefix = uuid.uuid4().hex[:8]
    found = await coordinators_of(address, [f"{prefix}-{n}" for n in range(20 * clients)])
    coordinator = next(iter(found.values()))
    group_ids = [group_id for group_id, where in found.items() if where == coordinator][:clients]
    async with connections(coordinator, clients) as opened:
        members = [Member(*pair, topic) for pair in zip(opened, group_ids, strict=True)]
        await asyncio.gather(*[member.join() for member in members])
        committers = [Committer(member, topic) for member in members]
        for committer in committers:
            for _ in range(in_flight):
                committer.commit()
        await asyncio.sleep(WARM_UP_S)
        for committer in committers:
            committer.times_ms.clear()
        usage, began = usage_at(coordinator), time.monotonic()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        times_ms = [ms for committer in committers for ms in committer.times_ms]
        result = {
            "clients": clients,
            "in_flight": in_flight,
            "commits_per_s": round(len(times_ms) / elapsed),
            **percentiles(times_ms, p50_ms=0.5, p99_ms=0.99),
            **usage.result(),
        }
        for committer in committers:
            committer.is_stopping = True
    return result


# --- rebalances ---


class LargeGroup:
    """Members that live as consumers do."""

    def __init__(self, heartbeat_s: float) -> None:
        self.members: list[Member] = []
        self._heartbeat_s = heartbeat_s
        self._tasks: dict[Member, asyncio.Task[None]] = {}
        self._generations: Counter[int] = Counter()
        self._settled = asyncio.Event()

    def add(self, member: Member) -> None:
        """Let a member join, and live from then on."""
        self.members.append(member)
        self._settled.clear()
        self._tasks[member] = asyncio.create_task(self._live(member))

    async def remove(self, member: Member) -> None:
        """Let a member leave."""
        self.members.remove(member)
        self._tasks.pop(member).cancel()
        self._settled.clear()
        await member.leave()

    async def settled(self) -> None:
        """Wait until all members are in one generation."""
        async with asyncio.timeout(TIMEOUT_S):
            waiting = asyncio.create_task(self._settled.wait())
            await asyncio.wait(
                [waiting, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED
            )
        for task in self._tasks.values():
            if task.done():
                task.result()  # it failed

    async def end(self) -> None:
        """Stop all members."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _live(self, member: Member) -> None:
        while True:
            await member.join()
            self._generations[member.generation_id] += 1
            if self._generations[member.generation_id] == len(self.members):
                self._settled.set()
            await asyncio.sleep(self._heartbeat_s)
            while not await member.must_join_again():
                await asyncio.sleep(self._heartbeat_s)


async def measure_rebalances(
    address: Address, topic: str, members: int, heartbeat_s: float
) -> Figures:
    """Let a group form, and two members come and go."""
    group_id = f"bench-{uuid.uuid4().hex[:8]}"
    coordinator = (await coordinators_of(address, [group_id]))[group_id]
    group = LargeGroup(heartbeat_s)

    async def timed(since: float, usage: Usage) -> Figures:
        await group.settled()
        now, last = time.monotonic(), max(member.join_sent for member in group.members)
        times = {"seconds": round(now - since, 2), "after_joins_s": round(now - last, 2)}
        return times | usage.result()

    async with connections(coordinator, members + 1) as opened:
        *first, late = [Member(connection, group_id, topic) for connection in opened]
        usage, began = usage_at(coordinator), time.monotonic()
        for member in first:
            group.add(member)
        formed = await timed(began, usage)
        usage, began = usage_at(coordinator), time.monotonic()
        group.add(late)
        joined = await timed(began, usage)
        usage, began = usage_at(coordinator), time.monotonic()
        await group.remove(group.members[members // 2])
        left = await timed(began, usage)
        await group.end()
    return {
        "members": members,
        "heartbeat_s": heartbeat_s,
        "formed": formed,
        "joined": joined,
        "left": left,
    }


# --- loading ---


async def measure_load(bootstrap: str, topic: str, records: int, positions: int) -> Figures:
    """Fill a partition, let another broker lead it, and wait for that broker's answer."""
    address = Address.of(bootstrap.split(",")[0])
    await coordinators_of(address, ["bench"])  # the topic of positions exists
    admin = AdminClient({"bootstrap.servers": bootstrap})
    metadata = admin.list_topics(OFFSETS, timeout=TIMEOUT_S)
    partitions = metadata.topics[OFFSETS].partitions
    groups = max(1, records // VERSIONS // PARTITIONS)
    partition, group_ids = _groups_of_one_partition(groups, len(partitions))
    coordinator = (await coordinators_of(address, group_ids[:1]))[group_ids[0]]
    usage, began = usage_at(coordinator), time.monotonic()
    with _one_segment(admin):
        await _fill(coordinator, group_ids, topic, positions)
    filled = {"seconds": round(time.monotonic() - began, 1), **usage.result()}
    leader, replicas = partitions[partition].leader, partitions[partition].replicas
    replicas = sorted(replicas, key=lambda broker: broker == leader)  # the leader is the last one
    to = _address(metadata.brokers[replicas[0]])
    usage, before_mb = usage_at(to), resident_mb(listening_on(to.port))
    controller = _address(metadata.brokers[metadata.controller_id])
    seconds = await _move(controller, to, partition, replicas, group_ids[-1])
    return {
        "records": groups * PARTITIONS * VERSIONS,
        "keys": groups * PARTITIONS,
        "records_per_commit": positions,
        "filled": filled,
        "seconds": seconds,
        **usage.result(),
        "memory_before_mb": before_mb,
        "memory_mb": resident_mb(usage.pids[0]),
    }


def _groups_of_one_partition(number: int, partitions: int) -> tuple[int, list[str]]:
    """Return a partition, and new groups that belong to it."""
    prefix = uuid.uuid4().hex[:8]
    partition = partition_for(prefix, partitions)
    names = (f"{prefix}-{tried}" for tried in count())
    fitting = (name for name in names if partition_for(name, partitions) == partition)
    return partition, list(islice(fitting, number))


def _address(broker: BrokerMetadata) -> Address:
    return Address.of(f"{broker.host}:{broker.port}")


@contextmanager
def _one_segment(admin: AdminClient) -> Iterator[None]:
    """Let the records of the block stay in one segment, which is not compacted."""
    topic = ConfigResource(ResourceType.TOPIC, OFFSETS)
    former = admin.describe_configs([topic])[topic].result(TIMEOUT_S)["segment.bytes"].value
    set_topic_config(admin, OFFSETS, "segment.bytes", SEGMENT_BYTES)
    try:
        yield
    finally:
        set_topic_config(admin, OFFSETS, "segment.bytes", former)


async def _fill(coordinator: Address, group_ids: Sequence[str], topic: str, positions: int) -> None:
    """Commit every position of every group, some at a time, ten times."""
    under_way = asyncio.Semaphore(FILLING)

    def answered(body: bytes) -> None:
        for row in response(api_of(OffsetCommitRequest), body).topics[0].partitions:
            check(row.error_code)
        under_way.release()

    async with await KafkaConnection.to(coordinator) as connection:
        for version in range(VERSIONS):
            for group_id in group_ids:
                member = Member(connection, group_id, topic)
                for first in range(0, PARTITIONS, positions):
                    await asyncio.wait_for(under_way.acquire(), TIMEOUT_S)
                    wanted = range(first, min(first + positions, PARTITIONS))
                    connection.send(member.commit_of(topic, wanted, version), answered)
        for _ in range(FILLING):
            await asyncio.wait_for(under_way.acquire(), TIMEOUT_S)


async def _move(
    controller: Address, to: Address, partition: int, replicas: Sequence[int], group_id: str
) -> float:
    """Make the first replica the leader; return the seconds until it knows a group."""
    row = ReassignablePartition(partition_index=partition, replicas=tuple(replicas))
    reassign = AlterPartitionReassignmentsRequest(
        timeout_ms=60_000, topics=(ReassignableTopic(name=OFFSETS, partitions=(row,)),)
    )
    elect = ElectLeadersRequest(
        topic_partitions=(TopicPartitions(topic=OFFSETS, partitions=(partition,)),),
        timeout_ms=60_000,
    )
    wanted = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    fetch = OffsetFetchRequest(groups=(wanted,))
    async with (
        await KafkaConnection.to(controller) as asked,
        await KafkaConnection.to(to) as target,
    ):
        check((await asked.ask(reassign)).error_code)
        await asyncio.sleep(1)
        began = time.monotonic()
        check((await asked.ask(elect)).error_code)
        while is_not_yet((group := (await target.ask(fetch)).groups[0]).error_code):
            await asyncio.sleep(POLL_S)
        seconds = round(time.monotonic() - began, 2)
    check(group.error_code)
    fetched = [row.committed_offset for row in group.topics[0].partitions]
    assert fetched == [VERSIONS - 1] * PARTITIONS, "not all is loaded"
    return seconds


# --- all of them ---

SUBJECTS: Final = ("commits", "rebalance", "load")


@benchmark(any_cluster=True)
@click.option("--only", type=click.Choice(SUBJECTS), multiple=True, default=SUBJECTS)
@click.option("--clients", type=click.IntRange(1), default=100, show_default=True)
@click.option("--in-flight", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--members", type=click.IntRange(2), default=1_000, show_default=True)
@click.option("--heartbeat", type=click.FloatRange(0.1), default=3.0, show_default=True)
@click.option("--records", type=click.IntRange(10_000), default=1_000_000, show_default=True)
@click.option(
    "--positions",
    type=click.IntRange(1, PARTITIONS),
    default=10,
    show_default=True,
    help="Records in one commit, to fill a partition.",
)
def groups(bootstrap: str | None, only: Sequence[str], **options: Any) -> Iterator[Case]:
    """Measure the coordinators of groups."""
    with cluster_at(bootstrap) as servers:
        address = Address.of(servers.split(",")[0])
        with existing(Topics(servers, 1, PARTITIONS, replicas=1)) as topics:
            topic = topics.names[0]
            measures = {
                "commits": lambda: measure_commits(
                    address, topic, options["clients"], options["in_flight"], options["seconds"]
                ),
                "rebalance": lambda: measure_rebalances(
                    address, topic, options["members"], options["heartbeat"]
                ),
                "load": lambda: measure_load(
                    servers, topic, options["records"], options["positions"]
                ),
            }
            for subject in only:
                yield Case({"subject": subject}, asyncio.run(measures[subject]()))
