"""The verdict of a report: what is wrong, in a few sentences, and the commands that mend it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regent.client.wording import how_many, listed
from regent.config.cluster_location import DATA_DIR
from regent.config.command_line import program

CLUSTER: Final = ("zookeeper", "data_dir")
"""The options that name a running cluster."""
SPARK: Final = ("master", "conf")
"""The options that say where Spark runs."""

OVERLOAD: Final = 1.2
"""Times its fair share, from which on a broker has too much."""
UNDERLOAD: Final = 0.8
"""Times its fair share, below which a broker has too little."""

NAMED: Final = 3
"""How many things a sentence names; tables name more."""

_MOST: Final = 3  # problems that a verdict begins with
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)  # as Spark's own


class Remedy(NamedTuple):
    """A command line that can be pasted, and what it is for."""

    purpose: str
    command: str
    may_lose_records: bool = False


class Problem(NamedTuple):
    """A sentence that says what is wrong, and the commands that mend it."""

    sentence: str
    remedies: Sequence[Remedy] = ()


class Findings(NamedTuple):
    """Sentences to show together, and the commands for them."""

    sentences: Sequence[str]
    remedies: Sequence[Remedy] = ()


class Verdict(NamedTuple):
    """What is wrong, the worst first, or else what is ``fine``."""

    problems: Sequence[Problem]
    fine: str

    @property
    def first(self) -> Findings:
        """The worst problems, with which a report begins."""
        if not self.problems:
            return Findings([self.fine])
        sentences, remedies = _findings(self.problems[:_MOST])
        left = len(self.problems) - _MOST
        more = [f"And {how_many(left, 'more finding', 'more findings')} below."] * (left > 0)
        return Findings([*sentences, *more], remedies)

    @property
    def others(self) -> Findings:
        """The problems that are not among the first, with which a report ends."""
        sentences, remedies = _findings(self.problems[_MOST:])
        return Findings(sentences, [r for r in remedies if r not in self.first.remedies])

    def fields(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        sentences, remedies = self.first
        commands = (f"{remedy.purpose}: `{remedy.command}`" for remedy in remedies)
        problems = _findings(self.problems)
        return {
            "verdict": " ".join([*sentences, *commands]),
            "is_fine": not self.problems,
            "problems": problems.sentences,
            "remedies": [remedy._asdict() for remedy in problems.remedies],
        }


def _findings(problems: Sequence[Problem]) -> Findings:
    """Return the sentences, and each command once; those that may lose records come last."""
    remedies = dict.fromkeys(remedy for problem in problems for remedy in problem.remedies)
    return Findings(
        [problem.sentence for problem in problems],
        sorted(remedies, key=lambda remedy: remedy.may_lose_records),
    )


def several(
    names: Sequence[str],
    one: str,
    many: str,
    rest: str,
    remedies: Sequence[Remedy] = (),
    *,
    total: int | None = None,
    may_be_more: bool = False,
    more: str = "",
) -> list[Problem]:
    """Return a problem such as "2 brokers lead too much (broker 4: 17, broker 2: 16)." or none.

    ``total`` is the number of things if ``names`` has not all; ``rest`` follows ``one`` or
    ``many``, and ``more`` the sentence. ``may_be_more``: that is their number at least.
    """
    if not names:
        return []
    count = how_many(len(names) if total is None else total, one, many)
    least = "At least " * may_be_more
    return [Problem(f"{least}{count} {rest} ({named(names, total)}).{more}", remedies)]


def named(names: Sequence[str], total: int | None = None) -> str:
    """Return as many names as a sentence has, and how many more there are."""
    return listed(names, NAMED, total=total)


def far_from(values: NDArray[Any], fair: ArrayLike) -> tuple[list[int], list[int]]:
    """Return where values are far above and far below their ``fair`` share, the farthest first.

    A share of NaN is none. The whole numbers next to a share are near it.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = values / np.asarray(fair, float)
    are_high = (ratios > OVERLOAD) & (values > np.ceil(fair))
    are_low = (ratios < UNDERLOAD) & (values < np.floor(fair))
    falling, rising = (np.argsort(keys, kind="stable") for keys in (-ratios, ratios))
    return falling[are_high[falling]].tolist(), rising[are_low[rising]].tolist()


def uneven(
    broker_ids: NDArray[Any],
    values: NDArray[Any],
    fair: ArrayLike,
    verb: tuple[str, str],
    share: str,
    remedies: Sequence[Remedy] = (),
    *,
    others: int | None = None,
    more: str = "",
) -> list[Problem]:
    """Return "Of 9 brokers, 1 holds more than 1.2 times the share (broker 4: 17)." or nothing.

    ``verb`` is for one broker and for many; those that have too little follow. ``others``: how many
    brokers have a ``fair`` number, if the sentence is not about all. ``more`` follows it.
    """
    high, low = far_from(values, fair)
    parts = [
        f"{how_many(len(found), *verb)} {words}"
        f" ({named([f'broker {broker_ids[b]}: {values[b]:,}' for b in found])})"
        for found, words in (
            (high, f"more than {OVERLOAD} times {share}"),
            (low, f"less than {UNDERLOAD} times {'that' if high else share}"),
        )
        if found
    ]
    among = f"{len(values):,}" if others is None else f"the other {others:,}"
    found = f"Of {among} brokers, {', and '.join(parts)}.{more}"
    return [Problem(found, remedies)] if parts else []


def command_line(words: str, options: Mapping[str, Any], *names: str) -> str:
    """Return a command of this program that has the user's options of some ``names``.

    Values of secret settings of Spark are left out: a page is shown to others.
    """
    line = f"{program()} {words}"
    for name in names:
        value = options.get(name)
        if name == "data_dir" and (options["zookeeper"] or value == DATA_DIR):
            continue
        texts = _settings(value) if isinstance(value, Mapping) else [value]
        for text in texts:
            if text:
                line += f" --{name.replace('_', '-')} {shlex.quote(str(text))}"
    return line


def _settings(conf: Mapping[str, str]) -> list[str]:
    return [f"{key}={'...' if _SECRET.search(key) else value}" for key, value in conf.items()]
