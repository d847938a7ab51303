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
    leader_defects,
    metadata_defects,
    power_loss_defects,
    record_defects,
    tampering_defects,
    transaction_defects,
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
        controller_defects.any_replica_may_join_the_isr,
        controller_defects.epoch_read_after_waking,
        controller_defects.waiting_shutdowns_not_answered,
        record_defects.followers_truncate_to_the_high_watermark,
        record_defects.logs_that_diverge_unnoticed,
    }
)
"""Defects that `make test` searches for: of each module some that are found soonest."""

RARE_DEFECTS: frozenset[Defect] = frozenset(
    {
        decision_defects.answers_of_restarted_new_leaders_count,
        control_request_defects.lost_deletions_repeated_last,
        denial_defects.refused_proposals_final,
        denial_defects.replaced_logs_forgotten,
        file_defects.segments_need_not_meet,
        record_defects.early_batches_out_of_order,
        tampering_defects.registrations_made_again_without_suspects,
        transaction_defects.deletions_before_late_markers_forgotten,
        transaction_defects.open_positions_lost_with_their_coordinator,
    }
)
"""Defects that the first 200 histories do not catch; ``--rare-defects`` searches for minutes."""
