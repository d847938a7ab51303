"""Lines of journals from versions that had sentences only: their typed fields, by the sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_MORE: Final = re.compile(r"and (\d+) more")
_BROKER_OF_CAUSE: Final = re.compile(r"\bbroker (\d+)")

# Four kinds:
#   P: created, leader 1, isr [1, 2]             P: leader 1 → 2, isr [2], leader epoch 5
#   P: leader 1, isr [1, 2] → [1, 2, 3]          P: leader 1, isr [1, 2] → [1], leader epoch 5
_PARTITION: Final = re.compile(
    r"(\S+)-(\d+): (created, )?leader (-?\d+|\?)(?: → (-?\d+))?"
    r", isr \[?([\d, ]+|\?)\]?(?: → \[([\d, ]+)\])?(?:, leader epoch (\d+)|, recovering)?"
)
_BROKERS: Final = re.compile(r"brokers \[([\d, ]+)\]: (started|failed)")
_ELECTED: Final = re.compile(r"broker \d+: controller epoch \d+")
_RESIGNED: Final = re.compile(r"broker \d+: resigned")


def typed_fields(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with its typed fields."""
    changes: list[str] = line["changes"] or []
    more = _MORE.fullmatch(changes[-1]) if changes else None
    sentences = changes[:-1] if more else changes
    of_brokers = [match for match in map(_BROKERS.fullmatch, sentences) if match]
    is_elected = any(map(_ELECTED.fullmatch, sentences))
    epoch = line["controller_epoch"]
    cause = _BROKER_OF_CAUSE.search(line["cause"])
    return {
        **line,
        "broker": int(cause[1]) if cause else None,
        "change_count": len(sentences) + (int(more[1]) if more else 0),
        "elected": epoch if is_elected else None,
        # The event is counted to the term that it began, or else to the one that it ended.
        "resigned": epoch - is_elected if any(map(_RESIGNED.fullmatch, sentences)) else None,
        **{
            did: [b for match in of_brokers if match[2] == did for b in _numbers(match[1])]
            for did in ("started", "failed")
        },
        "partitions": list(_partitions(sentences)),
    }


def _partitions(sentences: Iterable[str]) -> Iterable[dict[str, Any]]:
    for match in filter(None, map(_PARTITION.fullmatch, sentences)):
        topic, partition, created, leader, new_leader, isr, new_isr, leader_epoch = match.groups()
        leader_before = None if created or leader == "?" else int(leader)
        isr_before = _numbers(isr) if new_isr and isr != "?" else None
        isr_now = _numbers(new_isr or isr)
        if isr_before is None and leader_before is not None and leader_before >= 0:
            # The ISR before a change of the leader is not told. Without its other members, only
            # the former leader can have left it.
            isr_before = [leader_before, *(b for b in isr_now if b != leader_before)]
        yield {
            "topic": topic,
            "partition": int(partition),
            "leader_before": leader_before,
            "isr_before": isr_before,
            "leader": int(new_leader or leader),
            "isr": isr_now,
            "leader_epoch": 0 if created else leader_epoch and int(leader_epoch),
        }


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(", ")] if text != "?" else []
