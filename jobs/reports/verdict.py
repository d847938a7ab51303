"""The verdict of a report: what is wrong, in a few sentences, and the commands that mend it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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

_NAMED: Final = 3
_SECRET: Final = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)  # as Spark's own


class Remedy(NamedTuple):
    """A command line that can be pasted, and what it is for."""

    purpose: str
    command: str


class Verdict(NamedTuple):
    """What is wrong, one sentence each, or else what is ``fine``."""

    problems: Sequence[str]
    fine: str
    remedies: Sequence[Remedy] = ()

    @property
    def sentences(self) -> str:
        """The verdict without its commands."""
        return " ".join(self.problems) or self.fine

    def fields(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        commands = (f"{purpose}: `{command}`" for purpose, command in self.remedies)
        return {
            "verdict": " ".join([self.sentences, *commands]),
            "is_fine": not self.problems,
            "remedies": [remedy._asdict() for remedy in self.remedies],
        }


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


def counted(count: int, one: str, many: str) -> str:
    """Return a number with its noun, and perhaps a verb."""
    return f"{count:,} {one if count == 1 else many}"


def listed(names: Sequence[str], total: int | None = None, most: int = _NAMED) -> str:
    """Return the first few names; ``total`` is their number if ``names`` is not complete."""
    total = len(names) if total is None else total
    shown = names[:most] if total > most else names
    more = total - len(shown)
    if more:
        return f"{', '.join(shown)} and {more:,} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def number_range(low: int, high: int) -> str:
    """Return both numbers, or one if they are equal."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
