"""Queries on the table of the controllers' events.

A journal names the first few changes of an event and counts the others, so results about partitions
and ISRs are about the *named* changes.

Times are wall clocks of the brokers' machines; a term has one broker and so one clock.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from regent.jobs.reports.event_terms import (
    PERCENTILES,
    BrokerMentions,
    Rows,
    slowest_brokers,
    terms_of_controllers,
    to_us,
)

MINUTE_MS: Final = 60_000
_MAX_BUCKETS: Final = 240
_BUCKETS_MS: Final = (100, 500, 1000, 5000, 15_000, MINUTE_MS, 5 * MINUTE_MS, 15 * MINUTE_MS)
_HOUR_MS: Final = 60 * MINUTE_MS


# --- events ---------------------------------------------------------------------------------------

_OVERVIEW: Final = """
SELECT broker_id, count(*) AS events, min(ts_ms) AS first_ms, max(ts_ms) AS last_ms,
       sum(size(changes)) AS named_changes, sum(unnamed_changes) AS unnamed_changes
FROM {events} GROUP BY broker_id ORDER BY broker_id
"""

_LATENCIES: Final = """
SELECT event, count(*) AS count,
       percentile(handling_ms, array(0.5, 0.95, 0.99, 1.0)) AS handling_ms,
       percentile(queue_ms, array(0.5, 0.95, 0.99, 1.0)) AS queue_ms
FROM {events} GROUP BY event ORDER BY count DESC, event
"""

_IN_BUCKETS: Final = """
SELECT ts_ms - ts_ms % :bucket_ms AS start_ms, count(*) AS events,
       sum(size(changes) + unnamed_changes) AS changes, sum(handling_ms) AS handling_ms,
       percentile(queue_ms, array(0.5, 0.95, 0.99, 1.0)) AS queue_ms
FROM {events}"""

_OVER_TIME: Final = f"{_IN_BUCKETS} GROUP BY start_ms ORDER BY start_ms"

# Percentiles only for the reported ones: they take much longer than counts.
_BUSIEST_MINUTES: Final = f"""{_IN_BUCKETS} WHERE ts_ms - ts_ms % :bucket_ms IN (
  SELECT ts_ms - ts_ms % :bucket_ms AS start_ms FROM {{events}}
  GROUP BY start_ms ORDER BY count(*) DESC, start_ms LIMIT :top
) GROUP BY start_ms ORDER BY events DESC, start_ms"""

_SLOWEST_EVENTS: Final = """
SELECT ts_ms, broker_id, controller_epoch, event, cause, queue_ms, handling_ms,
       size(changes) + unnamed_changes AS changes
FROM {events} ORDER BY handling_ms DESC, ts_ms, broker_id, event_id LIMIT :top
"""

# --- terms and brokers ----------------------------------------------------------------------------

_TERMS: Final = r"""
SELECT controller_epoch, min(broker_id) AS broker_id, count(*) AS events, min(ts_ms) AS first_ms,
       max(ts_ms + handling_ms) AS last_ms,
       max(IF(exists(changes, s -> s LIKE 'broker %: resigned'), ts_ms, NULL)) AS resigned_ms,
       max(IF(exists(changes, s -> s RLIKE r'^broker \d+: controller epoch \d+$'),
              struct(ts_ms AS elected_ms, event AS trigger, queue_ms, handling_ms,
                     size(changes) + unnamed_changes - 1 AS changes), NULL)) AS election
FROM {events} WHERE controller_epoch > 0 GROUP BY controller_epoch ORDER BY controller_epoch
"""

# The former controller may have been paused, and continue shortly after the next election.
_LAST_HEARD: Final = """
SELECT t.controller_epoch, max(e.ts_ms + e.handling_ms) AS previous_heard_ms
FROM {events} e JOIN {terms} t
  ON e.controller_epoch = t.controller_epoch - 1 AND e.ts_ms <= t.election.elected_ms
GROUP BY t.controller_epoch
"""

# The cause of an event names its broker; it arrived before it waited.
_CAUSES: Final = r"""
SELECT controller_epoch, event, cause, count(*) AS times, min(ts_ms - queue_ms) AS first_ms
FROM {events} WHERE cause RLIKE r'\bbroker \d+' GROUP BY controller_epoch, event, cause
"""

_ANSWERS: Final = r"""
SELECT try_cast(regexp_extract(cause, r'^answer of broker (\d+)$', 1) AS INT) AS broker_id,
       percentile(answered_ms, array(0.5, 0.95, 0.99, 1.0)) AS answered_ms
FROM {events} WHERE answered_ms IS NOT NULL GROUP BY 1
"""

_COMINGS_AND_GOINGS: Final = """
SELECT controller_epoch, sentence, count(*) AS times, min(ts_ms) AS first_ms
FROM (SELECT controller_epoch, ts_ms, explode(changes) AS sentence FROM {events})
WHERE sentence LIKE 'brokers [%]: started' OR sentence LIKE 'brokers [%]: failed'
GROUP BY controller_epoch, sentence
"""

_ISR_CHANGES: Final = """
SELECT try_cast(broker AS INT) AS broker_id, count_if(has_left) AS isr_left,
       count_if(NOT has_left) AS isr_joined
FROM (SELECT inline(concat(transform(left_isr, b -> struct(b AS broker, true AS has_left)),
                           transform(joined_isr, b -> struct(b AS broker, false AS has_left))))
      FROM {leaderships})
WHERE try_cast(broker AS INT) >= 0 GROUP BY broker
"""

# --- partitions -----------------------------------------------------------------------------------

# One match a sentence, of four kinds:
#   P: created, leader 1, isr [1, 2]             P: leader 1 → 2, isr [2], leader epoch 5
#   P: leader 1, isr [1, 2] → [1, 2, 3]          P: leader 1, isr [1, 2] → [1], leader epoch 5
_SENTENCE: Final = (
    r"^(\S+)-(\d+): (created, )?leader (-?\d+|\?)(?: → (-?\d+))?"
    r", isr \[?([\d, ]+|\?)\]?(?: → \[([\d, ]+)\])?(?:, leader epoch (\d+)|, recovering)?$"
)

# Missing values become NULL first: a cast would throw and catch an exception in Spark.
_LEADERSHIPS: Final = """
WITH part AS (
  SELECT controller_epoch, event_id, posexplode(transform(changes, s ->
    IF(s LIKE '%: leader %' OR s LIKE '%: created, leader %',
       split(regexp_replace(s, :sentence, '$1|$2|$3|$4|$5|$6|$7|$8'), '[|]'), array())
  )) AS (position, p) FROM {events} -- inside of it, or Spark would match for every use of p again
), leadership AS (
  SELECT controller_epoch, event_id, position, p[0] AS topic, try_cast(p[1] AS INT) AS partition,
         IF(p[2] = '', try_cast(nullif(p[3], '?') AS INT), NULL) AS leader_before,
         try_cast(nullif(IF(p[4] = '', p[3], p[4]), '?') AS INT) AS leader,
         IF(p[6] = '' OR p[5] = '?', NULL, split(p[5], ', ')) AS isr_before,
         split(IF(p[6] = '', p[5], p[6]), ', ') AS isr,
         IF(p[2] = '', try_cast(nullif(p[7], '') AS INT), 0) AS leader_epoch
  FROM part WHERE size(p) = 8
)
SELECT controller_epoch, event_id, position, topic, partition, leader_before, leader, leader_epoch,
       CASE WHEN isr_before IS NOT NULL THEN array_except(isr_before, isr)
            -- the ISR before is not told, but its leader was in it
            WHEN leader_before >= 0 AND NOT array_contains(isr, string(leader_before))
              THEN array(string(leader_before))
            ELSE array() END AS left_isr,
       coalesce(array_except(isr, isr_before), array()) AS joined_isr
FROM leadership
"""

_PARTITIONS: Final = """
SELECT topic, partition, count_if(leader <> leader_before) AS leader_changes,
       count_if(leader = -1 AND leader_before <> -1) AS times_leaderless,
       coalesce(sum(greatest(0, leader_epoch - epoch_before)), 0) AS leader_epochs,
       count_if(size(left_isr) > 0) AS isr_shrinks, count_if(size(joined_isr) > 0) AS isr_expands
FROM (SELECT *, lag(leader_epoch) IGNORE NULLS OVER (
              PARTITION BY topic, partition ORDER BY controller_epoch, event_id, position
            ) AS epoch_before
      FROM {leaderships})
GROUP BY topic, partition
"""

_CHURN: Final = """
SELECT topic, partition, leader_changes, times_leaderless, leader_epochs FROM {partitions}
WHERE leader_changes > 0 ORDER BY leader_changes DESC, leader_epochs DESC, topic, partition
LIMIT :top
"""

_FLAPPING: Final = """
SELECT topic, partition, isr_shrinks, isr_expands FROM {partitions}
WHERE isr_shrinks + isr_expands > 0
ORDER BY isr_shrinks + isr_expands DESC, topic, partition LIMIT :top
"""


def analyse_events(spark: SparkSession, events: DataFrame, *, top: int) -> dict[str, Any]:
    """Run all queries; of partitions, minutes and single events return the ``top`` first.

    ``events`` has the columns of ``event_journals.COLUMNS`` and at least one row. Times end in
    ``_ms``: moments since the epoch, or durations; distributions are {p50, p95, p99, max}.
    """
    frames = _frames(spark, events)

    def ask(query: str, **arguments: Any) -> Rows:
        return _rows(_asked(spark, query, arguments, frames))

    by_broker = ask(_OVERVIEW)
    first_ms = min(row["first_ms"] for row in by_broker)
    last_ms = max(row["last_ms"] for row in by_broker)
    bucket_ms = _bucket_ms(last_ms - first_ms)
    terms = _asked(spark, _TERMS, {}, frames).toArrow()
    frames["terms"] = spark.createDataFrame(terms)
    mentions = BrokerMentions(by_broker, ask(_CAUSES), ask(_COMINGS_AND_GOINGS))
    return {
        "events": sum(row["events"] for row in by_broker),
        "first_ms": first_ms,
        "last_ms": last_ms,
        "brokers": [row["broker_id"] for row in by_broker],
        "named_changes": sum(row["named_changes"] for row in by_broker),
        "unnamed_changes": sum(row["unnamed_changes"] for row in by_broker),
        "latencies": ask(_LATENCIES),
        "terms": terms_of_controllers(terms.to_pylist(), ask(_LAST_HEARD), mentions),
        "leader_churn": ask(_CHURN, top=top),
        "isr_flapping": ask(_FLAPPING, top=top),
        "slowest_brokers": slowest_brokers(
            terms.to_pylist(), ask(_ISR_CHANGES), ask(_ANSWERS), mentions
        ),
        "busiest_minutes": ask(_BUSIEST_MINUTES, bucket_ms=MINUTE_MS, top=top),
        "slowest_events": ask(_SLOWEST_EVENTS, top=top),
        "bucket_ms": bucket_ms,
        "over_time": ask(_OVER_TIME, bucket_ms=bucket_ms),
    }


def _frames(spark: SparkSession, events: DataFrame) -> dict[str, DataFrame]:
    """Return the events, and results that several queries share."""
    # Not persisted: what a query names in braces is not recognised as the same and done again.
    frames = {"events": events}
    leaderships = _asked(spark, _LEADERSHIPS, {"sentence": _SENTENCE}, frames)
    frames["leaderships"] = leaderships.localCheckpoint()
    frames["partitions"] = _asked(spark, _PARTITIONS, {}, frames).localCheckpoint()
    return frames


def _asked(
    spark: SparkSession, query: str, arguments: dict[str, Any], frames: dict[str, DataFrame]
) -> DataFrame:
    """Return the result of a query with names of frames in braces."""
    named = {name: frame for name, frame in frames.items() if f"{{{name}}}" in query}
    return spark.sql(query, arguments or None, **named)


def _bucket_ms(span_ms: int) -> int:
    """Return the shortest round length of buckets whose number is within the limit."""
    for bucket_ms in _BUCKETS_MS:
        if span_ms < bucket_ms * _MAX_BUCKETS:
            return bucket_ms
    return (span_ms // _MAX_BUCKETS // _HOUR_MS + 1) * _HOUR_MS


def _rows(frame: DataFrame) -> Rows:
    return [
        {name: _value(name, value) for name, value in row.items()}
        for row in frame.toArrow().to_pylist()
    ]


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list) and name.endswith("_ms"):
        return dict(zip(PERCENTILES, map(to_us, value), strict=True))
    return to_us(value)
