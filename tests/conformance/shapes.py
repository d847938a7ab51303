"""The types of the values of cases: a word in place of a number is not understood.

Broker ids, epochs, offsets and flags have the same keys in all groups; where a group writes some of
them in words, its runner reads the words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.fields import UnknownInCaseError

_NUMBERS_AND_FLAGS = frozenset(
    """
    ack actual_version adding after_ms alive allow_unclean assignment assignments at
    at_min_isr batch_flushed being_reassigned broker_epoch brokers bytes_per_sec check
    controller_epoch controller_id current dead delete destinations
    error_on_missing_endpoint existing exists expand expected_version fetch_to
    fixed_start_index flush handler_ms idle_reset_ms initial_isr io_error is_new isr
    isr_nonempty item_cleared item_cleared_after_success item_kept_pending jmx_port
    known_controller_epoch leader leader_changed leader_epoch leader_in_replicas leader_leo
    leaders live local local_is_adding log_remains manual maximal_isr min_isr n
    new_submit_accepted new_version offline ok original partition_count partition_gone
    partition_leader_epoch proposals_outstanding proposed rack_aware register_watch removing
    replica replicas replicas_per_partition report_missing_listener request_controller_epoch
    request_epoch request_leader_epoch requested_total resubmitted retried_after_backoff rf
    shrink shutting_down sources start start_index start_partition_id submit_first
    submit_while_in_flight target then_list_without_watch timeout_ms topic_partitions total
    unclean under_replicated valid validate_only write_ok zk_version zk_write
    """.split()  # noqa: SIM905 - a list of them would be a screen long
)

_IN_WORDS: Mapping[str, frozenset[str]] = {  # read by the group's own runner
    "alter_isr_controller": frozenset({"leader_epoch", "broker_epoch", "proposed"}),
    "create_partitions_validation": frozenset({"current"}),
    "elect_leaders": frozenset({"existing"}),
    "isr_change": frozenset({"fetch_to"}),
    "isr_expiration": frozenset({"fetch_to"}),
    "metadata_view": frozenset({"alive"}),
    "offline_partition_count": frozenset({"target"}),
    "partition_state_machine": frozenset({"target"}),
    "reassign_tool_move_map": frozenset({"leader", "follower"}),
    "replica_state_machine": frozenset({"target"}),
    "topic_deletion": frozenset({"replicas"}),
    "zk_operation": frozenset({"existing"}),
}
_BY_NAME = frozenset({"end_to_end", "deletion_scenario", "unclean_scenario", "fault_mode"})
"""Groups whose brokers have names: only values that must be numbers are checked."""

_CERTAINLY_NUMBERS = frozenset(
    {"auto.leader.rebalance.enable", "controlled.shutdown.enable", "delete.topic.enable"}
    | {"bytes_per_sec", "controller_epoch", "done", "leader_epoch", "n", "present", "total"}
)
_HERE_NUMBERS = {  # and elsewhere names
    "create_topics_request": frozenset({"partitions"}),
    "isr_expiration": frozenset({"replica.lag.time.max.ms"}),
    "replica_placement_error": frozenset({"partitions"}),
    "replica_placement_exact": frozenset({"partitions"}),
    "replica_placement_property": frozenset({"partitions"}),
}

_CONTENT = frozenset({"features", "fields", "json", "raw"})
"""Objects with the content of znodes: their decoders read them."""

# Groups in which a whole object maps names to numbers.
_MAPS_OF_NUMBERS: Mapping[str, str] = {
    "controller_context_lookup": "given",
    "replica_placement_exact": "expect",
    "topic_assignment_validation": "in",
}


def check_shapes(group: str, values: Mapping[str, Any]) -> None:
    """Raise ``UnknownInCaseError`` for a word in place of a number or a flag."""
    known = _CERTAINLY_NUMBERS if group in _BY_NAME else _NUMBERS_AND_FLAGS
    known = (known | _HERE_NUMBERS.get(group, frozenset())) - _IN_WORDS.get(group, frozenset())
    for where, value in _values_of(values, known):
        _refuse_words(where, value)
    if group in _MAPS_OF_NUMBERS:
        key = _MAPS_OF_NUMBERS[group]
        _refuse_words(key, values.get(key))


def _values_of(values: Any, keys: frozenset[str], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each of these keys."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if key in _CONTENT:
                continue
            path = f"{where}.{key}".lstrip(".")
            if key in keys:
                yield path, value
            else:
                yield from _values_of(value, keys, path)
    elif isinstance(values, list):
        for number, value in enumerate(values, 1):
            yield from _values_of(value, keys, f"{where} {number}")


def _refuse_words(where: str, value: Any) -> None:
    if isinstance(value, str):
        raise UnknownInCaseError(f"{where}: {value!r} is in place of a number")
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key not in ("topic_state", "state", "error"):
                _refuse_words(f"{where}.{key}", one)
    elif isinstance(value, list):
        for one in value:
            _refuse_words(where, one)
