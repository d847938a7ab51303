"""The markers that coordinators send to this broker.

They are written to its partitions. In partitions of ``__consumer_offsets`` the positions of the
transaction then take effect, before the coordinator is told: a client that knows that the
transaction is complete never reads the old positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regent.core.errors import Errors
from regent.core.protocol.coordinator import CoordinatorService, Question
from regent.core.protocol.groups import CompletedTransaction, CompleteTransactions
from regent.core.protocol.transactions import (
    MarkerTarget,
    PartitionOutcome,
    TxnMarker,
    TxnMarkerResult,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC


class MarkerReceiver:
    """Implements ``MarkerTarget`` with the partitions and the group coordinator of this broker."""

    def __init__(self, target: MarkerTarget, groups: CoordinatorService) -> None:
        self._target = target
        self._groups = groups

    def write_markers(
        self,
        markers: Sequence[TxnMarker],
        respond: Callable[[Sequence[TxnMarkerResult]], None],
    ) -> None:
        """See ``MarkerTarget.write_markers``."""

        def written(results: Sequence[TxnMarkerResult]) -> None:
            completed = tuple(
                CompletedTransaction(
                    row.partition, marker.producer_id, row.marker_offset, marker.is_commit
                )
                for marker, result in zip(markers, results, strict=True)
                for row in result.partitions
                if _is_of_groups(row)
            )
            if not completed:
                respond(results)
                return
            completing = CompleteTransactions(completed)
            self._groups.ask(
                [Question(completing, lambda errors: respond(_with_outcomes(results, errors)))]
            )

        self._target.write_markers(markers, written)


def _is_of_groups(row: PartitionOutcome) -> bool:
    return row.topic == GROUP_METADATA_TOPIC and row.error_code is Errors.NONE


def _with_outcomes(
    results: Sequence[TxnMarkerResult], errors: Sequence[Errors]
) -> Sequence[TxnMarkerResult]:
    """Return the results; where the group coordinator could not act, the marker is sent again."""
    outcomes = iter(errors)

    def outcome(row: PartitionOutcome) -> PartitionOutcome:
        if not _is_of_groups(row) or next(outcomes) is Errors.NONE:
            return row
        return row._replace(error_code=Errors.REQUEST_TIMED_OUT)

    return [
        TxnMarkerResult(result.producer_id, tuple(map(outcome, result.partitions)))
        for result in results
    ]
