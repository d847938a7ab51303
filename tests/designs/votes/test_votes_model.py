"""Replicas die while records are written: what is still there, and what goes on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from regent.core.errors import RegentError
from regent.designs.votes.comparison import VotesComparison, compare_votes
from regent.designs.votes.page import add_votes
from regent.designs.votes.replication_model import ModelTimes, ReplicationScheme, schemes_for
from regent.designs.votes.table import votes_table
from regent.designs.votes.trials import DeathTrial, let_replicas_die
from regent.jobs.reports.page import Page

SEEDS = range(10)
TIMES = ModelTimes(trip_ms=0.01)
"""An acknowledgement is known before others append the record: the hardest moment for a death."""
SCHEMES = [
    pytest.param(scheme, failures, id=f"{scheme.name}, {failures}")
    for failures in (1, 2)
    for scheme in schemes_for(failures)
]


def check_one_more_death(scheme: ReplicationScheme, failures: int, trial: DeathTrial) -> None:
    assert (trial.lost_after_one_more, trial.writes_after_one_more) == (None, False)
    lost_first, lost_all = trial.lost_when_first_is_back, trial.lost_when_all_are_back
    match scheme.name:
        case "majority vote" | "leaderless":
            assert trial.lost_if_none_comes_back == 0
            assert (lost_first, trial.writes_when_first_is_back, lost_all) == (0, True, 0)
        case "ISR":
            assert trial.lost_if_none_comes_back == trial.acknowledged
            assert (lost_first, trial.writes_when_first_is_back, lost_all) == (None, False, 0)
        case "ISR, unclean":
            since_first_death = trial.acknowledged * failures // (failures + 1)
            assert lost_first == lost_all == since_first_death > 0
            assert trial.writes_when_first_is_back
        case _:
            assert (lost_first, trial.writes_when_first_is_back, lost_all) == (0, False, 0)


@pytest.mark.parametrize(("scheme", "failures"), SCHEMES)
def test_the_deaths_that_are_survived_lose_nothing_acknowledged_and_one_more_blocks_or_loses(
    scheme: ReplicationScheme, failures: int, caplog: pytest.LogCaptureFixture
):
    for seed in SEEDS:
        trial = let_replicas_die(scheme, TIMES, seed, failures)
        assert trial.lost == 0
        assert trial.writes == (scheme.name != "all replicas")
        check_one_more_death(scheme, failures, trial)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("scheme", [s for s in schemes_for(3) if s.name != "all replicas"])
def test_deaths_at_once_lose_nothing_either(scheme: ReplicationScheme):
    for seed in SEEDS:
        trial = let_replicas_die(scheme, TIMES, seed, 3, at_once=True)
        assert (trial.lost, trial.writes) == (0, True)


@pytest.mark.parametrize("name", ["majority vote", "ISR"])
@pytest.mark.parametrize("failures", [1, 2])
def test_an_acknowledgement_one_replica_too_early_is_found(name: str, failures: int):
    [scheme] = [scheme for scheme in schemes_for(failures) if scheme.name == name]
    early = replace(scheme, acknowledgements=scheme.acknowledgements - 1)
    assert any(let_replicas_die(early, TIMES, seed, failures).lost for seed in range(60))


def test_a_seed_gives_one_history():
    for scheme in schemes_for(2):
        first, again = (let_replicas_die(scheme, TIMES, 3, 2) for _ in range(2))
        assert first == again


@pytest.fixture(scope="module")
def comparison() -> VotesComparison:
    return compare_votes(1, 1, records=50, waits=3)


def test_the_table_has_every_scheme_and_both_numbers(comparison: VotesComparison):
    header, *rows = votes_table(comparison)
    assert header[1:] == [scheme.name for scheme in schemes_for(1)]
    assert {len(row) for row in rows} == {len(header)}
    cells = {row[0]: row[1:] for row in rows}
    assert cells["acknowledgements of a commit"] == ["2", "2", "2", "2", "2"]
    assert cells["commit, all healthy: p50"][0].startswith("3.23 / ")
    assert cells["leader dies: a record waits"][3:] == ["until it is back", "-"]
    assert cells["… if the first dead comes back"] == [
        "none lost, goes on",
        "no reads, no writes",
        "10 of 20 lost, goes on",
        "none lost, no writes",
        "none lost, goes on",
    ]
    assert not any("never" in cell for row in rows for cell in row)


def test_the_comparison_is_a_json_document(comparison: VotesComparison):
    document = orjson.loads(orjson.dumps(comparison))
    assert [row["scheme"]["replicas"] for row in document["schemes"]] == [3, 2, 2, 2, 3]


def test_the_page_has_the_table_and_a_plot(comparison: VotesComparison, tmp_path: Path):
    page = Page("Designs")
    add_votes(page, comparison)
    page.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert ">none lost, goes on</td>" in text
    assert text.count("<svg ") == 1


@pytest.mark.parametrize("failures", [0, 6])
def test_too_few_and_too_many_failures_are_refused(failures: int):
    with pytest.raises(RegentError, match=f"1 to 5 failures, not {failures}"):
        compare_votes(failures, 1)
