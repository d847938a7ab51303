"""The runner of each group of cases, and the common parts of all runs.

Anything that a runner does not understand is a failure that names the case and the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from regent.core.errors import RegentError
from tests.conformance import (
    codec,
    context,
    controller_requests,
    deletion,
    elections,
    event_manager,
    faults,
    ids,
    metadata,
    proposals,
    replication,
    request_batch,
    rules,
    scenarios,
    state_machines,
    topic_requests,
    zookeeper,
)
from tests.conformance.fields import Case, UnknownInCaseError
from tests.conformance.shapes import check_shapes

RUNNERS: Mapping[str, Callable[[Case], None]] = {
    "add_partitions": topic_requests.add_partitions,
    "alter_isr_client": proposals.alter_isr_client,
    "alter_isr_controller": controller_requests.alter_isr_controller,
    "broker_epoch_check": replication.broker_epoch_check,
    "controller_context_lookup": context.controller_context_lookup,
    "controller_epoch_check": replication.controller_epoch_check,
    "create_partitions_validation": topic_requests.create_partitions_validation,
    "create_topics_request": topic_requests.create_topics_request,
    "delete_topics_request": topic_requests.delete_topics_request,
    "deletion_scenario": scenarios.deletion_scenario,
    "elect_leaders": elections.elect_leaders,
    "end_to_end": scenarios.end_to_end,
    "event_preemption": event_manager.event_preemption,
    "event_queue": event_manager.event_queue,
    "fault_mode": faults.fault_mode,
    "isr_change": replication.isr_change,
    "isr_expiration": replication.isr_expiration,
    "isr_removal": state_machines.isr_removal,
    "leader_and_isr_topic_id": replication.leader_and_isr_topic_id,
    "leader_election": rules.leader_election,
    "metadata_view": metadata.metadata_view,
    "offline_partition_count": context.offline_partition_count,
    "partition_state_machine": state_machines.partition_state_machine,
    "partition_state_transitions": state_machines.partition_state_transitions,
    "preferred_imbalance_metric": context.preferred_imbalance_metric,
    "rack_alternated_list": rules.rack_alternated_list,
    "reassign_tool_move_map": rules.reassign_tool_move_map,
    "reassignment_validation": controller_requests.reassignment_validation,
    "replica_assignment_reassign": rules.replica_assignment_reassign,
    "replica_assignment_target": rules.replica_assignment_target,
    "replica_placement_error": rules.replica_placement_error,
    "replica_placement_exact": rules.replica_placement_exact,
    "replica_placement_property": rules.replica_placement_property,
    "replica_state_machine": state_machines.replica_state_machine,
    "replica_state_transitions": state_machines.replica_state_transitions,
    "request_batch": request_batch.request_batch,
    "stop_replica_leader_epoch": replication.stop_replica_leader_epoch,
    "topic_assignment_validation": topic_requests.topic_assignment_validation,
    "topic_deletion": deletion.topic_deletion,
    "topic_id": ids.topic_id,
    "unclean_scenario": ids.unclean_scenario,
    "under_replicated": replication.under_replicated,
    "zk_operation": zookeeper.zk_operation,
    "znode_codec": codec.znode_codec,
}

_EXPECTING = ("expect", "steps", "valid", "final_state")
"""The keys of expectations."""

_MISREAD = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RegentError)


def play(group: str, values: Mapping[str, Any]) -> None:
    """Run one case.

    Raises ``AssertionError`` if the outcome differs from the case, and
    ``UnknownInCaseError`` if the case cannot be understood.
    """
    name = f"{group}/{values.get('name')}"
    if group not in RUNNERS:
        raise UnknownInCaseError(f"{name}: no runner for this group; there are {sorted(RUNNERS)}")
    try:
        _check_expectation(values)
        check_shapes(group, values)
        with Case(group, values) as case:
            RUNNERS[group](case)
    except UnknownInCaseError as unknown:
        raise UnknownInCaseError(f"{name}: {unknown}") from unknown
    except AssertionError as error:
        error.add_note(f"in the case {name}")
        raise
    except _MISREAD as error:
        raise UnknownInCaseError(f"{name}: its runner cannot read it: {error!r}") from error


def _check_expectation(values: Mapping[str, Any]) -> None:
    said = [values[key] for key in _EXPECTING if key in values]
    if not any(expected is not None and expected != {} and expected != "" for expected in said):
        raise UnknownInCaseError("the case has no expectation")
