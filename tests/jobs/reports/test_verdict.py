"""Verdicts of reports: what they name, and that their commands exist."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from regent.cli.main import cli
from regent.jobs import plan, report_balance
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.reports.balance import Balance
from regent.jobs.reports.balance_verdict import balance_verdict, named_brokers
from regent.jobs.reports.event_verdict import event_verdict
from regent.jobs.reports.verdict import (
    Problem,
    Remedy,
    Verdict,
    command_line,
    far_from,
    several,
)
from tests.jobs.reports.plain_balance import Row, plain_balance

JOBS = {
    "plan": plan._command,
    "balance": report_balance._command,
}
"""The commands of jobs, which ``regent jobs`` starts without looking at their arguments."""
RUNNING: Mapping[str, Any] = {"assignment": "zookeeper", "brokers": None, "zookeeper": None}
RUNNING = {**RUNNING, "data_dir": Path("my data"), "master": None, "conf": {}, "threshold": 10.0}


def check_is_accepted(line: str) -> None:
    """Parse a command line down to the options of its last command."""
    program, *words = shlex.split(line)
    assert program == "regent"
    command: click.Command = cli
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.get_command(click.Context(command), name)
        assert found is not None, line
        command = JOBS.get(name, found)
    with command.make_context(command.name, words):
        pass


def balance_of(
    replicas: Sequence[Sequence[int]], brokers: Sequence[tuple[int, str | None]] = ()
) -> Balance:
    rows = [Row("t", number, each) for number, each in enumerate(replicas)]
    return of_rows(rows, brokers)


def of_rows(rows: Sequence[Row], brokers: Sequence[tuple[int, str | None]] = ()) -> Balance:
    return plain_balance(rows, [PlannedBroker(b, rack, 0, None) for b, rack in brokers])


def verdict_of(
    replicas: Sequence[Sequence[int]],
    brokers: Sequence[tuple[int, str | None]] = (),
    **options: Any,
) -> Verdict:
    return balance_verdict(balance_of(replicas, brokers), {**RUNNING, **options})


def led(first: int, leader: int, n: int, isr: Sequence[int] | None = None) -> list[Row]:
    """Return ``n`` partitions with one preferred and one actual leader, of brokers 0 to 2."""
    replicas = [first, *({0, 1, 2} - {first})]
    start = 1000 * first + 100 * leader + 100
    return [Row("t", start + number, replicas, leader, isr) for number in range(n)]


def judged(*rows: list[Row], **options: Any) -> Verdict:
    brokers = [(b, None) for b in options.pop("brokers", (0, 1, 2))]
    balance = of_rows([row for some in rows for row in some], brokers)
    return balance_verdict(balance, {**RUNNING, **options})


def sentences(verdict: Verdict) -> list[str]:
    return [problem.sentence for problem in verdict.problems]


def remedies(verdict: Verdict) -> list[Remedy]:
    return [*verdict.first.remedies, *verdict.others.remedies]


def term(epoch: int, **found: Any) -> dict[str, Any]:
    quick = {"has_failed": False, "vacant_ms": None, "failover_ms": None}
    quick |= {"vacant_at_most_ms": None}
    times = {"first_ms": EVENTS_MS, "last_ms": EVENTS_MS + 60_000, "elected_ms": EVENTS_MS}
    return {"broker_id": 1, "controller_epoch": epoch, **quick, **times, **found}


def broker_row(broker_id: int, *, answers_ms: float = 1.0, **found: Any) -> dict[str, Any]:
    row = {"broker_id": broker_id, "answered_ms": {"p95": answers_ms}}
    return {**row, "failed": 0, "shutdowns": 0, "isr_left": 0, **found}


def events_report(**found: Any) -> dict[str, Any]:
    """The parts of an analysis that the verdict reads: nothing unusual, except for ``found``."""
    quiet = {"event": "BrokerChange", "queue_ms": {"max": 1.0}}
    report: dict[str, Any] = {"events": 9, "first_ms": EVENTS_MS, "last_ms": EVENTS_MS + 90_000}
    report |= {"latencies": [quiet], "unreadable_lines": {}, "unnamed_changes": 0}
    report |= {"over_time": [{"start_ms": EVENTS_MS, **quiet}], "bucket_ms": 800}
    report |= {"leaderless_partitions": 0, "restless_isrs": 0}
    report |= {key: [] for key in ("terms", "slowest_brokers", "leaderless", "isr_flapping")}
    return {**report, **found}


EVENTS_MS = round(datetime(2026, 11, 18, 11, 6, 40).timestamp() * 1000)
EVENTS = {"journals": (), "data_dir": Path("my data")}
UNEVEN = [[2, 0], [2, 1], [2, 3], [2, 0]]


def test_a_problem_counts_things_and_names_a_few():
    def said(names: Sequence[str], total: int | None = None) -> list[str]:
        problems = several(names, "broker leads", "brokers lead", "too much", total=total)
        return [problem.sentence for problem in problems]

    assert said([]) == []
    assert said(["a: 1"]) == ["1 broker leads too much (a: 1)."]
    assert said(["a", "b", "c"]) == ["3 brokers lead too much (a, b, c)."]
    assert said(["a", "b", "c", "d"]) == ["4 brokers lead too much (a, b, c and 1 more)."]
    assert said(["a"], 5001) == ["5,001 brokers lead too much (a and 5,000 more)."]


def test_a_verdict_begins_with_the_three_worst_problems_and_has_each_remedy_once():
    same, last = Remedy("Mend", "regent status"), Remedy("Last", "regent events")
    problems = [Problem(f"{n}.", [same]) for n in range(4)] + [Problem("4.", [last, same])]
    verdict = Verdict(problems, "")
    assert verdict.first == (["0.", "1.", "2.", "And 2 more findings below."], [same])
    assert verdict.others == (["3.", "4."], [last])
    fields = verdict.fields()
    assert fields["verdict"] == "0. 1. 2. And 2 more findings below. Mend: `regent status`"
    assert fields["problems"] == ["0.", "1.", "2.", "3.", "4."]
    assert [remedy["purpose"] for remedy in fields["remedies"]] == ["Mend", "Last"]


def test_a_command_has_the_users_options_quoted():
    options = {**RUNNING, "brokers": "a b.json", "conf": {"spark.x": "1"}}
    assert command_line("status", options, "brokers", "zookeeper", "data_dir", "conf") == (
        "regent status --brokers 'a b.json' --data-dir 'my data' --conf spark.x=1"
    )
    options |= {"zookeeper": "z:1", "data_dir": Path("data")}
    assert command_line("status", options, "zookeeper", "data_dir") == (
        "regent status --zookeeper z:1"
    )


def test_a_command_does_not_tell_secrets():
    secret = {"spark.hadoop.fs.s3a.secret.key": "abc", "spark.hadoop.fs.s3a.access.key": "def"}
    line = command_line("status", {**RUNNING, "conf": secret}, "conf")
    assert line.endswith(
        "--conf spark.hadoop.fs.s3a.secret.key=... --conf spark.hadoop.fs.s3a.access.key=..."
    )


def test_even_replicas_are_fine_and_the_verdict_says_what_may_fail():
    replicas = [[0, 1], [1, 2], [2, 3], [3, 0]]
    racks = [(0, "a"), (1, "b"), (2, "a"), (3, "b")]
    verdict = verdict_of(replicas, racks)
    assert verdict.fields() == {
        "verdict": "Replicas are spread evenly: each broker holds 2, and any 1 broker, or any one"
        " rack can fail without a loss.",
        "is_fine": True,
        "problems": [],
        "remedies": [],
    }


def test_brokers_with_too_many_and_too_few_replicas_are_named_with_a_plan():
    verdict = verdict_of(UNEVEN)
    assert sentences(verdict)[0] == (
        "Of 4 brokers, 1 holds more than 1.2 times the fair share of 2 replicas (broker 2: 4), and"
        " 2 hold less than 0.8 times that (broker 1: 1, broker 3: 1)."
    )
    named = named_brokers(balance_of(UNEVEN))
    assert named["overloaded"] == [{"broker": 2, "replicas": 4, "fair_share": 2.0}]
    assert [row["broker"] for row in named["underloaded"]] == [1, 3]
    assert remedies(verdict)[0].command == (
        "regent jobs plan rebalance --out rebalance-plan --assignment zookeeper --brokers zookeeper"
        " --data-dir 'my data'"
    )


def test_a_share_is_what_a_plan_can_reach_with_the_racks():
    """Each partition has a replica in rack a, whose only broker no plan can relieve."""
    replicas = [[0, 1], [0, 2], [0, 1], [0, 2]]
    balance = balance_of(replicas, [(0, "a"), (1, "b"), (2, "b")])
    assert balance.fair.tolist() == [4, 2, 2]
    verdict = verdict_of(replicas, [(0, "a"), (1, "b"), (2, "b")])
    assert sentences(verdict)[0].endswith("(broker 1: 0, broker 2: 0).")
    assert "preferred leaders" in sentences(verdict)[0]


def test_preferred_leaders_are_uneven_too_and_one_plan_evens_out_both():
    verdict = verdict_of(UNEVEN)
    assert sentences(verdict)[1:] == [
        "Of 4 brokers, 1 has more than 1.2 times the average of 1 preferred leaders (broker 2: 4),"
        " and 3 have less than 0.8 times that (broker 0: 0, broker 1: 0, broker 3: 0)."
    ]
    assert [remedy.purpose for remedy in remedies(verdict)] == [
        "To even them out",
        "Then, to carry it out",
    ]


def test_brokers_that_are_not_listed_have_no_share():
    balance = balance_of([[0, 1], [1, 7]], [(0, None), (1, None)])
    verdict = verdict_of([[0, 1], [1, 7]], [(0, None), (1, None)])
    assert balance.unlisted == named_brokers(balance)["not_listed"] == [7]
    assert "Broker 7 is not registered, and 1 replica is there." in sentences(verdict)
    commands = [remedy.command for remedy in remedies(verdict)]
    assert commands[0] == "regent brokers start 7 --data-dir 'my data'"
    assert "decommission --from 7" in commands[1]


def test_a_broker_that_takes_no_replicas_is_not_said_to_be_missing():
    listed = [PlannedBroker(b, None, 0, None, no_replicas=b > 6) for b in (0, 1, 7, 8)]
    balance = plain_balance([Row("t", 0, [0, 1]), Row("t", 1, [1, 7])], listed)
    verdict = balance_verdict(balance, RUNNING)
    assert balance.unlisted == named_brokers(balance)["not_listed"] == []
    assert "Broker 7 has no_replicas, and 1 replica is there." in sentences(verdict)
    commands = [remedy.command for remedy in remedies(verdict)]
    assert "decommission --from 7" in commands[0]
    assert not any("brokers start" in command for command in commands)


def test_as_many_brokers_can_fail_as_replicas_are_in_sync_beside_one():
    rows = [Row("t", 0, [0, 1, 2], 0, [0, 1, 2]), Row("t", 1, [1, 2, 0], 1, [1, 0])]
    assert of_rows(rows).survivable == 1
    assert of_rows([*rows, Row("t", 2, [2, 1, 0], 2, [2])]).survivable == 0
    assert of_rows([*rows, Row("t", 2, [2, 1, 0], -1, [])]).survivable == 0
    assert balance_of([[0, 1, 2]]).survivable == 2


def test_partitions_that_one_failure_loses_are_counted_with_their_topics():
    racks = [(0, "a"), (1, "a"), (2, "b")]
    rows = [Row("x", 0, [0]), Row("y", 0, [0, 1]), Row("z", 0, [1, 2]), Row("z", 1, [2, 0])]
    verdict = balance_verdict(of_rows(rows, racks), RUNNING)
    assert sentences(verdict)[:2] == [
        "1 partition has only one replica and is lost when its broker fails (topic x).",
        "1 partition has all replicas in one rack and would be lost with it (racks a; topic y).",
    ]
    assert "replication-factor --factor 2 --topics x " in remedies(verdict)[0].command


def test_a_partition_leaves_a_doubled_rack_by_an_added_and_then_a_removed_replica():
    racks = [(0, "a"), (1, "a"), (2, "b")]
    rows = [Row(f"t{n}", 0, [0, 1]) for n in range(12)]
    rows += [Row("z", n, [n % 2, 2]) for n in range(24)]
    found = remedies(balance_verdict(of_rows(rows, racks), {**RUNNING, "assignment": "a.jsonl"}))
    assert [
        (r.purpose.partition(",")[0], r.command.partition(" --topics")[0]) for r in found[:2]
    ] == [
        (
            "To add a replica in another rack (this is for the first 10 of 12 topics)",
            "regent jobs plan replication-factor --factor 3",
        ),
        (
            "Once they are added and a.jsonl is written anew",
            "regent jobs plan replication-factor --factor 2",
        ),
    ]
    assert found[0].command.count("--topics") == 10


def test_leaders_are_named_where_preferred_leaders_do_not_explain_them():
    """Broker 0 has too many preferred leaders; broker 1 has enough, and leads nothing."""
    replicas = [[0, 1, 2]] * 3 + [[1, 2, 0], [1, 0, 2], [2, 0, 1], [2, 1, 0]]
    balance = balance_of(replicas)
    loads = {**balance.loads, "leaders": np.array([5, 0, 2])}
    balance = dataclasses.replace(balance, loads=loads)
    verdict = balance_verdict(balance, RUNNING)
    assert sentences(verdict) == [
        "Of 3 brokers, 1 has more than 1.2 times the average of 2.333 leaders (broker 0: 5), and 1"
        " has less than 0.8 times that (broker 1: 0)."
    ]
    preferred = {**loads, "preferred leaders": np.array([5, 1, 1])}
    verdict = balance_verdict(dataclasses.replace(balance, loads=preferred), RUNNING)
    assert len(sentences(verdict)) == 1


def test_whole_numbers_next_to_a_fair_share_are_near_it():
    assert far_from(np.array([1, 2, 2, 2]), 1.75) == ([], [])
    assert far_from(np.array([3, 0, 9, 1]), [1.0, 1.9, 2.0, np.nan]) == ([2, 0], [1])


def test_without_a_list_of_brokers_the_verdict_says_to_make_one():
    verdict = verdict_of(UNEVEN, assignment="a.jsonl")
    assert remedies(verdict)[0].purpose == (
        "To even them out, once brokers.json lists the brokers to use, such as [0, 1, 2]"
    )
    assert "--brokers brokers.json" in remedies(verdict)[0].command


def test_brokers_that_an_election_gives_partitions_back_to_are_named():
    verdict = judged(led(0, 0, 1), led(0, 1, 9, [1, 0, 2]), led(1, 1, 10), led(2, 2, 10))
    assert sentences(verdict) == [
        "1 broker leads fewer than 90 % of the partitions whose preferred leader it is, and is in"
        " sync (broker 0 leads 1 of 10).",
        "Of 3 brokers, 1 has more than 1.2 times the average of 10 leaders (broker 1: 19), and"
        " 1 has less than 0.8 times that (broker 0: 1).",
    ]
    assert [remedy.command for remedy in remedies(verdict)] == [
        "regent elect-leaders --election-type preferred --all-topic-partitions --data-dir 'my data'"
    ]
    assert (
        judged(led(0, 0, 5), led(1, 1, 5), led(2, 2, 5))
        .fields()["verdict"]
        .startswith("All 15 partitions have leaders. Replicas are spread evenly")
    )


def test_no_election_is_advised_for_a_broker_that_is_in_no_isr():
    verdict = judged(led(0, 1, 10, [1, 2]), led(1, 1, 10, [1, 2]), led(2, 2, 10, [2, 1]))
    assert sentences(verdict)[0] == (
        "30 partitions have replicas that are out of sync (t-200, t-201, t-202 and 27 more)."
        " The replicas that are out of sync are on broker 0: 30."
    )
    assert [remedy.command for remedy in remedies(verdict)] == [
        "regent topics describe --under-replicated-partitions --data-dir 'my data'"
    ]


def test_partitions_that_cannot_be_read_come_first_then_those_that_cannot_be_written():
    stopped = [row._replace(min_isr=2) for row in led(1, 1, 2, [1])]
    verdict = judged(stopped, led(0, -1, 12, [0]), led(2, 2, 12, [2, 1]), brokers=(1, 2))
    assert [sentence.partition(" (")[0] for sentence in sentences(verdict)][:3] == [
        "12 partitions have no leader and can be neither written nor read",
        "2 partitions have fewer replicas in sync than min.insync.replicas, so that producers with"
        " acks=all cannot write",
        "26 partitions have replicas that are out of sync",
    ]
    assert "on broker 0: 14, broker 2: 14, broker 1: 12." in sentences(verdict)[1]
    assert "on broker" not in sentences(verdict)[2]
    commands = [remedy.command for remedy in remedies(verdict)]
    assert commands[0].startswith("regent topics describe --unavailable-partitions")
    assert commands[1] == "regent brokers start 0 --data-dir 'my data'"


def test_replicas_that_are_being_added_may_be_out_of_sync():
    moving = Row("t", 0, [0, 1, 2], 0, [0, 1], adding_replicas=[2], min_isr=2)
    verdict = judged([moving])
    assert not any("out of sync" in sentence for sentence in sentences(verdict))


def test_a_command_that_may_lose_records_comes_last_and_is_for_the_leaderless_partitions_only():
    fields = judged(led(0, -1, 2, [0]), led(1, 1, 2), brokers=(1, 2)).fields()
    found = [Remedy(**remedy) for remedy in fields["remedies"]]
    assert [remedy.may_lose_records for remedy in found] == [False] * (len(found) - 2) + [True] * 2
    assert found[-1].command == (
        "regent elect-leaders --election-type unclean --topic t --partition 1 --data-dir 'my data'"
    )
    assert "RECORDS MAY BE LOST for good" in found[-1].purpose
    [last] = [r for r in remedies(judged(led(0, -1, 9, [0]))) if r.may_lose_records]
    assert '{"partitions": [{"topic": "t", "partition": 0}]}' in last.purpose
    assert "--path-to-json-file partitions.json" in last.command


def test_the_former_report_of_leaders_names_the_one_that_has_it():
    found = CliRunner().invoke(cli, ["jobs", "report", "leaders", "--html", "x"])
    assert found.exit_code == 2
    assert "leaders are a part of `regent jobs report balance`: use that" in found.output


def test_a_quiet_journal_is_fine():
    report = events_report(terms=[term(1, failover_ms=80.0)])
    assert event_verdict(report, EVENTS).fields()["verdict"] == (
        "Nothing unusual: 9 events in 1 term of a controller; 1 failover, 80 ms at the longest."
    )


def test_slow_failovers_waits_and_brokers_are_named_with_the_logs_to_read():
    answers = {1: 20.0, 2: 30.0, 3: 150.0}
    report = events_report(
        terms=[term(1), term(2, vacant_ms=6000.0, failover_ms=2500.0)],
        latencies=[{"event": "BrokerChange", "queue_ms": {"max": 1200.0}}],
        over_time=[{"start_ms": EVENTS_MS, "queue_ms": {"max": 1200.0}}],
        slowest_brokers=[broker_row(b, answers_ms=ms) for b, ms in answers.items()],
    )
    assert sentences(event_verdict(report, EVENTS)) == [
        "1 time there was no controller for more than 1 s (broker 1 in epoch 2: 6 s)."
        " Look for the reason in broker-1/broker.log around 11:06:40.",
        "1 failover took more than 1 s (broker 1 in epoch 2: 2.5 s)."
        " Look for the reason in broker-1/broker.log around 11:06:40.",
        "Events waited up to 1.2 s in the queue of the controller (BrokerChange)."
        " Look for the reason in broker-1/broker.log around 11:06:40.",
        "1 broker answers slowly: 5 of 100 answers take longer than this"
        " (broker 3: 150 ms against 25 ms of the others)."
        " Look for the reason in broker-3/broker.log.",
    ]


def test_a_failed_controller_is_named_with_the_time_until_the_next_and_its_log():
    terms = [term(1, has_failed=True), term(2, vacant_at_most_ms=6100.0)]
    verdict = event_verdict(events_report(terms=terms), EVENTS)
    assert sentences(verdict) == [
        "1 controller failed without resigning (broker 1 in epoch 1)."
        " Then there was no controller for up to 6.1 s."
        " Look for the reason in broker-1/broker.log after 11:07:40."
    ]
    days = {"terms": terms, "last_ms": EVENTS_MS + 86_400_000}
    verdict = event_verdict(events_report(**days), EVENTS)
    assert "broker.log after 2026-11-18 11:07:40." in sentences(verdict)[0]


def test_brokers_that_failed_again_and_again_are_named_without_their_orderly_stops():
    brokers = [
        broker_row(1, failed=9, shutdowns=9),
        broker_row(2, failed=5),
        broker_row(3, failed=46, shutdowns=1),
    ]
    verdict = event_verdict(events_report(slowest_brokers=brokers), EVENTS)
    assert sentences(verdict) == [
        "2 brokers failed again and again from 11:06:40 to 11:08:10 (broker 3: 45 times, broker 2:"
        " 5 times). Look for the reason in broker-3/broker.log."
    ]


def test_partitions_without_leaders_and_with_restless_isrs_are_named_and_unreadable_lines():
    name = {"topic": "t", "partition": 0}
    report = events_report(
        leaderless=[{**name, "times_leaderless": 2}],
        leaderless_partitions=27,
        isr_flapping=[{**name, "isr_shrinks": 7}, {**name, "isr_shrinks": 1}],
        restless_isrs=1,
        slowest_brokers=[broker_row(1, isr_left=1), broker_row(2, isr_left=7, failed=1)],
        unreadable_lines={"x/events.jsonl": 3},
    )
    verdict = event_verdict(report, EVENTS)
    assert sentences(verdict) == [
        "27 partitions had no leader for a time (t-0: 2 times and 26 more)."
        " Broker 2 failed most often. Look for the reason in broker-2/broker.log.",
        "1 partition lost replicas from the ISR (the replicas in sync) again and again"
        " (t-0: 7 times)."
        " Broker 2 left ISRs most often. Look for the reason in broker-2/broker.log.",
        "3 lines of the journals could not be read (x/events.jsonl).",
    ]
    others = event_verdict({**report, "unnamed_changes": 4}, {**EVENTS, "journals": ["x"]})
    assert sentences(others)[0].startswith("At least 27 partitions had no leader")
    assert [remedy.command for remedy in remedies(others)] == [
        "regent topics describe --under-replicated-partitions --zookeeper HOST:PORT"
    ]
    assert "HOST:PORT is the ZooKeeper of the journals' cluster" in remedies(others)[0].purpose


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of([*UNEVEN, [1], [1, 3]], [(0, "a"), (1, "b"), (3, "b")]),
        verdict_of(UNEVEN, zookeeper="z:1", conf={"spark.x": "1"}, master="yarn"),
        judged(led(0, -1, 12, [0]), led(1, 2, 9), led(2, 2, 1), brokers=(1, 2)),
        judged(led(0, -1, 2, [0]), led(1, 1, 9, [1]), zookeeper="z:1"),
        event_verdict(
            events_report(
                leaderless=[{"topic": "t", "partition": 0, "times_leaderless": 1}],
                leaderless_partitions=1,
                slowest_brokers=[broker_row(1, answers_ms=5000.0)],
            ),
            EVENTS,
        ),
    ],
)
def test_every_command_of_a_verdict_is_accepted(
    verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "partitions.json").touch()  # a verdict says what to write there
    monkeypatch.chdir(tmp_path)
    assert len(remedies(verdict)) > 1
    for remedy in remedies(verdict):
        check_is_accepted(remedy.command)
