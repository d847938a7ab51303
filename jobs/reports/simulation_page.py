"""The page of a simulated placement: all strategies, and one of them in detail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from regent.jobs.reports.balance_page import (
    LOSS_CAPTION,
    add_balance,
    bars,
    loss_curves,
    sorted_curves,
)
from regent.jobs.reports.output import Table
from regent.jobs.reports.page import Axes, Page
from regent.jobs.reports.placement_trial import GrowthCost, Trial, TrialSetting

_GROWTH_CAPTION: Final = (
    "Replicas that move when brokers are added: if the scheme places all partitions again, and the"
    " fewest that make the load even. Regent never places existing partitions again: plans move the"
    " fewest."
)


def write_page(
    setting: TrialSetting, trials: Mapping[str, Trial], tables: Sequence[Table], path: Path
) -> None:
    """Write the page of the trials. Raises OSError."""
    comparison, loss = tables
    page = Page("Simulated placement of replicas")
    page.facts(
        [
            ("Brokers", setting.brokers),
            ("Racks", setting.racks or None),
            ("Partitions", setting.partitions),
            ("Replication factor", setting.factor),
            ("Partitions of a topic", setting.partitions_per_topic),
        ]
    )
    page.table(comparison.headers, comparison.rows, comparison.caption)
    if len(trials) == 1:
        [trial] = trials.values()
        add_balance(page, trial.balance)
    else:
        page.heading("Several brokers fail")
        page.figure(
            loss_curves({name: trial.balance.loss for name, trial in trials.items()}),
            LOSS_CAPTION,
            height_in=3.6,
        )
        page.table(loss.headers, loss.rows, loss.caption)
        _add_loads(page, trials)
    _add_failure(page, trials)
    growths = {name: t.growth for name, t in trials.items() if t.growth is not None}
    if len(growths) > 1:
        page.heading("Brokers are added")
        page.figure(_growth(growths), _GROWTH_CAPTION)
    page.write(path)


def _add_loads(page: Page, trials: Mapping[str, Trial]) -> None:
    page.heading("Load")
    for load in ("replicas", "preferred leaders"):
        page.figure(
            sorted_curves(
                {name: trial.balance.loads[load] for name, trial in trials.items()},
                f"{load} of a broker",
            ),
            f"{load.capitalize()}: brokers from the least loaded to the most.",
        )


def _add_failure(page: Page, trials: Mapping[str, Trial]) -> None:
    failures = {name: t.failure for name, t in trials.items() if t.failure is not None}
    if not failures:
        return
    page.heading("One broker fails")
    page.figure(
        sorted_curves(
            {name: failure.busiest_leader for name, failure in failures.items()},
            "partitions led",
        ),
        "Partitions that the busiest of the others leads after a broker failed and the second"
        " replicas took over; one point for each broker that may fail, in ascending order.",
    )
    if len(failures) == 1:
        return
    page.figure(
        bars(
            {name: float(failure.sources.mean()) for name, failure in failures.items()},
            "brokers",
            is_logarithmic=True,
        ),
        "Brokers that the replicas of a failed one are copied from, on average: the more there"
        " are, the faster it is replaced, and the more copysets there are to lose.",
    )


def _growth(growths: Mapping[str, GrowthCost]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        places = range(len(growths))
        recomputed = [growth.recomputed for growth in growths.values()]
        least = [growth.minimum for growth in growths.values()]
        axes.bar([p - 0.2 for p in places], recomputed, width=0.36, label="placed again")
        axes.bar([p + 0.2 for p in places], least, width=0.36, label="the fewest")
        axes.set_xticks(list(places), list(growths))
        axes.set_xlim(-0.6, len(growths) - 0.4)
        axes.set_ylabel("replicas moved")
        axes.legend()

    return draw
