"""Lines of journals from versions that had sentences only: their typed fields, by the sentences."""

from __future__ import annotations

from typing import Final

# One match a sentence, of four kinds:
#   P: created, leader 1, isr [1, 2]             P: leader 1 → 2, isr [2], leader epoch 5
#   P: leader 1, isr [1, 2] → [1, 2, 3]          P: leader 1, isr [1, 2] → [1], leader epoch 5
_SENTENCE: Final = (
    r"^(\\S+)-(\\d+): (created, )?leader (-?\\d+|\\?)(?: → (-?\\d+))?"
    r", isr \\[?([\\d, ]+|\\?)\\]?(?: → \\[([\\d, ]+)\\])?(?:, leader epoch (\\d+)|, recovering)?$"
)


def _numbers(text: str) -> str:
    """Return the SQL of the list of numbers in a text like ``1, 2``."""
    return f"transform(split({text}, ', '), b -> try_cast(b AS INT))"


def _brokers(did: str) -> str:
    sentences = f"filter(changes, s -> s LIKE 'brokers [%]: {did}')"
    listed = _numbers(r"regexp_extract(s, '\\[([\\d, ]+)\\]', 1)")
    return f"flatten(transform({sentences}, s -> {listed}))"


_PARTS: Final = f"""
transform(filter(changes, s -> s RLIKE '{_SENTENCE}'),
          s -> split(regexp_replace(s, '{_SENTENCE}', '$1|$2|$3|$4|$5|$6|$7|$8'), '[|]'))
"""

_WITH_ARROWS: Final = f"""
transform({_PARTS}, p -> struct(
  p[0] AS topic, try_cast(p[1] AS INT) AS partition,
  IF(p[2] = '', try_cast(p[3] AS INT), NULL) AS leader_before,
  IF(p[6] = '' OR p[5] = '?', NULL, {_numbers("p[5]")}) AS isr_before,
  try_cast(IF(p[4] = '', p[3], p[4]) AS INT) AS leader,
  {_numbers("IF(p[6] = '', p[5], p[6])")} AS isr,
  IF(p[2] = '', try_cast(p[7] AS INT), 0) AS leader_epoch))
"""

# The ISR before a change of the leader is not told. Without its other members, only the former
# leader can have left it.
_PARTITIONS: Final = f"""
transform({_WITH_ARROWS}, p -> named_struct(
  'topic', p.topic, 'partition', p.partition, 'leader_before', p.leader_before,
  'isr_before', IF(p.isr_before IS NULL AND p.leader_before >= 0,
                   array_union(array(p.leader_before), p.isr), p.isr_before),
  'leader', p.leader, 'isr', p.isr, 'leader_epoch', p.leader_epoch))
"""

_IS_OLD: Final = "change_count IS NULL AND size(changes) > 0"
_LAST: Final = "try_element_at(changes, -1)"
_HAS_MORE: Final = f"{_LAST} LIKE 'and % more'"
_NAMED: Final = f"size(changes) - IF({_HAS_MORE}, 1, 0)"
_MORE: Final = f"coalesce(try_cast(regexp_extract({_LAST}, '[0-9]+', 0) AS INT), 0)"
_WON: Final = r"exists(changes, s -> s RLIKE '^broker \\d+: controller epoch \\d+$')"
_RESIGNED: Final = r"exists(changes, s -> s RLIKE '^broker \\d+: resigned$')"

_OLD: Final = {
    "elected": f"IF({_WON}, controller_epoch, NULL)",
    # The event is counted to the term that it began, or else to the one that it ended.
    "resigned": f"IF({_RESIGNED}, controller_epoch - IF({_WON}, 1, 0), NULL)",
    "started": _brokers("started"),
    "failed": _brokers("failed"),
    "partitions": _PARTITIONS,
}

NAMED_CHANGES: Final = f"IF(size(changes) > 0, {_NAMED}, 0)"
"""The SQL of the number of changes with a sentence."""

TYPED_FIELDS: Final = {
    "change_count": f"coalesce(change_count, named_changes + IF({_HAS_MORE}, {_MORE}, 0))",
    **{name: f"IF({_IS_OLD}, {old}, {name})" for name, old in _OLD.items()},
    "broker": r"coalesce(broker, IF(cause LIKE '%broker %',"
    r" try_cast(regexp_extract(cause, 'broker (\\d+)', 1) AS INT), NULL))",
}
"""The SQL of each typed field that may come from sentences.

A line with ``change_count``, or without changes, has its own values."""
