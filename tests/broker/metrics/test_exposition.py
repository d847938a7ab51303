"""The text that Prometheus reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from regent.broker.metrics.exposition import counter, gauge, text


def test_families_of_one_name_become_one():
    one = gauge("waiting", "requests that wait").add(1, {"kind": "Fetch"})
    another = gauge("waiting", "requests that wait").add(2, {"kind": "topic"})
    assert "".join(text([one, counter("nothing", "no sample"), another])) == (
        "# HELP waiting requests that wait\n"
        "# TYPE waiting gauge\n"
        'waiting{kind="Fetch"} 1\n'
        'waiting{kind="topic"} 2\n'
        "# HELP nothing no sample\n"
        "# TYPE nothing counter\n"
    )


def test_a_label_may_have_any_characters():
    odd = 'a "quoted"\nback\\slash'
    (family,) = text_string_to_metric_families(
        "".join(text([gauge("size", "bytes").add(float("nan"), {"path": odd})]))
    )
    assert family.samples[0].labels == {"path": odd}
