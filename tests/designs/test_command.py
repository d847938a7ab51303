"""``compare``: its arguments, and how it prints what was measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from regent.designs import __main__ as command
from regent.designs.measuring.comparison import Failure


@pytest.fixture(autouse=True)
def _measured_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing, because that takes minutes."""

    def measure(design: str, failure: Failure, _progress: object) -> dict[str, int]:
        per_partition = 2 if design == "v1-name" else 0
        found = {"watches fired": max(2, per_partition * failure.partitions)}
        return found | ({"brokers told": 7} if failure.includes_controller else {})

    monkeypatch.setattr(command, "measure", measure)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command.cli, ["compare", *arguments])


def test_each_size_is_a_table_with_a_column_for_each_design():
    printed = run("--partitions", "100", "--partitions", "10").stdout
    assert "100 partitions, 1 of 3 brokers die\nMEASURE " in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("watches fired")]
    assert [row[2:] for row in rows] == [["200", "2", "2", "2", "2"], ["20", "2", "2", "2", "2"]]
    told = next(line for line in printed.splitlines() if line.startswith("brokers told"))
    assert told.split()[2:] == ["-", "-", "-", "-", "7"]
    assert "\nModels of replication\nSURVIVES-1-DEATH " in printed


def test_json_has_everything_that_was_measured():
    printed = json.loads(run("-o", "json", "--failures", "2", "--design", "v1-name").stdout)
    assert printed["measured"] == [
        {"partitions": 1, "design": "v1-name", "watches fired": 2},
        {"partitions": 1000, "design": "v1-name", "watches fired": 2000},
    ]
    assert printed["votes"][0]["majority vote"] == "5"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--failures", "3"), "--failures 3 leaves no broker of 3: name a smaller number"),
        (("--partitions", "0"), "0 is not in the range"),
        (("--design", "v9"), "'v9' is not"),
    ],
)
def test_unusable_arguments_are_refused_before_anything_is_measured(
    arguments: tuple[str, ...], problem: str
):
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert not result.stdout
