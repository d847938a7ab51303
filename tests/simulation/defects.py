"""All defects that are planted to test the simulation: the functions of these modules."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isfunction
from typing import Any, TypeAlias

from tests.simulation import (
    address_defects,
    bounds_defects,
    config_defects,
    control_request_defects,
    controller_defects,
    damage_defects,
    decision_defects,
    denial_defects,
    file_defects,
    group_defects,
    kafka_defects,
    leader_defects,
    metadata_defects,
    power_loss_defects,
    record_defects,
    tampering_defects,
    token_defects,
    transaction_defects,
    undeletion_defects,
)

Defect: TypeAlias = Callable[[], Any]

_MODULES = (
    controller_defects,
    record_defects,
    damage_defects,
    power_loss_defects,
    decision_defects,
    leader_defects,
    tampering_defects,
    file_defects,
    config_defects,
    address_defects,
    bounds_defects,
    control_request_defects,
    denial_defects,
    group_defects,
    transaction_defects,
    metadata_defects,
    token_defects,
    kafka_defects,
    undeletion_defects,
)

DEFECTS: tuple[Defect, ...] = tuple(
    function
    for module in _MODULES
    for function in vars(module).values()
    if isfunction(function) and function.__module__ == module.__name__
)

SEARCH_FROM: dict[Defect, int] = {
    defect: seed
    for module in _MODULES
    for defect, seed in getattr(module, "SEARCH_FROM", {}).items()
}
"""The first seed of the search for a defect, if not 0; it only shortens the search."""

QUICKEST_DEFECTS: frozenset[Defect] = frozenset(
    {
        address_defects.first_addresses_kept,
        controller_defects.any_replica_may_join_the_isr,
        controller_defects.epoch_read_after_waking,
        controller_defects.waiting_shutdowns_not_answered,
        damage_defects.logs_replaced_in_the_same_epoch,
        damage_defects.no_new_epoch_for_damaged_logs,
        damage_defects.unreadable_logs_taken_for_deleted,
        decision_defects.answers_of_former_broker_epochs_count,
        decision_defects.members_of_any_broker_epoch,
        decision_defects.refused_proposals_written,
        group_defects.static_members_removed_by_rebalances,
        kafka_defects.missing_broker_epochs_taken_for_0,
        leader_defects.appends_with_too_few_in_sync,
        metadata_defects.any_metadata_complete,
        metadata_defects.unlisted_partitions_do_not_exist,
        record_defects.consumers_read_to_the_log_end,
        record_defects.fetches_of_any_epoch_count,
        record_defects.newcomers_are_not_waited_for,
        tampering_defects.cluster_id_unchecked,
        tampering_defects.controller_epochs_forgotten,
        tampering_defects.registrations_of_others_overwritten,
        token_defects.renewed_tokens_deleted,
        token_defects.tokens_looked_at_by_the_first_controller_only,
        undeletion_defects.deleted_logs_not_held,
        undeletion_defects.logs_that_lack_records_held,
    }
)
"""Defects that `make test` searches for: some of each module, those that are found soonest."""

RARE_DEFECTS: frozenset[Defect] = frozenset(
    {
        decision_defects.answers_of_restarted_new_leaders_count,
        decision_defects.late_proposals_carried_out,
        control_request_defects.lost_deletions_repeated_last,
        denial_defects.refused_proposals_final,
        denial_defects.replaced_logs_forgotten,
        file_defects.segments_need_not_meet,
        record_defects.early_batches_out_of_order,
        tampering_defects.registrations_made_again_without_suspects,
        transaction_defects.deletions_before_late_markers_forgotten,
        transaction_defects.open_positions_lost_with_their_coordinator,
        undeletion_defects.topics_back_in_their_last_leader_epochs,
    }
)
"""Defects that 2,000 histories may not meet; ``--rare-defects`` searches for minutes."""
