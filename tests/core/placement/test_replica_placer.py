"""Placement strategies: Kafka's examples by name, properties by enumeration."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product

import pytest

from regent.core.errors import Errors
from regent.core.placement.replica_placer import (
    LEAST_LOADED,
    RANDOM,
    PlacementError,
    check,
    copyset_rotas,
    place,
    rack_alternated_brokers,
    runs,
)
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementHost,
    PlacementSpec,
    PlaceTopicsRequest,
)

SIX_BROKERS_THREE_RACKS = {0: "r1", 1: "r3", 2: "r3", 3: "r2", 4: "r2", 5: "r1"}


def request(
    *topics: PlacementSpec,
    brokers: int | dict[int, str] = 4,
    strategy: str = "ring",
    start: str = "0",
    index: str = "batch",
    seed: int = 0,
    loads: dict[int, int] | None = None,
) -> PlaceTopicsRequest:
    """``brokers`` is the number of brokers, or a rack for each id."""
    racks = dict.fromkeys(range(brokers)) if isinstance(brokers, int) else brokers
    loads = loads or {}
    return PlaceTopicsRequest(
        tuple(topics),
        tuple(PlacementBroker(b, rack, loads.get(b, 0)) for b, rack in racks.items()),
        strategy,
        start,
        index,
        seed,
    )


def topic(partitions: int, factor: int, *, first: int = 0, name: str = "t") -> PlacementSpec:
    return PlacementSpec(name, partitions, factor, first)


def placed(request: PlaceTopicsRequest) -> list[list[int]]:
    return [list(partition.replicas) for partition in place(request)]


# --- ring -----------------------------------------------------------------------------------------


def test_four_partitions_with_three_replicas_on_four_brokers():
    assert placed(request(topic(4, 3), brokers=4)) == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]


def test_payments_with_twelve_partitions_on_three_brokers():
    payments = place(request(topic(12, 3, name="payments"), brokers=3))
    assert [(p.topic, p.partition) for p in payments] == [("payments", i) for i in range(12)]
    assert [p.replicas for p in payments] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)] * 4


def test_the_ring_is_i_plus_j_modulo_n_for_every_small_cluster():
    for n in range(1, 9):
        for factor, start, first in product(range(1, n + 1), range(n), (0, 1, n, 2 * n + 1)):
            assert placed(
                request(topic(2 * n + 1, factor, first=first), brokers=n, start=str(start))
            ) == [
                [(i + start + j) % n for j in range(factor)]
                for i in range(first, first + 2 * n + 1)
            ]


def test_brokers_are_sorted_by_id():
    assert placed(request(topic(3, 2), brokers={30: "", 7: "", 12: ""})) == [
        [7, 12],
        [12, 30],
        [30, 7],
    ]


def test_added_partitions_continue_the_ring():
    whole = place(request(topic(10, 3), brokers=4))
    assert place(request(topic(4, 3, first=6), brokers=4)) == whole[6:]


# --- the index ------------------------------------------------------------------------------------


def test_many_small_topics_spread_over_all_brokers():
    topics = [topic(1, 1, name=name) for name in ("c", "a", "d", "b")]
    assert [(p.topic, p.replicas) for p in place(request(*topics))] == [
        ("a", (0,)),
        ("b", (1,)),
        ("c", (2,)),
        ("d", (3,)),
    ]


def test_with_a_per_topic_index_every_topic_starts_at_the_same_broker():
    topics = [topic(2, 2, name=name) for name in ("a", "b")]
    assert placed(request(*topics, index="per-topic")) == [[0, 1], [1, 2]] * 2


def test_a_batch_starts_at_its_first_new_partition_and_has_no_gaps():
    growing = topic(2, 1, first=5, name="a")
    new = topic(3, 1, name="b")
    assert [(p.topic, p.partition, p.replicas) for p in place(request(new, growing))] == [
        ("a", 5, (1,)),
        ("a", 6, (2,)),
        ("b", 0, (3,)),
        ("b", 1, (0,)),
        ("b", 2, (1,)),
    ]


# --- Kafka's shifted scheme -----------------------------------------------------------------------


def test_kafkas_example_for_five_brokers():
    expected = [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 0],
        [4, 0, 1],
        [0, 2, 3],
        [1, 3, 4],
        [2, 4, 0],
        [3, 0, 1],
        [4, 1, 2],
    ]
    assert placed(request(topic(10, 3), brokers=5, strategy="kafka")) == expected


def test_followers_shift_after_every_round_of_brokers():
    assert placed(request(topic(8, 2), strategy="kafka")) == [
        [0, 1],
        [1, 2],
        [2, 3],
        [3, 0],
        [0, 2],
        [1, 3],
        [2, 0],
        [3, 1],
    ]


def test_added_partitions_after_ten_start_with_a_shift():
    grown = request(topic(3, 3, first=10), brokers=5, strategy="kafka")
    assert placed(grown) == [[0, 2, 3], [1, 3, 4], [2, 4, 0]]


def test_a_fixed_start_is_also_the_first_shift():
    grown = request(topic(2, 2, first=1), strategy="kafka", start="1")
    assert placed(grown) == [[2, 0], [3, 1]]


def test_the_leaderships_of_a_failed_broker_move_to_many_brokers():
    def successors(strategy: str) -> set[int]:
        partitions = placed(request(topic(100, 3), brokers=10, strategy=strategy))
        return {replicas[1] for replicas in partitions if replicas[0] == 0}

    assert successors("ring") == {1}
    assert successors("kafka") == set(range(1, 10))


# --- rack-aware -----------------------------------------------------------------------------------


def test_brokers_are_taken_from_each_rack_in_turn():
    assert rack_alternated_brokers(SIX_BROKERS_THREE_RACKS) == [0, 3, 1, 5, 4, 2]
    assert rack_alternated_brokers({0: "a", 1: "b", 2: "b", 3: "b"}) == [0, 1, 2, 3]


def test_kafkas_rack_aware_example():
    seven = request(topic(7, 3), brokers=SIX_BROKERS_THREE_RACKS, strategy="rack-aware")
    assert placed(seven) == [
        [0, 3, 1],
        [3, 1, 5],
        [1, 5, 4],
        [5, 4, 2],
        [4, 2, 0],
        [2, 0, 3],
        [0, 4, 2],
    ]


@pytest.mark.parametrize("layout", ["aab", "abc", "aabbcc", "aaaab", "abcabcab", "aaaa"])
def test_no_rack_gets_a_second_replica_before_every_rack_has_one(layout: str):
    racks = dict(enumerate(layout))
    for factor, start in product(range(1, len(racks) + 1), range(len(racks))):
        spec = topic(3 * len(racks), factor)
        for replicas in placed(
            request(spec, brokers=racks, strategy="rack-aware", start=str(start))
        ):
            assert len(set(replicas)) == factor
            assert len({racks[b] for b in replicas}) == min(factor, len(set(layout)))


def test_equal_racks_share_leaders_and_replicas_evenly():
    even = request(topic(36, 3), brokers=SIX_BROKERS_THREE_RACKS, strategy="rack-aware")
    partitions = placed(even)
    assert set(Counter(replicas[0] for replicas in partitions).values()) == {6}
    assert set(Counter(b for replicas in partitions for b in replicas).values()) == {18}


def test_without_racks_the_rack_aware_strategy_equals_the_shifted_one():
    spec = topic(20, 3)
    assert place(request(spec, strategy="rack-aware")) == place(request(spec, strategy="kafka"))


# --- Kafka's code, copied -------------------------------------------------------------------------


def kafka_replica_index(first: int, shift: int, index: int, n: int) -> int:
    return (first + 1 + (shift + index) % (n - 1)) % n


def kafka_alternated(racks: dict[int, str]) -> list[int]:
    """``AdminUtils.getRackAlternatedBrokerList``."""
    names = sorted(set(racks.values()))
    iterators = {name: iter(sorted(b for b in racks if racks[b] == name)) for name in names}
    arranged: list[int] = []
    rack_index = 0
    while len(arranged) < len(racks):
        broker = next(iterators[names[rack_index]], None)
        if broker is not None:
            arranged.append(broker)
        rack_index = (rack_index + 1) % len(names)
    return arranged


def kafka_rack_aware(
    racks: dict[int, str], partitions: int, factor: int, start: int, first: int
) -> list[list[int]]:
    """``AdminUtils.assignReplicasToBrokersRackAware``."""
    number_of_racks = len(set(racks.values()))
    arranged = kafka_alternated(racks)
    assigned = []
    shift = start
    for partition in range(first, first + partitions):
        if partition > 0 and partition % len(arranged) == 0:
            shift += 1
        first_index = (partition + start) % len(arranged)
        replicas = [arranged[first_index]]
        racks_with_replicas = {racks[replicas[0]]}
        k = 0
        for _ in range(factor - 1):
            done = False
            while not done:
                n = len(arranged)
                broker = arranged[kafka_replica_index(first_index, shift * number_of_racks, k, n)]
                rack = racks[broker]
                if (
                    rack not in racks_with_replicas or len(racks_with_replicas) == number_of_racks
                ) and (broker not in replicas or len(replicas) == n):
                    replicas.append(broker)
                    racks_with_replicas.add(rack)
                    done = True
                k += 1
        assigned.append(replicas)
    return assigned


def kafka_rack_unaware(
    brokers: list[int], partitions: int, factor: int, start: int, first: int
) -> list[list[int]]:
    """``AdminUtils.assignReplicasToBrokersRackUnaware``."""
    assigned = []
    shift = start
    for partition in range(first, first + partitions):
        if partition > 0 and partition % len(brokers) == 0:
            shift += 1
        first_index = (partition + start) % len(brokers)
        followers = [
            brokers[kafka_replica_index(first_index, shift, j, len(brokers))]
            for j in range(factor - 1)
        ]
        assigned.append([brokers[first_index], *followers])
    return assigned


def test_kafkas_broker_list_without_broker_five():
    racks = {b: rack for b, rack in SIX_BROKERS_THREE_RACKS.items() if b != 5}
    assert rack_alternated_brokers(racks) == [0, 3, 1, 4, 2]


@pytest.mark.parametrize("seed", range(150))
def test_placements_equal_those_of_kafkas_code_on_random_clusters(seed: int):
    dice = random.Random(seed)
    n = dice.randint(1, 14)
    ids = dice.sample(range(1000), n)
    racks = {broker: dice.choice("abcdef"[: dice.randint(1, 6)]) for broker in ids}
    factor, start, first = dice.randint(1, n), dice.randint(0, 3 * n), dice.randint(0, 3 * n)
    wanted = topic(dice.randint(1, 4 * n), factor, first=first)
    aware = request(wanted, brokers=racks, strategy="rack-aware", start=str(start))
    assert placed(aware) == kafka_rack_aware(racks, wanted.partitions, factor, start, first)
    unaware = request(wanted, brokers=racks, strategy="kafka", start=str(start))
    assert placed(unaware) == kafka_rack_unaware(
        sorted(ids), wanted.partitions, factor, start, first
    )


@pytest.mark.parametrize(
    ("racks", "factor", "partitions", "expected"),
    [
        # Five replicas in three racks; every broker; one broker; uneven racks; all in one rack.
        ("abc" * 2, 5, 2, [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]),
        ("abca", 4, 2, [[0, 1, 2, 3], [1, 2, 3, 0]]),
        ("a", 1, 3, [[0], [0], [0]]),
        ("aaab", 2, 5, [[0, 3], [3, 1], [1, 3], [2, 3], [0, 3]]),
        ("aaa", 3, 4, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1]]),
    ],
)
def test_rack_aware_placements_computed_by_hand(
    racks: str, factor: int, partitions: int, expected: list[list[int]]
):
    wanted = request(
        topic(partitions, factor), brokers=dict(enumerate(racks)), strategy="rack-aware"
    )
    assert placed(wanted) == expected


# --- copysets -------------------------------------------------------------------------------------


def test_partitions_use_the_copysets_in_turn():
    wanted = request(topic(40, 3), brokers=9, strategy="copyset")
    partitions = placed(wanted)
    [entries] = copyset_rotas(wanted).values()
    assert partitions == [list(entries[i % len(entries)]) for i in range(40)]
    assert placed(request(topic(3, 3, first=7), brokers=9, strategy="copyset")) == partitions[7:10]


def test_every_replication_factor_has_its_own_copysets_and_index():
    topics = [topic(12, 2 + number % 2, name=f"t{number}") for number in range(20)]
    loads: dict[int, Counter[int]] = {2: Counter(), 3: Counter()}
    for partition in place(request(*topics, brokers=12, strategy="copyset")):
        loads[len(partition.replicas)].update(partition.replicas)
    assert set(loads[2].values()) == {20}
    assert set(loads[3].values()) == {30}


def test_partitions_of_another_replication_factor_do_not_advance_the_index():
    """Five partitions with two replicas between those with three leave no gap in their index."""
    threes = [topic(5, 3, name="a"), topic(1, 3, name="c"), topic(7, 3, name="e")]
    twos = [topic(5, 2, name="b"), topic(4, 2, name="d")]
    mixed = request(*threes, *twos, brokers=7, strategy="copyset")
    for factor, rota in copyset_rotas(mixed).items():
        found = [p.replicas for p in place(mixed) if len(p.replicas) == factor]
        assert found == [rota[number % len(rota)] for number in range(len(found))]


def test_topics_created_one_after_another_share_their_copysets():
    def copysets(name: str, seed: int) -> set[frozenset[int]]:
        wanted = request(
            topic(500, 3, name=name), brokers=9, strategy="copyset", start=RANDOM, seed=seed
        )
        return {frozenset(replicas) for replicas in placed(wanted)}

    assert copysets("a", 1) == copysets("b", 2)
    assert len(copysets("a", 1)) <= 4 * 3


@pytest.mark.parametrize("least", range(9))
def test_copysets_start_with_the_least_loaded_broker(least: int):
    loads = {broker: int(broker != least) for broker in range(9)}
    wanted = request(topic(1, 3), brokers=9, strategy="copyset", start=LEAST_LOADED, loads=loads)
    assert placed(wanted)[0][0] == least


# --- the start index ------------------------------------------------------------------------------


def test_a_random_start_is_decided_by_the_seed():
    def start(seed: int) -> int:
        return placed(request(topic(1, 1), brokers=10, start=RANDOM, seed=seed))[0][0]

    starts = [start(seed) for seed in range(300)]
    assert starts == [start(seed) for seed in range(300)]
    assert set(starts) == set(range(10))


def test_with_a_per_topic_index_every_topic_has_its_own_random_start():
    topics = [topic(1, 1, name=f"t{number:03}") for number in range(200)]
    drawn = runs(request(*topics, brokers=10, start=RANDOM, index="per-topic"))
    assert {run.start for run in drawn} == {run.shift for run in drawn} == set(range(10))
    assert len({(run.start, run.shift) for run in drawn}) > 50


@pytest.mark.parametrize(
    ("loads", "first"), [({}, 0), ({0: 5, 1: 2, 2: 2, 3: 9}, 1), ({0: 1, 1: 1, 2: 1}, 3)]
)
def test_the_least_loaded_broker_is_first_and_the_lowest_id_among_equals(
    loads: dict[int, int], first: int
):
    assert placed(request(topic(1, 1), start=LEAST_LOADED, loads=loads)) == [[first]]


def test_the_least_loaded_broker_is_first_in_any_sequence_of_brokers():
    busy = {broker: 1 for broker in SIX_BROKERS_THREE_RACKS if broker != 4}
    [replicas] = placed(
        request(
            topic(1, 3),
            brokers=SIX_BROKERS_THREE_RACKS,
            strategy="rack-aware",
            start=LEAST_LOADED,
            loads=busy,
        )
    )
    assert replicas[0] == 4


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refused", "error_code", "message"),
    [
        (
            request(topic(1, 4), brokers=3),
            Errors.INVALID_REPLICATION_FACTOR,
            "replication factor 4 is larger than the 3 available brokers",
        ),
        (
            request(topic(1, 2), brokers=1),
            Errors.INVALID_REPLICATION_FACTOR,
            "replication factor 2 is larger than the 1 available broker",
        ),
        (request(topic(1, 0)), Errors.INVALID_REPLICATION_FACTOR, "must be positive, not 0"),
        (request(topic(1, 1), brokers=0), Errors.INVALID_REPLICATION_FACTOR, "no brokers"),
        (request(topic(0, 1)), Errors.INVALID_PARTITIONS, "must be positive, not 0"),
        (request(topic(1, 1, first=-1)), Errors.INVALID_PARTITIONS, "from 0 to"),
        (request(topic(1, 1, first=2**31 - 1)), Errors.INVALID_PARTITIONS, "from 0 to"),
        (request(topic(1, 1), topic(2, 1)), Errors.INVALID_REQUEST, "topic t is listed more"),
        (request(topic(1, 1), strategy="best"), Errors.INVALID_REQUEST, "not 'best'"),
        (request(topic(1, 1), index="topic"), Errors.INVALID_REQUEST, "not 'topic'"),
        (request(topic(1, 1), start="-1"), Errors.INVALID_REQUEST, "not '-1'"),
        (request(topic(1, 1), start="²"), Errors.INVALID_REQUEST, "start index"),
        (request(topic(1, 1), start=str(2**31)), Errors.INVALID_REQUEST, "start index"),
        (
            replace(request(topic(1, 1), strategy="copyset"), scatter_width=4),
            Errors.INVALID_REQUEST,
            "from 1 to 3, the number of other brokers, not 4",
        ),
        (
            replace(request(topic(1, 1)), scatter_width=3),
            Errors.INVALID_REQUEST,
            "a scatter width goes with strategy copyset",
        ),
        (
            replace(request(topic(1, 2), brokers=2000, strategy="copyset"), scatter_width=1999),
            Errors.INVALID_REQUEST,
            "takes a list of 3998000 copysets",
        ),
    ],
)
def test_a_refused_request_has_a_reason(
    refused: PlaceTopicsRequest, error_code: Errors, message: str
):
    with pytest.raises(PlacementError, match=message) as caught:
        place(refused)
    assert caught.value.error_code is error_code


def test_a_broker_listed_twice_is_refused():
    twice = (PlacementBroker(1, None, 0), PlacementBroker(1, None, 3))
    with pytest.raises(PlacementError, match="broker 1 is listed more than once"):
        check(PlaceTopicsRequest((topic(1, 1),), twice, "ring", "0", "batch", 0))


def test_either_all_brokers_have_racks_or_none():
    some = (PlacementBroker(0, "a", 0), PlacementBroker(1, None, 0))
    with pytest.raises(PlacementError, match=r"not all brokers have a rack \(broker 1"):
        check(PlaceTopicsRequest((topic(1, 1),), some, "rack-aware", "0", "batch", 0))
    with pytest.raises(PlacementError, match="choose another strategy than copyset"):
        check(PlaceTopicsRequest((topic(1, 1),), some, "copyset", "0", "batch", 0))
    check(PlaceTopicsRequest((topic(1, 1),), some, "kafka", "0", "batch", 0))


# --- brokers that share a machine -----------------------------------------------------------------


def on_hosts(
    sizes: Sequence[int], factor: int, strategy: str = "ring", racks: int = 0, start: str = "0"
) -> PlaceTopicsRequest:
    """Brokers 0, 1, … on hosts with so many brokers each, host h in rack h modulo ``racks``."""
    host_of = [host for host, size in enumerate(sizes) for _ in range(size)]
    names = {b: f"r{host % racks}" for b, host in enumerate(host_of)} if racks else len(host_of)
    asked = request(topic(500, factor), brokers=names, strategy=strategy, start=start)
    hosts = tuple(PlacementHost(b, f"m{host}") for b, host in enumerate(host_of))
    return replace(asked, hosts=hosts)


HOSTS = ((8, 8, 8), (2, 2, 2), (1, 2, 1, 1), (3, 1, 1, 1), (2, 2, 1), (8, 8, 8, 8, 2), (4, 1, 4))


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
def test_no_partition_has_two_replicas_on_one_host(strategy: str):
    for sizes, racks, start in product(HOSTS, (0, 2, 3), ("0", RANDOM, LEAST_LOADED)):
        for factor in range(1, len(sizes) + 1):
            asked = on_hosts(sizes, factor, strategy, racks, start=start)
            host = dict(asked.hosts)
            assert all(
                len({host[replica] for replica in replicas}) == factor for replicas in placed(asked)
            )


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
def test_three_hosts_of_eight_brokers_hold_and_lead_the_same_number(strategy: str):
    rows = placed(on_hosts((8, 8, 8), 3, strategy))
    held, led = Counter(chain(*rows)), Counter(replicas[0] for replicas in rows)
    assert max(held.values()) - min(held.values()) <= 3
    assert max(led.values()) - min(led.values()) <= 1


def test_the_ring_is_over_brokers_in_an_order_in_which_hosts_alternate():
    rows = placed(on_hosts((2, 2, 2), 3))
    assert rows[:3] == [[0, 2, 4], [2, 4, 1], [4, 1, 3]]
    order = [0, 2, 4, 1, 3, 5]
    assert rows == [[order[(i + j) % 6] for j in range(3)] for i in range(500)]


@pytest.mark.parametrize("strategy", ["ring", "kafka", "rack-aware", "copyset"])
def test_a_host_for_each_broker_changes_nothing(strategy: str):
    for racks in (0, 2):
        with_hosts = on_hosts((1,) * 5, 3, strategy, racks)
        assert place(with_hosts) == place(replace(with_hosts, hosts=()))
        assert place(with_hosts) == place(replace(with_hosts, hosts=with_hosts.hosts[1:4]))


def test_a_broker_that_names_no_host_is_alone_on_it():
    named = (PlacementHost(1, "m"), PlacementHost(2, "m"))
    rows = placed(replace(request(topic(40, 3), brokers=4), hosts=named))
    assert not any({1, 2} <= set(replicas) for replicas in rows)


def test_racks_are_different_as_long_as_hosts_allow():
    for strategy in ("rack-aware", "copyset"):
        asked = on_hosts((8, 8, 8, 8), 3, strategy, 2)
        rack = {broker.broker_id: broker.rack for broker in asked.brokers}
        assert all(len({rack[b] for b in replicas}) == 2 for replicas in placed(asked))


def test_more_replicas_than_hosts_are_refused():
    with pytest.raises(PlacementError) as refused:
        check(on_hosts((8, 8), 3))
    assert refused.value.error_code is Errors.INVALID_REPLICATION_FACTOR
    assert str(refused.value) == (
        "topic t: replication factor 3 is larger than the number of hosts, 2, of the 16 available"
        " brokers, and two replicas are never placed on one host: choose a smaller one, or add a"
        " host"
    )


def test_a_host_in_two_racks_is_refused():
    asked = replace(
        request(topic(1, 1), brokers={4: "a", 5: "b"}, strategy="rack-aware"),
        hosts=(PlacementHost(4, "m"), PlacementHost(5, "m")),
    )
    with pytest.raises(
        PlacementError, match="brokers 4 and 5 are on one host and in racks a and b"
    ):
        check(asked)
