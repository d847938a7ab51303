"""The page of a simulated placement: all strategies, or one of them in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from regent.core.placement.replica_placer import Strategy
from regent.jobs.reports.balance_page import add_balance, add_loss_curves, add_numbers
from regent.jobs.reports.charts import columns, height_of, spreads
from regent.jobs.reports.page import Page, Table
from regent.jobs.reports.placement_trial import UNIFORM, GrowthCost, Trial

_GROWTH_CAPTION: Final = (
    "Replicas that move when brokers are added: if the strategy places all partitions again, and"
    " the fewest that make the load even. Regent never places existing partitions again: plans"
    " move the fewest."
)
_PLACEMENTS: Final = {
    Strategy.RING: "The first replica of the next partition is on the next broker, and the other"
    " replicas are on the brokers after it.",
    Strategy.KAFKA: "The first replica of the next partition is on the next broker. The distance to"
    " the other replicas grows by one after each round, so that many brokers take over from one"
    " that fails. What Kafka does without racks.",
    Strategy.RACK_AWARE: "As kafka, but no rack gets a second replica while another has none. What"
    " Kafka does with racks.",
    Strategy.COPYSET: "All replicas of a partition are on one of few sets of brokers, so that few"
    " combinations of failures lose a partition.",
    UNIFORM: "Each partition is on brokers that are drawn at random: for comparison only.",
}
_WORDS: Final = (
    "A copyset is a set of brokers that has all replicas of a partition: if all of them fail at"
    " once, the partition is lost. The scatter width of a broker is the number of others with which"
    " it shares partitions."
)
_BUSIEST: Final = (
    "Partitions that the busiest of the other brokers leads after one broker has failed and the"
    " second replicas have taken over"
)


def add_trials(page: Page, trials: Mapping[str, Trial], tables: Sequence[Table]) -> None:
    """Add the results of the trials."""
    comparison, loss = tables
    page.table(comparison)
    page.table(
        Table(
            "How replicas are placed",
            ("strategy", "placement"),
            [(name, _PLACEMENTS[name]) for name in trials],
        )
    )
    if len(trials) == 1:
        [trial] = trials.values()
        _add_one(page, trial)
    else:
        page.text(_WORDS)
        page.heading("Several brokers fail")
        curves = {name: trial.balance.loss for name, trial in trials.items()}
        add_loss_curves(page, curves, height_in=3.6)
        page.table(loss)
        _add_comparison(page, trials)


def _add_one(page: Page, trial: Trial) -> None:
    add_balance(page, trial.balance)
    if trial.failure is not None:
        busiest = trial.failure.busiest_leader
        caption = f"{_BUSIEST}, by the broker that failed"
        add_numbers(page, trial.balance.broker_ids, busiest, "partitions", caption)


def _add_comparison(page: Page, trials: Mapping[str, Trial]) -> None:
    page.heading("Load of brokers")
    for load in ("replicas", "preferred leaders"):
        values = {name: trial.balance.loads[load] for name, trial in trials.items()}
        _add_spreads(page, values, f"{load.capitalize()} of a broker", load)
    failures = {name: t.failure for name, t in trials.items() if t.failure is not None}
    if failures:
        page.heading("One broker fails")
        busiest = {name: failure.busiest_leader for name, failure in failures.items()}
        _add_spreads(page, busiest, _BUSIEST, "partitions")
        sources = {name: failure.sources for name, failure in failures.items()}
        _add_spreads(
            page,
            sources,
            "Brokers from which the replicas of a failed one are copied, because they lead its"
            " partitions: the more there are, the faster it is replaced, but the more copysets"
            " there are, too",
            "brokers",
        )
    growths = {name: t.growth for name, t in trials.items() if t.growth is not None}
    if growths:
        _add_growths(page, growths)


def _add_spreads(page: Page, values: Mapping[str, NDArray[Any]], what: str, label: str) -> None:
    quantiles = [np.quantile(numbers, (0, 0.5, 1)) for numbers in values.values()]
    if np.ptp(quantiles) == 0:
        page.text(f"{what}: {quantiles[0][0]:,.4g} for all brokers, with each strategy.")
        return
    marks = dict(zip(("lowest", "median", "highest"), np.transpose(quantiles), strict=True))
    page.figure(
        spreads([*values], marks, label),
        f"{what}: the lowest, the median and the highest, over all brokers.",
        height_in=height_of(values),
    )


def _add_growths(page: Page, growths: Mapping[str, GrowthCost]) -> None:
    page.heading("Brokers are added")
    moved = {
        "placed again": [growth.recomputed for growth in growths.values()],
        "the fewest": [growth.minimum for growth in growths.values()],
    }
    page.figure(columns([*growths], moved, "replicas moved"), _GROWTH_CAPTION)
