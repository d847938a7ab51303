"""``compare``: its arguments, and how it prints what was measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from regent.designs import compare as designs_compare
from regent.designs.__main__ import cli
from regent.designs.measuring.comparison import ComparisonSetting, DesignComparison
from tests.designs.measuring.results import both


@pytest.fixture(autouse=True)
def _measured_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing, because that takes minutes."""

    def compare(
        _designs: object, setting: ComparisonSetting, _progress: object
    ) -> DesignComparison:
        return both(setting)

    monkeypatch.setattr(designs_compare, "compare_designs", compare)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["compare", *arguments])


def test_the_table_has_measures_growth_and_claims():
    printed = run("--partitions", "100", "--growth", "100,10").stdout
    assert "One broker dies: a cluster with 100 partitions\nMEASURE " in printed
    assert "One broker dies in clusters of several sizes\nDESIGN " in printed
    assert "Claim      Herd effect of a broker: " in printed
    assert "Numbers    watches that fire for one dead broker: v1-name 200, v3 2" in printed
    assert "Borne out  yes" in printed
    assert "\nModels of replication\nSURVIVES-1-DEATH " in printed


def test_json_has_everything_by_the_names_of_the_designs():
    printed = json.loads(run("-o", "json", "--failures", "2", "--growth", "10").stdout)
    assert printed["setting"] == {"brokers": 3, "partitions": 1000, "failures": 2, "growth": [10]}
    assert printed["designs"]["v3"]["failure"]["zookeeper"]["watches_fired"] == 4
    assert printed["designs"]["v3"]["failure"]["times"]["led_ms"] == 1050
    assert printed["designs"]["v1-name"]["controller_failure"] is None
    assert printed["votes"][0]["majority vote"] == "5"
    assert {"claim", "numbers", "is_borne_out"} == printed["claims"][0].keys()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--failures", "3"), "--failures 3 leaves no broker of 3: name a smaller number"),
        (("--growth", "10,many"), "'10,many' is not a list like 100,1000,10000"),
        (("--growth", "0"), "0 partitions: name 1 to 50000"),
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
