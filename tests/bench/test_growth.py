from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bench.growth import growth, growth_lines


def result(seconds: dict[int, float]) -> dict[str, Any]:
    cases = [
        {
            "shape": {"partitions": partitions},
            "runs": 1,
            "figures": {"seconds": {"median": median, "min": median / 2, "max": median * 2}},
        }
        for partitions, median in seconds.items()
    ]
    return {"benchmark": "failover-load", "cases": cases}


def test_a_figure_grows_over_the_partitions_of_all_results() -> None:
    (line,) = growth_lines([result({20: 2.0, 2: 1.0}), result({200: 4.0})], ["seconds", "cpu_s"])

    assert (line.name, line.x, line.y) == ("failover-load: seconds", [2, 20, 200], [1.0, 2.0, 4.0])
    assert line.band == ([0.5, 1.0, 2.0], [2.0, 4.0, 8.0])


def test_a_chart_names_its_lines(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(result({2: 1.0, 20: 2.0})))
    arguments = [str(tmp_path / "result.json"), "--svg", str(tmp_path / "growth.svg")]

    assert CliRunner().invoke(growth, arguments).exit_code == 0

    chart = (tmp_path / "growth.svg").read_text()
    assert "failover-load: seconds" in chart
    assert "partitions" in chart
