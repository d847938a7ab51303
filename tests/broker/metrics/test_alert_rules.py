"""The alerts and the dashboard of deploy/prometheus ask for metrics that brokers have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from regent.testing.waits import scaled

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "regent-alerts.yml"
DASHBOARD = RULES.with_name("regent-dashboard.json")
RULES_TEST = Path(__file__).with_name("alert_rules_test.yml")
METRIC = re.compile(r"\b(?:regent|kafka)_[a-z0-9_]+")
OF_PROMETHEUS = {"up"}
OTHER_NAMES = {
    "kafka_server_brokertopicmetrics_messagesin_total",  # of other rules for the JMX exporter
    *("regent_cluster", "regent_brokers", "regent_config", "regent_topic", "regent_topics"),
    "regent_timeout_factor",  # of the fixtures for pytest, as those before
}
"""Names in the docs that are none of our metrics."""


def exported() -> set[str]:
    """Return the metrics of the generated page."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    return set(re.findall(r"^\| `([a-z0-9_]+)` \|", page, re.MULTILINE))


def expressions() -> list[str]:
    text = RULES.read_text()
    return re.findall(r"expr: (.*(?:\n {10}\S.*)*)", text)


def test_every_alert_asks_for_metrics_that_exist_and_names_a_remedy() -> None:
    found = expressions()
    assert len(found) >= 12
    assert len(found) == RULES.read_text().count("remedy: ")
    names = {name for expression in found for name in METRIC.findall(expression)}
    assert names
    assert names - exported() == set()
    asked = [e for e in found if not METRIC.search(e)]
    assert all(e.split("{")[0] in OF_PROMETHEUS for e in asked)


def test_the_page_for_operators_has_the_same_alerts() -> None:
    rule = re.compile(
        r"alert: (\w+)\n +expr: (.*(?:\n {10}\S.*)*)\n(?: +for: (\w+)\n)?"
        r" +labels: {severity: (\w+)}"
    )
    rules = {
        name: (set(METRIC.findall(expression)), ", ".join(filter(None, (severity, lasts))))
        for name, expression, lasts, severity in rule.findall(RULES.read_text())
    }
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", section, re.MULTILINE)
    assert {name: (set(METRIC.findall(when)), how) for name, when, how in rows} == rules
    assert len(rules) == RULES.read_text().count("alert: ")
    assert all(f"(../{file.relative_to(ROOT)})" in section for file in (RULES, DASHBOARD))


def test_every_panel_asks_for_metrics_that_exist() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for expression in asked for name in METRIC.findall(expression)}
    assert len(names) >= 10
    assert names - exported() == set()


def test_the_docs_name_metrics_as_they_are_exported() -> None:
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    text = "\n".join(page.read_text() for page in pages if page.name != "CHANGELOG.md")
    domains = "server|controller|network|log|coordinator|cluster"
    of_kafka = set(re.findall(rf"\bkafka_(?:{domains})_\w+", text))
    ours = set(re.findall(r"`(regent_\w+)(?:\{[^`]*\})?`", text))
    assert len(of_kafka) > 100
    assert (of_kafka | ours) - exported() - OTHER_NAMES == set()


def test_the_rules_ask_for_the_job_that_the_docs_configure() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    configured = set(re.findall(r"- job_name: (\S+)", page))
    assert set(re.findall(r'job="([^"]*)"', RULES.read_text())) == configured


def test_remedies_name_commands_that_exist() -> None:
    from regent.cli.main import COMMANDS

    named = set(re.findall(r"\bregent ([a-z-]+)", RULES.read_text()))
    assert named - COMMANDS.keys() == set()


def test_nothing_is_summed_over_clusters() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [*expressions(), *(t["expr"] for panel in panels for t in panel["targets"])]
    summed = [e for e in asked if re.search(r"\b(sum|max|min|avg|count)\b", e)]
    assert len(summed) >= 8
    assert [e for e in summed if not re.search(r"\b(sum|max) by \(job, env\b", e)] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", RULES),
        ("test", "rules", Path(__file__).with_name("alert_rules_test.yml")),
    ],
)
def test_prometheus_takes_the_rules_and_they_tell_clusters_apart(command: tuple[Any, ...]) -> None:
    command = ("promtool", *map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(30), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
