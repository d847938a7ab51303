"""What a cluster serves: its brokers, partitions, topics, moves, deletions and transactions.

Each check is a function of ``SERVICE_CHECKS``: it gets what was read once, and yields findings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from statistics import median
from typing import Final, TypeAlias

from regent.client.doctor.examined_cluster import ExaminedCluster
from regent.client.doctor.findings import Finding, Severity
from regent.client.doctor.served_cluster import ServedCluster
from regent.client.missing_brokers import remedy_of_restless
from regent.client.move_throttle import LISTS, RATES
from regent.client.partitions import DescribedPartition
from regent.client.slow_brokers import remedy_of_slow
from regent.client.wording import counted, listed
from regent.config.command_line import program
from regent.core.model import OUR_SOFTWARE, TopicPartition, is_our_software
from regent.core.quantities import bytes_text
from regent.core.topic_validation import INTERNAL_TOPICS

SERVICE: Final = "service"
"""The name of this check."""

_NAMED: Final = 5
_MAX_SKEW: Final = 0.1  # the controller moves leaderships back beyond this part
_MIN_PARTITIONS: Final = 10  # of a broker, to speak of a skew
_MAX_LEAD: Final = 1.5  # times its share of the leaderships
_FETCH_WAITS: Final = 4  # fewer in replica.lag.time.max.ms let followers leave ISRs at any pause
_SAFE_REPLICAS: Final = 3
_MAX_CLOCK_SKEW_S: Final = 1.0
_UNLIMITED: Final = 2**63 - 1  # what brokers tell of a rate that is not set
_PAIR: Final = 2

ServiceCheck: TypeAlias = Callable[[ExaminedCluster, ServedCluster], Iterator[Finding]]


def check_service(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Run all checks of what the cluster serves; nothing without ZooKeeper."""
    if cluster.served is not None:
        for check in SERVICE_CHECKS:
            yield from check(cluster, cluster.served)


def _problem(subject: str, message: str, remedy: str) -> Finding:
    return Finding(SERVICE, Severity.PROBLEM, subject, message, remedy)


def _warning(subject: str, message: str, remedy: str) -> Finding:
    return Finding(SERVICE, Severity.WARNING, subject, message, remedy)


def _some(partitions: Sequence[DescribedPartition]) -> str:
    return listed([p.topic_partition for p in partitions], _NAMED)


def _troubles(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    """Say what ``status`` says, too: a cluster that it calls unhealthy has a problem here."""
    for line in served.troubles.reasons:
        yield _problem("cluster", line, "")
    for line in served.troubles.warnings:
        yield _warning("cluster", line, "")
    for line in served.troubles.not_told:
        yield Finding(SERVICE, Severity.OK, "cluster", f"not known: {line}")


# --- brokers -------------------------------------------------------------------------------------


def _missing_brokers(cluster: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, missing in served.missing.items():
        held = sum(broker in p.assignment.replicas for p in served.partitions)
        message = f"{missing.sentence()}; it has replicas of {counted(held, 'partition')}"
        start = f"`{program()} brokers start {broker}`"
        remedy = f"start it, on this machine with {start}; if it is gone for good, move its"
        remedy += f" replicas with `{program()} reassign`"
        if broker in cluster.local_brokers:
            kill = f"`kill -9 $({program()} brokers pid {broker})`"
            remedy = f"if it does not come back, end its process with {kill}, then {start}"
        yield _problem(f"broker {broker}", message, remedy)


def _silent_brokers(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, why in served.silent.items():
        message = (
            f"broker {broker} does not answer control requests, so its clock, its metadata and its"
            f" own warnings are not examined: {why}"
        )
        remedy = f"`{program()} keys allow` on its machine lets a key in"
        yield _warning(f"broker {broker}", message.rstrip("?"), remedy)


def _slow_brokers(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, message in served.slow_brokers.items():
        yield _warning(f"broker {broker}", message, remedy_of_slow())


def _restless_brokers(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, message in served.restless_brokers.items():
        yield _warning(f"broker {broker}", message, remedy_of_restless())


def _suspect_replicas(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, registration in served.live.items():
        suspects = [
            p.topic_partition
            for p in served.partitions
            if broker in p.assignment.replicas
            and registration.suspects.end_of(p.topic_partition) is not None
        ]
        if suspects:
            message = (
                f"broker {broker} may have lost records of {counted(len(suspects), 'partition')}"
                f" ({listed(suspects, _NAMED)}), and does not lead them until it has them again"
            )
            remedy = f"`{program()} brokers list` shows whether the other replicas live"
            yield _warning(f"broker {broker}", message, remedy)


def _own_warnings(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for broker, cache in sorted(served.caches.items()):
        for line in cache.warnings:
            yield _warning(f"broker {broker}", f"broker {broker}: {line}", "")


def _clocks(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    """Compare each clock with the one in the middle; of two that differ each may be wrong."""
    if len(served.clocks) < _PAIR:
        return
    middle = median(clock.ahead_s for clock in served.clocks.values())
    is_pair = len(served.clocks) == _PAIR
    whose = "the other broker" if is_pair else "most brokers"
    for broker, clock in sorted(served.clocks.items()):
        off_s = (clock.ahead_s - middle) * (2 if is_pair else 1)
        if abs(off_s) > _MAX_CLOCK_SKEW_S + clock.doubt_s:
            far = f"{abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'}"
            message = (
                f"the clock of broker {broker} is {far} that of {whose}: the times of its records,"
                " retention and tokens are wrong by as much"
            )
            remedy = "synchronise its machine with a time server: `chronyc tracking` shows how far"
            yield _warning(f"broker {broker}", message, remedy)


def _versions(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    found = defaultdict(list)
    for broker, software in sorted(served.software.items()):
        found["regent, an earlier release" if software == OUR_SOFTWARE else software].append(broker)
    if len(found) > 1:
        each = "; ".join(f"{name}: {listed(brokers)}" for name, brokers in sorted(found.items()))
        message = f"brokers run different software ({each})"
        remedy = f"finish the change: `{program()} migrate check` tells what is left"
        if all(map(is_our_software, served.software.values())):
            remedy = f"finish the upgrade: `{program()} restart --rolling` with the newer release"
        yield _warning("software", message, remedy)


# --- partitions ----------------------------------------------------------------------------------


def _leaderless(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    without = [p for p in served.partitions if p.is_unavailable(served.live)]
    if without:
        absent = sorted(
            {
                broker
                for p in without
                for broker in p.state.leader_and_isr.isr or p.assignment.replicas
                if broker not in served.live
            }
        )
        message = f"{counted(len(without), 'partition')} without a leader: {_some(without)}"
        remedy = f"`{program()} status` says what they wait for"
        if absent:
            remedy = f"start broker {listed(absent)}"
        yield _problem("partitions", message, remedy)


def _shared_hosts(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    hosts = {b: registration.info.node_host or b for b, registration in served.live.items()}
    together = [
        p
        for p in served.partitions
        if max(Counter(hosts.get(b, b) for b in p.assignment.replicas).values(), default=0) > 1
    ]
    if together:
        message = (
            f"{counted(len(together), 'partition')} with two replicas on one host, which are lost"
            f" with it: {_some(together)}"
        )
        remedy = f"move one to another host: `{program()} reassign --generate` proposes where"
        yield _warning("partitions", message, remedy)


def _behind(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    few, behind = [], []
    for partition in served.partitions:
        in_sync = len(partition.state.leader_and_isr.isr)
        if partition.is_unavailable(served.live):
            continue
        if in_sync < served.min_insync(partition):
            few.append(partition)
        elif partition.is_under_replicated:
            behind.append(partition)
    if few:
        message = (
            f"{counted(len(few), 'partition')} with fewer replicas in sync than"
            f" min.insync.replicas, so that acks=all is refused: {_some(few)}"
        )
        yield _problem("partitions", message, _bring_back(few, served))
    if behind:
        message = f"{counted(len(behind), 'partition')} under-replicated: {_some(behind)}"
        yield _warning("partitions", message, _bring_back(behind, served))


def _bring_back(partitions: Sequence[DescribedPartition], served: ServedCluster) -> str:
    out = {
        broker
        for p in partitions
        for broker in p.assignment.replicas
        if broker not in p.state.leader_and_isr.isr
    }
    dead, slow = sorted(out - served.live.keys()), sorted(out & served.live.keys())
    parts = [f"start broker {listed(dead)}"] if dead else []
    if slow:
        parts.append(
            f"see whether broker {listed(slow)} catches up: `{program()} topics describe"
            " --under-replicated-partitions`"
        )
    return ", and ".join(parts) or "add replicas or lower min.insync.replicas"


def _leader_skew(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for partition in served.partitions:
        first, isr = partition.assignment.replicas[0], partition.state.leader_and_isr.isr
        if first in served.live and first in isr:
            preferred[first] += 1
            elsewhere[first] += partition.leader != first
    for broker, count in sorted(elsewhere.items()):
        if preferred[broker] >= _MIN_PARTITIONS and count > _MAX_SKEW * preferred[broker]:
            message = f"broker {broker} leads {count} of {preferred[broker]} partitions less than"
            remedy = f"`{program()} elect-leaders --election-type preferred --all-topic-partitions`"
            yield _warning(f"broker {broker}", f"{message} it should", remedy)
    led = Counter(p.leader for p in served.partitions if p.leader in served.live)
    may_lead = [b for b, r in served.live.items() if not r.info.no_replicas]
    share = led.total() / max(len(may_lead), 1)
    for broker, count in sorted(led.items()):
        at_home = count - sum(
            p.leader == broker != p.assignment.replicas[0] for p in served.partitions
        )
        if at_home > _MAX_LEAD * share and at_home - share >= _MIN_PARTITIONS:
            message = (
                f"broker {broker} leads {count} of {led.total()} partitions, where {share:.0f}"
                f" are its share: it is the preferred leader of {at_home}"
            )
            remedy = (
                f"`{program()} jobs plan rebalance --out plan --execute` spreads replicas and"
                f" preferred leaders; without Spark `{program()} reassign --generate`"
            )
            yield _warning(f"broker {broker}", message, remedy)


def _stale_caches(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    states = {p.topic_partition: p.state.leader_and_isr for p in served.partitions}
    for broker, cache in sorted(served.caches.items()):
        known = {TopicPartition(row.topic, row.partition): row for row in cache.partitions}
        wrong = [
            partition
            for partition, state in states.items()
            if state.leader_epoch >= 0
            and (
                partition not in known
                or (known[partition].leader, known[partition].leader_epoch)
                != (state.leader, state.leader_epoch)
            )
        ]
        if wrong:
            message = (
                f"broker {broker} tells clients other leaders than ZooKeeper has, of"
                f" {counted(len(wrong), 'partition')}: {listed(wrong, _NAMED)}"
            )
            remedy = f"run this again; if it stays, {_tell_again()}"
            yield _warning(f"broker {broker}", message, remedy)
    for broker, stale in sorted(served.stale.items()):
        kept = []
        if stale.deleted:
            count, names = counted(len(stale.deleted), "topic"), listed(stale.deleted, _NAMED)
            kept.append(f"{count} after the deletion ({names})")
        if stale.isrs:
            count, names = counted(len(stale.isrs), "partition"), listed(stale.isrs, _NAMED)
            kept.append(f"other ISRs of {count} ({names})")
        message = f"broker {broker} has told clients for some seconds of {' and of '.join(kept)}"
        yield _warning(f"broker {broker}", message, _tell_again())


def _tell_again() -> str:
    return f"`{program()} controller move` tells all again"


# --- topics --------------------------------------------------------------------------------------


def _replication(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    single: set[str] = set()
    strict: set[str] = set()
    for partition in served.partitions:
        topic, replicas = partition.topic_partition.topic, len(partition.assignment.replicas)
        if replicas == 1 and len(served.live) > 1:
            single.add(topic)
        elif replicas == served.min_insync(partition) > 1:
            strict.add(topic)
    yield from _named_topics(
        single, "with one replica: a disk that fails loses them", "add replicas with `{} reassign`"
    )
    yield from _named_topics(
        strict,
        "with no more replicas than min.insync.replicas: one broker that stops refuses acks=all",
        "lower min.insync.replicas with `{} topics config`, or add a replica",
    )


def _named_topics(topics: Collection[str], what: str, remedy: str) -> Iterator[Finding]:
    if topics:
        count, names = counted(len(topics), "topic"), listed(sorted(topics), _NAMED)
        yield _warning("topics", f"{count} {what}: {names}", remedy.format(program()))


def _moves(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    if served.move_obstacles:
        moving = [p for p in served.partitions if p.assignment.is_being_reassigned]
        message = f"{counted(len(moving), 'partition')} being reassigned do not get on"
        remedy = f"; `{program()} reassign --list` shows them, --cancel ends them"
        yield _warning("moves", message, "; ".join(served.move_obstacles) + remedy)


def _left_throttles(cluster: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    """Name throttles without a move: they also slow replicas that catch up after a failure."""
    topics = [t for t, config in served.topic_configs.items() if any(map(config.get, LISTS))]
    told = [
        (int(rate), broker)
        for broker, rows in cluster.settings.items()
        for rate in map(rows.get, RATES)
        if rate is not None
    ]
    rate, broker = min(told, default=(_UNLIMITED, -1))
    is_moving = any(p.assignment.is_being_reassigned for p in served.partitions)
    if topics and rate < _UNLIMITED and not is_moving:
        unset = " ".join(f"--unset {name}" for name in LISTS)
        yield from _named_topics(
            topics,
            f"whose replicas are throttled although nothing is moved, on broker {broker} to"
            f" {bytes_text(rate)} a second: after a failure they catch up no faster",
            "if no plan waits to go on: `{} topics config TOPIC " + unset + "`",
        )


def _deletions(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    for topic, reason in served.deletions.items():
        remedy = f"start what is down; `{program()} topics delete {topic} --wait` watches it"
        yield _warning(f"topic {topic}", f"topic {topic} waits to be deleted: {reason}", remedy)


def _transactions(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    if served.old_transactions:
        names = listed(served.old_transactions, _NAMED)
        message = (
            f"{counted(len(served.old_transactions), 'transaction')} open for longer than 15"
            f" minutes, which read_committed consumers wait for: {names}"
        )
        remedy = "end their producers, or abort them: `kafka-transactions.sh abort`"
        yield _warning("transactions", message, remedy)


# --- settings ------------------------------------------------------------------------------------

_HARMFUL: Final = (
    (
        *("unclean.leader.election.enable", "true"),
        "acknowledged records may be lost in an election",
        "`{} brokers config --default --set unclean.leader.election.enable=false`, and its file",
    ),
    (
        *("log.flush.interval.messages", "1", "every record waits for the disk"),
        "`{} brokers config --default --unset log.flush.interval.messages`, and its file",
    ),
)
"""Settings of brokers: name, value, harm, and what mends it."""


def _settings(cluster: ExaminedCluster, _: ServedCluster) -> Iterator[Finding]:
    for name, value, harm, remedy in _HARMFUL:
        brokers = [b for b, rows in sorted(cluster.settings.items()) if rows.get(name) == value]
        if brokers:
            message = f"broker {listed(brokers)} has {name}={value}: {harm}"
            yield _warning(f"broker {listed(brokers)}", message, remedy.format(program()))
    yield from _short_lag(cluster)
    yield from _created_by_clients(cluster)
    differing = []
    for name in ("default.replication.factor", "min.insync.replicas", "delete.topic.enable"):
        values = {rows[name] for rows in cluster.settings.values() if name in rows}
        if len(values) > 1:
            differing.append(f"{name} ({', '.join(sorted(values))})")
    if differing:
        message = f"brokers have different values of {listed(differing)}"
        yield _warning("settings", message, "give all brokers the same: each may be the controller")


def _short_lag(cluster: ExaminedCluster) -> Iterator[Finding]:
    lag, wait = "replica.lag.time.max.ms", "replica.fetch.wait.max.ms"
    short = {
        broker: f"{lag}={rows[lag]} with {wait}={rows[wait]}"
        for broker, rows in sorted(cluster.settings.items())
        if rows.get(lag, "").isdecimal() and rows.get(wait, "").isdecimal()
        if int(rows[lag]) < _FETCH_WAITS * int(rows[wait])
    }
    if short:
        message = (
            f"broker {listed(short)} has {listed(sorted(set(short.values())))}: a pause of a"
            " follower that nobody notices takes it out of its ISRs"
        )
        remedy = f"put a longer {lag} into its file, then `{program()} restart --rolling`"
        yield _warning(f"broker {listed(short)}", message, remedy)


def _created_by_clients(cluster: ExaminedCluster) -> Iterator[Finding]:
    """Say it, and warn of nothing: it is the default, of Kafka too."""
    name = "auto.create.topics.enable"
    brokers = [b for b, rows in sorted(cluster.settings.items()) if rows.get(name) == "true"]
    if brokers:
        message = f"broker {listed(brokers)} has {name}=true: a client that asks for a misspelt"
        message += " topic creates it, with the brokers' default settings"
        remedy = f"put false into its file, then `{program()} restart --rolling`"
        yield Finding(SERVICE, Severity.OK, f"broker {listed(brokers)}", message, remedy)


def _settings_of_topics(_: ExaminedCluster, served: ServedCluster) -> Iterator[Finding]:
    unclean = {
        topic
        for topic, config in served.topic_configs.items()
        if config.get("unclean.leader.election.enable") == "true"
    }
    yield from _named_topics(
        unclean,
        "with unclean.leader.election.enable=true: acknowledged records may be lost in an election",
        "`{} topics config TOPIC --unset unclean.leader.election.enable`",
    )
    alone = {
        p.topic_partition.topic
        for p in served.partitions
        if len(p.assignment.replicas) >= _SAFE_REPLICAS and served.min_insync(p) == 1
        if p.topic_partition.topic in served.topic_configs  # else its settings cannot be read
    }
    yield from _named_topics(
        alone - INTERNAL_TOPICS,
        "with min.insync.replicas=1 and three replicas or more: a record that is acknowledged may"
        " be on one disk",
        "`{} topics config TOPIC --set min.insync.replicas=2`",
    )


SERVICE_CHECKS: Final[Sequence[ServiceCheck]] = (
    _troubles,
    _missing_brokers,
    _silent_brokers,
    _leaderless,
    _behind,
    _shared_hosts,
    _slow_brokers,
    _restless_brokers,
    _suspect_replicas,
    _own_warnings,
    _clocks,
    _leader_skew,
    _stale_caches,
    _versions,
    _replication,
    _moves,
    _deletions,
    _transactions,
    _settings,
    _settings_of_topics,
    _left_throttles,
)
"""One function for each thing; a new check is a new row."""
