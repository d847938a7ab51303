"""What the usual dashboards for Kafka query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_QUERIES = Path(__file__).parents[1] / "broker" / "metrics" / "dashboard_queries.txt"
ABSENT = {
    "jvm_gc_collection_seconds_sum": "there is no JVM: python_gc_collections_total",
    "jvm_memory_bytes_max": "there is no JVM, and no maximum",
    "jvm_memory_used_bytes": "there is no JVM: process_resident_memory_bytes",
    "kafka_log_log_tiersize": "there is no tiered storage",
    "kafka_network_requestmetrics_deprecatedrequestspersec_fiveminuterate": (
        "requestspersec has the versions"
    ),
    "kafka_server_brokertopicmetrics_fetchmessageconversionspersec": "not counted",
    "kafka_server_brokertopicmetrics_producemessageconversionspersec": "not counted",
    "kafka_server_replicamanager_straypartitionsmisclassifiedcount": "only Confluent Server has it",
    "kafka_server_replicamanager_straypartitionstotalsize": "only Confluent Server has it",
    "kafka_tier_tasks_archive_tierarchiver_bytespersec": "there is no tiered storage",
    "kafka_tier_tasks_archive_tierarchiver_retriespersec": "there is no tiered storage",
    "kafka_tier_tasks_archive_tierarchiver_totallag": "there is no tiered storage",
    "kafka_tier_tasks_tiertasks_numpartitionsinerror": "there is no tiered storage",
}
"""Queries that find nothing at a broker, and why."""


def queries() -> Sequence[str]:
    """Return the names that are queried, with their labels."""
    return [line for line in _QUERIES.read_text().splitlines() if not line.startswith("#")]


def query_parts(text: str) -> tuple[str, frozenset[str]]:
    """The name, and the labels, with values if the text has them."""
    name, _, labels = text.rstrip("}").partition("{")
    return name, frozenset(filter(None, re.split(r",(?=\w)", labels)))
