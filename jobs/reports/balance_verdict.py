"""What is wrong with an assignment, and which commands mend it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regent.client.wording import how_many, number_range
from regent.jobs.assignment_source import ZOOKEEPER
from regent.jobs.reports.balance import Balance, Found, Shares
from regent.jobs.reports.page import shown
from regent.jobs.reports.verdict import (
    CLUSTER,
    SPARK,
    Problem,
    Remedy,
    Verdict,
    command_line,
    far_from,
    named,
    several,
    uneven,
)

_PLAN: Final = ("assignment", "brokers", *CLUSTER, *SPARK)
_TOPICS: Final = 10  # in a command
_START: Final = "If brokers only stopped, to start them again"
_UNCLEAN: Final = 3  # leaderless partitions that have a command each
_Options = Mapping[str, Any]


def balance_verdict(balance: Balance, options: _Options) -> Verdict:
    """Judge an assignment: what cannot be used comes first, then possible losses, then evenness."""
    start = start_remedies(_START, balance.unlisted, options)
    problems = [
        *_leaderless(balance, start, options),
        *_out_of_sync(balance, start, options),
        *_with_one_replica(balance, options),
        *_in_one_rack(balance, options),
        *_unlisted(balance, options),
        *_not_emptied(balance, options),
        *_not_led(balance, options),
        *_uneven(balance, options),
    ]
    return Verdict(problems, balance_in_words(balance))


def balance_in_words(balance: Balance) -> str:
    """Say that partitions can be used, how even replicas are, and how many brokers may fail."""
    replicas = balance.loads["replicas"]
    range_ = number_range(int(replicas.min()), int(replicas.max()))
    safe = balance.survivable
    survivors = [f"any {how_many(safe, 'broker', 'brokers')}"] * bool(safe)
    if len(balance.racks.names) > 1 and not balance.lost_with_rack.any():
        survivors.append("any one rack")
    led = f"All {how_many(balance.partitions, 'partition has', 'partitions have')} leaders. "
    words = f"Replicas are spread evenly: each broker holds {range_}"
    can_fail = f", and {', or '.join(survivors)} can fail without a loss" if survivors else ""
    return f"{led if balance.leaders else ''}{words}{can_fail}."


# --- partitions that cannot be used ---------------------------------------------------------------


def _leaderless(balance: Balance, start: Sequence[Remedy], options: _Options) -> list[Problem]:
    total, names, _ = balance.states.get("leaderless", Found())
    purpose = "To list the partitions without a leader, with the brokers that have their replicas"
    line = command_line("topics describe --unavailable-partitions", options, *CLUSTER)
    return several(
        names,
        "partition has",
        "partitions have",
        "no leader and can be neither written nor read",
        [Remedy(purpose, line), *start, *_unclean_elections(names, total, options)],
        total=total,
    )


def _unclean_elections(leaderless: Sequence[str], total: int, options: _Options) -> list[Remedy]:
    """Return commands that elect out-of-sync leaders of these partitions only, if need be."""

    def remedy(which: str, words: str) -> Remedy:
        purpose = (
            "Last resort, only if the brokers that stopped never return: RECORDS MAY BE LOST for"
            f" good, because any live replica becomes the leader of {which}"
        )
        line = command_line(f"elect-leaders --election-type unclean {words}", options, *CLUSTER)
        return Remedy(purpose, line, may_lose_records=True)

    parts = [name.rpartition("-") for name in leaderless]
    if total > _UNCLEAN:
        topic, _, partition = parts[0]
        entry = f'{{"topic": "{topic}", "partition": {partition}}}'
        which = f'those that you list in partitions.json, such as {{"partitions": [{entry}]}}'
        return [remedy(which, "--path-to-json-file partitions.json")]
    return [
        remedy(f"{topic}-{partition}", f"--topic {topic} --partition {partition}")
        for topic, _, partition in parts
    ]


def _out_of_sync(balance: Balance, start: Sequence[Remedy], options: _Options) -> list[Problem]:
    """Name the partitions that lack replicas in sync, and the brokers that have these replicas."""
    worst = np.argsort(-balance.out_of_sync, kind="stable")
    behind = [b for b in worst.tolist() if balance.out_of_sync[b]]
    ids = balance.broker_ids
    brokers = named([f"broker {ids[b]}: {balance.out_of_sync[b]:,}" for b in behind])
    more = f" The replicas that are out of sync are on {brokers}." if behind else ""
    line = command_line("topics describe --under-replicated-partitions", options, *CLUSTER)
    lacking = Remedy("To list the partitions that lack replicas in sync", line)
    words = {
        "under_min_isr": "fewer replicas in sync than min.insync.replicas, so that producers with"
        " acks=all cannot write",
        "under_replicated": "replicas that are out of sync",
    }
    problems: list[Problem] = []
    for state, rest in words.items():
        total, names, _ = balance.states.get(state, Found())
        has = ("partition has", "partitions have", rest)
        problems += several(names, *has, [*start, lacking], total=total, more=more)
        more = "" if problems else more
    return problems


# --- losses ---------------------------------------------------------------------------------------


def _with_one_replica(balance: Balance, options: _Options) -> Iterator[Problem]:
    single = balance.single
    if partitions := single.partitions:
        others = {count: f for f, count in balance.factors.items() if f > 1}
        factor = others[max(others)] if others else min(3, len(balance.broker_ids))
        has = how_many(partitions, "partition has", "partitions have")
        are_lost = "is lost" if partitions == 1 else "are lost"
        words = ("To give them more replicas", "replication-factor-plan")
        yield Problem(
            f"{has} only one replica and {are_lost} when its broker fails ({_some(single)}).",
            _change_factor(*words, factor, single, options) if factor > 1 else (),
        )


def _in_one_rack(balance: Balance, options: _Options) -> Iterator[Problem]:
    together = balance.together
    if together.partitions:
        lost, factor = balance.lost_with_rack, max(balance.factors) + 1
        order = np.argsort(-lost, kind="stable").tolist()
        racks = named([balance.racks.names[rack] for rack in order if lost[rack]])
        source = options["assignment"]
        anew = "" if source == ZOOKEEPER else f" and {source} is written anew"
        add = ("To add a replica in another rack", "racks-plan")
        remove = (
            f"Once they are added{anew}, to remove one of each partition from the doubled rack",
            "doubled-rack-plan",
        )
        remedies = [
            *_change_factor(*add, factor, together, options),
            *_change_factor(*remove, factor - 1, together, options),
        ]
        has = how_many(together.partitions, "partition has", "partitions have")
        yield Problem(
            f"{has} all replicas in one rack and would be lost with it"
            f" (racks {racks}; {_some(together)}).",
            remedies if factor <= len(balance.broker_ids) else (),
        )


def _change_factor(
    purpose: str, target: str, factor: int, topics: Found, options: _Options
) -> list[Remedy]:
    if topics.total > _TOPICS:
        purpose += f" (this is for the first {_TOPICS} of {topics.total:,} topics)"
    words = " ".join(f"--topics {shlex.quote(topic)}" for topic in topics.names[:_TOPICS])
    return plan_remedies(purpose, f"replication-factor --factor {factor} {words}", options, target)


def _some(topics: Found) -> str:
    return f"{'topic' if topics.total == 1 else 'topics'} {named(topics.names, topics.total)}"


def _unlisted(balance: Balance, options: _Options) -> Iterator[Problem]:
    """Name the brokers whose replicas are out of reach."""
    if unlisted := balance.unlisted:
        yield Problem(
            f"{missing_brokers(unlisted, options)}, and {_held(balance, unlisted)} there.",
            [*start_remedies(_START, unlisted, options), *_give_away(unlisted, options)],
        )


def _not_emptied(balance: Balance, options: _Options) -> Iterator[Problem]:
    """Name the brokers that take no new replicas, and have some."""
    if ids := sorted(balance.no_replicas):
        names = named([str(broker_id) for broker_id in ids])
        have = f"Broker {names} has" if len(ids) == 1 else f"Brokers {names} have"
        yield Problem(
            f"{have} no_replicas, and {_held(balance, ids)} there.", _give_away(ids, options)
        )


def _held(balance: Balance, ids: Sequence[int]) -> str:
    held = int(balance.loads["replicas"][np.isin(balance.broker_ids, ids)].sum())
    return how_many(held, "replica is", "replicas are")


def _give_away(ids: Sequence[int], options: _Options) -> list[Remedy]:
    goal = f"decommission --from {','.join(map(str, ids))}"
    return plan_remedies("To give their replicas to others", goal, options)


# --- evenness -------------------------------------------------------------------------------------


def named_brokers(balance: Balance) -> dict[str, Any]:
    """Return all brokers that the verdict is about as JSON values, the worst first."""

    def rows(positions: Sequence[int]) -> list[dict[str, Any]]:
        ids, held, fair = balance.broker_ids, balance.loads["replicas"], balance.fair
        return [
            {"broker": int(ids[b]), "replicas": int(held[b]), "fair_share": float(fair[b])}
            for b in positions
        ]

    overloaded, underloaded = far_from(balance.loads["replicas"], balance.fair)
    return {
        "overloaded": rows(overloaded),
        "underloaded": rows(underloaded),
        "not_listed": balance.unlisted,
    }


def _not_led(balance: Balance, options: _Options) -> list[Problem]:
    """Name the brokers that lead too few of the partitions that an election gives back to them."""
    leaders, percentage, ids = balance.leaders, options["threshold"], balance.broker_ids
    if leaders is None:
        return []
    above = leaders.above(percentage)
    who = "it is" if len(above) == 1 else "they are"
    preferred, led = leaders.preferred, leaders.preferred - leaders.not_led
    return several(
        [f"broker {ids[b]} leads {led[b]:,} of {preferred[b]:,}" for b in above],
        "broker leads",
        "brokers lead",
        f"fewer than {100 - percentage:g} % of the partitions whose preferred leader {who}, and is"
        " in sync",
        [_election(options)],
    )


def _election(options: _Options) -> Remedy:
    words = "elect-leaders --election-type preferred --all-topic-partitions"
    line = command_line(words, options, *CLUSTER)
    return Remedy("To let preferred leaders that are in sync lead again", line)


def _uneven(balance: Balance, options: _Options) -> list[Problem]:
    """Name the brokers with far more or fewer replicas or leaders than their share.

    Leaders are of interest where preferred leaders do not explain them.
    """
    plan = plan_remedies("To even them out", "rebalance", options)
    ids, fair = balance.broker_ids, balance.fair
    range_ = number_range(round(float(np.nanmin(fair))), round(float(np.nanmax(fair))))
    share = f"the fair share of {range_} replicas"
    leaders = balance.leaders
    mend = [_election(options)] if leaders and leaders.electable.any() else []
    return [
        *uneven(ids, balance.loads["replicas"], fair, ("holds", "hold"), share, plan),
        *_far_from_average(balance, "preferred leaders", plan),
        *_far_from_average(balance, "leaders", mend, _not_preferred(balance)),
    ]


def _not_preferred(balance: Balance) -> Shares:
    """Return the fair number of leaders of brokers that have enough preferred ones; else NaN."""
    preferred = balance.loads["preferred leaders"]
    leaders = balance.loads.get("leaders", preferred)
    fair = np.full(len(leaders), leaders.mean())
    for places in far_from(preferred, preferred.mean()):
        fair[places] = np.nan
    return fair


def _far_from_average(
    balance: Balance, load: str, remedies: Sequence[Remedy], fair: Shares | None = None
) -> list[Problem]:
    """Name brokers by a load; those without a ``fair`` number are left out."""
    if load not in balance.loads:
        return []
    values = balance.loads[load]
    mean = float(values.mean())
    shares = np.full(len(values), mean) if fair is None else fair
    has_share = np.isfinite(shares)
    return uneven(
        *(balance.broker_ids, values, shares, ("has", "have")),
        f"the average of {shown(mean)} {load}",
        remedies,
        others=None if has_share.all() else int(has_share.sum()),
    )


# --- remedies -------------------------------------------------------------------------------------


def missing_brokers(broker_ids: Sequence[int], options: _Options) -> str:
    """Say that brokers with replicas cannot be used."""
    where = "registered" if options["assignment"] == ZOOKEEPER else "in --brokers"
    names = named([str(broker_id) for broker_id in broker_ids])
    are = f"Broker {names} is" if len(broker_ids) == 1 else f"Brokers {names} are"
    return f"{are} not {where}"


def start_remedies(purpose: str, broker_ids: Sequence[int], options: _Options) -> list[Remedy]:
    """Return a command that starts brokers, if they are of a cluster on this machine."""
    if not broker_ids or options["assignment"] != ZOOKEEPER or options["zookeeper"]:
        return []
    words = f"brokers start {' '.join(map(str, broker_ids[:_TOPICS]))}"
    return [Remedy(purpose, command_line(words, options, *CLUSTER))]


def plan_remedies(
    purpose: str, goal: str, options: _Options, target: str | None = None
) -> list[Remedy]:
    """Return a command that plans for ``goal``, and in a running cluster one that executes it.

    ``target`` is the directory of the plan; None: it has the name of the goal.
    """
    is_running = options["assignment"] == ZOOKEEPER
    given = dict(options)
    if given["brokers"] is None:
        given["brokers"] = ZOOKEEPER if is_running else "brokers.json"
        if not is_running:
            purpose += ", once brokers.json lists the brokers to use, such as [0, 1, 2]"
    target = target or f"{goal.split()[0]}-plan"
    line = command_line(f"jobs plan {goal} --out {target}", given, *_PLAN)
    execute = command_line(f"jobs plan execute {target}", given, *CLUSTER)
    return [Remedy(purpose, line), *[Remedy("Then, to carry it out", execute)] * is_running]
