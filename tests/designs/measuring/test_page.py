"""The tables and the page of a comparison."""

from __future__ import annotations

from pathlib import Path

from regent.designs.measuring.comparison import ComparisonSetting
from regent.designs.measuring.page import comparison_page
from regent.designs.measuring.tables import claims_table, comparison_tables, growth_table
from tests.designs.measuring.results import both

SETTING = ComparisonSetting(brokers=5, partitions=100, failures=2, growth=(10, 100))


def test_each_measure_is_a_row_and_each_design_a_column():
    one, many, with_controller, rest, others = comparison_tables(both(SETTING))
    assert one.caption == "One leader dies: a cluster with 1 partition"
    assert many.caption == "2 brokers die at the same moment: a cluster with 100 partitions"
    assert many.columns == ("measure", "v1-name", "v3")
    assert ("ZooKeeper: watches fired", 200, 4) in many.rows
    assert with_controller.caption.startswith("2 brokers die at the same moment, the controller is")
    assert ("ZooKeeper: znodes read", None, 100) in with_controller.rows
    assert ("changed znodes: log / mntr", "101 / 101", "101 / 101") in many.rows
    assert ("watches", 300, 20) in rest.rows
    assert ("replicas that say they lead", 2, 2) in others.rows
    assert ("acknowledged by the former leader alone", True, False) in others.rows
    assert ("one command: ZooKeeper operations", None, 0) in others.rows


def test_growth_has_a_row_for_each_size_of_each_design():
    table = growth_table(both(SETTING))
    assert [row[:2] for row in table.rows] == [
        *(("v1-name", 10), ("v1-name", 100)),
        *(("v3", 10), ("v3", 100)),
    ]


def test_the_page_has_every_table_and_a_plot_for_each_growing_number(tmp_path: Path):
    comparison = both(SETTING)
    comparison_page(comparison).write(tmp_path / "page.html")
    document = (tmp_path / "page.html").read_text()
    tables = [*comparison_tables(comparison), claims_table(comparison), growth_table(comparison)]
    assert all(f"<figcaption>{table.caption}" in document for table in tables)
    assert document.count("<figure>") == 5
    assert "watches that fire for one dead broker: v1-name 100, v3 2" in document
