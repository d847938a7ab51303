"""Replica placement as pure functions: which brokers hold the replicas of each new partition.

The brokers are put in a fixed order and indexed 0..n-1; every partition has an index ``i``.

``ring`` (default): brokers sorted by id; replica ``j`` (from 0) of partition ``i`` is on broker
``(i + start + j) mod n``. Four brokers, four partitions, three replicas:
``[0,1,2] [1,2,3] [2,3,0] [3,0,1]``.

``kafka``: the first replica as above; follower ``j`` (from 0) of a partition whose first replica is
on broker ``f`` is on ``(f + 1 + (shift + j) mod (n - 1)) mod n``. ``shift`` grows by one each time
``i`` passes a multiple of n, so that the leaderships of a dead broker do not all move to one
neighbour (Kafka's ``AdminUtils.assignReplicasToBrokersRackUnaware``, KAFKA-762).

``rack-aware``: the same, with brokers taken from each rack in turn. Brokers of racks that already
hold a replica are skipped until every rack holds one
(``AdminUtils.assignReplicasToBrokersRackAware``, KIP-36). When no broker has a rack it is
``kafka``; when only some have one it is an error, as in Kafka.

Machines. Brokers may share a machine (*host*, the setting ``node_host``). Then all strategies keep
the replicas of a partition on as many hosts, so a replication factor above the number of hosts is
refused; Kafka lets racks repeat, which need not be lost at once. In the order of the brokers hosts
alternate: broker k (from 0) of the m on host r of h comes at (k + r / h) / m; hosts with the most
brokers are first, then those with the lowest id. ``ring`` goes on with the next broker where it
meets a host for the second time, which it does only if hosts have unequal numbers of brokers.
Three hosts with brokers 0-1, 2-3, 4-5 have the order 0 2 4 1 3 5: ``[0,2,4] [2,4,1] [4,1,3] …``.
``kafka`` is ``rack-aware`` with hosts for racks. Where each broker has a host of its own, all of
this changes nothing.

``copyset``: partition ``i`` is on entry ``(i + start) mod length`` of a list of sets of brokers
(``copysets``). Each replication factor has its own list and its own count ``i``.

How ``i`` counts. The partitions to place, sorted by (topic, partition), are counted in *runs*:
``batch`` has one run of all partitions, so that a batch of small topics spreads over all brokers;
``per-topic`` has one run for each topic. The count of a run begins at the ``start_partition`` of
its first topic, which is 0 for a new topic, and has no gaps. For a single topic, new or growing,
``i`` is therefore the partition id.

Where a run begins (``start``): a number; the index of the ``least-loaded`` broker (fewest replicas,
lowest id first); or ``random``, drawn from the seed for each run. As in Kafka, a fixed start is
also the first ``shift``; with a random start, the first ``shift`` is random too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId
from regent.core.placement.copysets import (
    DEFAULT_SCATTER_WIDTH,
    MAX_ENTRIES,
    NO_HOSTS,
    Copyset,
    Hosts,
    rota,
    rota_length,
)
from regent.core.placement.splitmix64 import splitmix64
from regent.core.protocol.placement import PlacedPartition, PlacementSpec, PlaceTopicsRequest

N = TypeVar("N", int, Any)  # a number, or an array of numpy

RANDOM = "random"
LEAST_LOADED = "least-loaded"
MAX_PARTITION = 2**31 - 1  # partition ids are 32-bit in every Kafka format


class Strategy(StrEnum):
    """How replicas are spread over the brokers."""

    RING = "ring"
    KAFKA = "kafka"
    RACK_AWARE = "rack-aware"
    COPYSET = "copyset"


class IndexScope(StrEnum):
    """Which partitions are counted together."""

    BATCH = "batch"
    PER_TOPIC = "per-topic"


_WITH_RACKS = (Strategy.RACK_AWARE, Strategy.COPYSET)


class PlacementError(RegentError):
    """The request cannot be placed; ``error_code`` is for the response."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


class Run(NamedTuple):
    """Topics, sorted by name, whose partitions are counted together from ``first_index`` on."""

    topics: tuple[PlacementSpec, ...]
    first_index: int
    start: int
    shift: int


def place(request: PlaceTopicsRequest) -> list[PlacedPartition]:
    """Place every partition of the request; sorted by (topic, partition).

    Raises:
        PlacementError: see ``check``.
    """
    check(request)
    rule = ReplicaRule.of(request)
    placed = []
    for run in runs(request):
        shift = run.shift
        for (topic, partition, factor), index in _partitions(request, run):
            if index > 0 and index % len(rule.brokers) == 0:
                shift += 1
            replicas = rule.replicas(index + run.start, shift, factor)
            placed.append(PlacedPartition(topic, partition, replicas))
    return placed


class ReplicaRule(NamedTuple):
    """The strategy of a request with its brokers, for any partition.

    ``brokers`` is in the order of ``broker_order``; their ``racks`` are their hosts where racks do
    not count. ``rotas``: see ``copyset_rotas``.
    """

    is_ring: bool
    brokers: Sequence[BrokerId]
    racks: Mapping[BrokerId, Hashable]
    rack_count: int
    hosts: Hosts
    rotas: Mapping[int, Sequence[Copyset]]

    @classmethod
    def of(cls, request: PlaceTopicsRequest) -> ReplicaRule:
        """Return the rule of a request that ``check`` accepts."""
        hosts = dict(hosts_in_use(request))  # the rule is sent to other processes
        racks = racks_in_use(request) or hosts
        return cls(
            request.strategy == Strategy.RING,
            broker_order(request),
            racks,
            len(set(racks.values())),
            hosts,
            copyset_rotas(request),
        )

    def replicas(self, first: int, shift: int, factor: int) -> tuple[BrokerId, ...]:
        """Return the brokers of a partition; ``first`` is its index plus the start of its run."""
        if self.rotas:
            rota = self.rotas[factor]
            return rota[first % len(rota)]
        indexes = self.indexes(first, shift, factor)
        if indexes is not None:
            return tuple(self.brokers[index] for index in indexes)
        shift = 0 if self.is_ring else shift
        return place_rack_aware(
            self.brokers, self.racks, first, factor, shift, self.hosts, self.rack_count
        )

    def indexes(self, first: N, shift: N, factor: int) -> list[N] | None:
        """Return where in ``brokers`` the replicas are; None if that is not only arithmetic.

        ``first`` and ``shift`` are of one partition, or arrays of numpy, of many.
        """
        if self.rotas or self.racks:
            return None
        n = len(self.brokers)
        return (
            ring_indexes(n, first, factor)
            if self.is_ring
            else kafka_indexes(n, first, factor, shift)
        )

    def cycle(self, factor: int) -> tuple[int, int]:
        """Return after how many indexes, and after how many shifts, the replicas are the same."""
        if self.rotas:
            return len(self.rotas[factor]), 1
        n = len(self.brokers)
        return n, 1 if self.is_ring else max(n - 1, 1)


def _partitions(
    request: PlaceTopicsRequest, run: Run
) -> Iterator[tuple[tuple[str, int, int], int]]:
    for spec, first_index in first_indexes(request, run):
        topic, partitions, factor, start_partition = spec
        for offset in range(partitions):
            yield (topic, start_partition + offset, factor), first_index + offset


# --- the strategies of Kafka, and the ring --------------------------------------------------------


def place_ring(brokers: Sequence[BrokerId], first: int, factor: int) -> tuple[BrokerId, ...]:
    """Return ``factor`` neighbours on the ring, beginning at index ``first``."""
    return tuple(brokers[index] for index in ring_indexes(len(brokers), first, factor))


def ring_indexes(n: int, first: N, factor: int) -> list[N]:
    """Return ``factor`` neighbours on the ring of ``n`` brokers, beginning at ``first``."""
    return [(first + j) % n for j in range(factor)]


def kafka_indexes(n: int, first: N, factor: int, shift: N) -> list[N]:
    """Return ``first``, and followers from distance ``shift`` + 1 on."""
    return [first % n, *(_follower_index(n, first, shift + j) for j in range(factor - 1))]


def place_rack_aware(
    brokers: Sequence[BrokerId],
    racks: Mapping[BrokerId, Hashable],
    first: int,
    factor: int,
    shift: int,
    hosts: Hosts = NO_HOSTS,
    rack_count: int | None = None,
) -> tuple[BrokerId, ...]:
    """Return the broker at index ``first``, and followers in unused racks while there are any.

    ``brokers`` is in the order of ``broker_order``, and ``factor`` at most the number of hosts.
    A host, which is in one rack, is never used twice.
    """
    n = len(brokers)
    rack_count = rack_count or len(set(racks.values()))
    replicas = [brokers[first % n]]
    used_racks = {racks[replicas[0]]}
    used_hosts = {hosts.get(replicas[0], replicas[0])}
    step = shift * rack_count
    while len(replicas) < factor:
        candidate = brokers[_follower_index(n, first, step)]
        step += 1
        rack_is_free = racks[candidate] not in used_racks or len(used_racks) == rack_count
        host = hosts.get(candidate, candidate)
        if rack_is_free and host not in used_hosts:
            replicas.append(candidate)
            used_racks.add(racks[candidate])
            used_hosts.add(host)
    return tuple(replicas)


def _follower_index(n: int, first: N, distance: N) -> N:
    return (first + 1 + distance % (n - 1)) % n


def rack_alternated_brokers(
    racks: Mapping[BrokerId, str], hosts: Hosts = NO_HOSTS
) -> list[BrokerId]:
    """Return the brokers taken from each rack in turn: racks by name; in a rack hosts alternate."""
    by_rack = [
        host_alternated_brokers((b for b, rack in racks.items() if rack == name), hosts)
        for name in sorted(set(racks.values()))
    ]
    return [b for turn in zip_longest(*by_rack) for b in turn if b is not None]


def host_alternated_brokers(brokers: Iterable[BrokerId], hosts: Hosts) -> list[BrokerId]:
    """Return the brokers in the order in which hosts alternate; without hosts sorted by id."""
    if not hosts:
        return sorted(brokers)
    on_host: dict[BrokerId, list[BrokerId]] = defaultdict(list)
    for broker in sorted(brokers):
        on_host[hosts.get(broker, broker)].append(broker)
    largest_first = sorted(on_host.values(), key=lambda row: (-len(row), row[0]))
    places = {
        broker: Fraction(number * len(on_host) + rank, len(row) * len(on_host))
        for rank, row in enumerate(largest_first)
        for number, broker in enumerate(row)
    }
    return sorted(places, key=places.__getitem__)


# --- the input of the strategies ------------------------------------------------------------------


def racks_in_use(request: PlaceTopicsRequest) -> dict[BrokerId, str]:
    """Return the rack of every broker; empty when the strategy ignores racks."""
    if request.strategy not in _WITH_RACKS:
        return {}
    return {b.broker_id: b.rack for b in request.brokers if b.rack is not None}


def hosts_in_use(request: PlaceTopicsRequest) -> Hosts:
    """Return the host of every broker; empty if each has a host of its own."""
    names = dict(request.hosts)
    first_on: dict[str | BrokerId, BrokerId] = {}
    hosts = {
        broker: first_on.setdefault(names.get(broker, broker), broker)
        for broker in sorted(broker.broker_id for broker in request.brokers)
    }
    return hosts if len(first_on) < len(hosts) else NO_HOSTS


def broker_order(request: PlaceTopicsRequest) -> list[BrokerId]:
    """Return the broker ids in the sequence that the strategies index."""
    racks, hosts = racks_in_use(request), hosts_in_use(request)
    if racks:
        return rack_alternated_brokers(racks, hosts)
    return host_alternated_brokers((b.broker_id for b in request.brokers), hosts)


def runs(request: PlaceTopicsRequest) -> list[Run]:
    """Return the runs in which partitions are counted, in the order of their topics."""
    topics = tuple(sorted(request.topics))
    per_topic = request.index == IndexScope.PER_TOPIC
    groups = [(topic,) for topic in topics] if per_topic else [topics] if topics else []
    fixed_start = _fixed_start(request)
    counted = []
    for number, group in enumerate(groups):
        if fixed_start is None:
            start, shift = _random_start(request, number)
        else:
            start = shift = fixed_start
        counted.append(Run(group, group[0].start_partition, start, shift))
    return counted


def first_indexes(request: PlaceTopicsRequest, run: Run) -> Iterator[tuple[PlacementSpec, int]]:
    """Yield the topics of a run, each with the index of its first partition."""
    counted: dict[int, int] = {}
    for spec in run.topics:
        counter = spec.replication_factor if request.strategy == Strategy.COPYSET else 0
        index = counted.get(counter, spec.start_partition)
        counted[counter] = index + spec.partitions
        yield spec, index


def copyset_rotas(request: PlaceTopicsRequest) -> dict[int, list[Copyset]]:
    """Return the list of copysets of each replication factor; empty for other strategies.

    With ``least-loaded``, a list begins at the first entry that the least loaded broker leads.
    """
    if request.strategy != Strategy.COPYSET:
        return {}
    brokers = [broker.broker_id for broker in request.brokers]
    width = scatter_width(request)
    rotas = {}
    for factor in sorted({spec.replication_factor for spec in request.topics}):
        racks, hosts = racks_in_use(request), hosts_in_use(request)
        entries = rota(brokers, racks, factor, width, request.copyset_seed, hosts)
        if request.start_index == LEAST_LOADED:
            first = _first_entry(entries, _least_loaded(request))
            entries = entries[first:] + entries[:first]
        rotas[factor] = entries
    return rotas


def _first_entry(entries: Sequence[Copyset], broker: BrokerId) -> int:
    """Return the number of the first entry that the broker leads, or, if it leads none, is in."""

    def place(number: int) -> int:
        entry = entries[number]
        return entry.index(broker) if broker in entry else len(entry)

    return min(range(len(entries)), key=place)


def scatter_width(request: PlaceTopicsRequest) -> int:
    """Return the requested scatter width, or the default."""
    return request.scatter_width or min(DEFAULT_SCATTER_WIDTH, len(request.brokers) - 1)


def _fixed_start(request: PlaceTopicsRequest) -> int | None:
    if request.start_index == RANDOM:
        return None
    if request.start_index == LEAST_LOADED:
        is_first = request.strategy == Strategy.COPYSET  # its list begins there
        return 0 if is_first else broker_order(request).index(_least_loaded(request))
    return int(request.start_index)


def _least_loaded(request: PlaceTopicsRequest) -> BrokerId:
    return min(request.brokers, key=lambda b: (b.replica_count, b.broker_id)).broker_id


def _random_start(request: PlaceTopicsRequest, run: int) -> tuple[int, int]:
    # Copysets are counted modulo the length of their list.
    n = MAX_PARTITION if request.strategy == Strategy.COPYSET else len(request.brokers)
    return splitmix64(request.seed, 2 * run) % n, splitmix64(request.seed, 2 * run + 1) % n


# --- what is refused ------------------------------------------------------------------------------


def check(request: PlaceTopicsRequest) -> None:
    """Check that the request can be placed.

    Raises:
        PlacementError: INVALID_REPLICATION_FACTOR, INVALID_PARTITIONS, or INVALID_REQUEST for
            options, duplicates and incomplete racks; the message is one sentence for the user.
    """
    _check_options(request)
    _check_brokers(request)
    duplicates = _duplicates(spec.topic for spec in request.topics)
    if duplicates:
        raise _invalid_request(f"topic {duplicates[0]} is listed more than once")
    hosts = hosts_in_use(request)
    for spec in request.topics:
        _check_topic(spec, len(request.brokers), len(set(hosts.values())))
    _check_copysets(request)


def _check_options(request: PlaceTopicsRequest) -> None:
    if request.strategy not in set(Strategy):
        raise _invalid_request(
            f"strategy must be one of {', '.join(Strategy)}, not {request.strategy!r}"
        )
    if request.index not in set(IndexScope):
        raise _invalid_request(
            f"index must be one of {', '.join(IndexScope)}, not {request.index!r}"
        )
    start = request.start_index
    is_number = start.isascii() and start.isdecimal() and len(start) <= 10
    if start not in (RANDOM, LEAST_LOADED) and not (is_number and int(start) <= MAX_PARTITION):
        raise _invalid_request(
            f"start index must be a number from 0 to {MAX_PARTITION}, {RANDOM!r} or "
            f"{LEAST_LOADED!r}, not {start!r}"
        )


def _check_brokers(request: PlaceTopicsRequest) -> None:
    if not request.brokers:
        raise PlacementError(
            Errors.INVALID_REPLICATION_FACTOR, "there are no brokers to place replicas on"
        )
    duplicates = _duplicates(broker.broker_id for broker in request.brokers)
    if duplicates:
        raise _invalid_request(f"broker {duplicates[0]} is listed more than once")
    without_rack = sorted(b.broker_id for b in request.brokers if b.rack is None)
    if request.strategy in _WITH_RACKS and 0 < len(without_rack) < len(request.brokers):
        raise _invalid_request(
            f"not all brokers have a rack (broker {without_rack[0]} has none): give every broker "
            f"one, or choose another strategy than {request.strategy}"
        )
    racks, hosts = racks_in_use(request), hosts_in_use(request)
    for broker, rack in sorted(racks.items()):
        first = hosts.get(broker, broker)
        if racks[first] != rack:
            raise _invalid_request(
                f"brokers {first} and {broker} are on one host and in racks {racks[first]} and "
                f"{rack}: give all brokers of a host one rack"
            )


def _check_topic(spec: PlacementSpec, brokers: int, hosts: int) -> None:
    if spec.partitions <= 0:
        raise PlacementError(
            Errors.INVALID_PARTITIONS,
            f"topic {spec.topic}: the number of partitions must be positive, not {spec.partitions}",
        )
    if spec.start_partition < 0 or spec.start_partition + spec.partitions > MAX_PARTITION:
        raise PlacementError(
            Errors.INVALID_PARTITIONS,
            f"topic {spec.topic}: partition ids must be from 0 to {MAX_PARTITION}",
        )
    if spec.replication_factor <= 0:
        raise PlacementError(
            Errors.INVALID_REPLICATION_FACTOR,
            f"topic {spec.topic}: the replication factor must be positive, "
            f"not {spec.replication_factor}",
        )
    if spec.replication_factor > brokers:
        raise PlacementError(
            Errors.INVALID_REPLICATION_FACTOR,
            f"topic {spec.topic}: replication factor {spec.replication_factor} is larger than "
            f"the {brokers} available broker{'' if brokers == 1 else 's'}",
        )
    if 0 < hosts < spec.replication_factor:
        raise PlacementError(
            Errors.INVALID_REPLICATION_FACTOR,
            f"topic {spec.topic}: replication factor {spec.replication_factor} is larger than "
            f"the number of hosts, {hosts}, of the {brokers} available brokers, and two replicas "
            "are never placed on one host: choose a smaller one, or add a host",
        )


def _check_copysets(request: PlaceTopicsRequest) -> None:
    if request.strategy != Strategy.COPYSET:
        if request.scatter_width != 0:
            raise _invalid_request(f"a scatter width goes with strategy {Strategy.COPYSET}")
        return
    others = len(request.brokers) - 1
    if not 0 <= request.scatter_width <= others:
        raise _invalid_request(
            f"scatter width must be from 1 to {others}, the number of other brokers,"
            f" not {request.scatter_width}"
        )
    width = scatter_width(request)
    factors = {spec.replication_factor for spec in request.topics}
    entries = sum(rota_length(len(request.brokers), factor, width) for factor in factors)
    if entries > MAX_ENTRIES:
        raise _invalid_request(
            f"scatter width {width} of {len(request.brokers)} brokers takes a list of {entries}"
            f" copysets, and {MAX_ENTRIES} is the limit: choose a smaller scatter width"
        )


def _duplicates(values: Iterable[int | str]) -> list[int | str]:
    return [value for value, count in Counter(values).items() if count > 1]


def _invalid_request(message: str) -> PlacementError:
    return PlacementError(Errors.INVALID_REQUEST, message)
