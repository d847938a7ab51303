"""What journals add to the report of events stays small, and does not depend on how it is cut."""

from random import Random

from regent.jobs.reports.event_journals import Period, read_lines
from regent.jobs.reports.event_parts import Parts, merged, parts_of
from tests.jobs.journals import Event, GeneratedHistory


def parts(events: list[Event]) -> Parts:
    lines = "\n".join(event.line() for event in events).encode()
    block = read_lines(lines, Period(), has_sentences=False)
    return parts_of(block.events, top=3)


def rows(found: Parts) -> dict[str, list[str]]:
    """Return the rows of all tables in any sequence; the sums of floats to microseconds."""
    return {
        name: sorted(
            str({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
            for row in table.to_pylist()
        )
        for name, table in found.items()
    }


def test_the_parts_of_all_blocks_together_are_those_of_the_whole():
    events = list(GeneratedHistory(7).events(3, 200))
    cut = [parts(events[low : low + 100]) for low in range(0, len(events), 100)]
    assert rows(merged([{}, merged(cut[:3], 3), *cut[3:]], 3)) == rows(parts(events))


def test_random_durations_are_counted_by_four_digits_and_the_longest_is_exact():
    rng = Random(1)
    events = list(GeneratedHistory(7).events(1, 20_000))
    for event in events:
        event.event = "BrokerChange"
        event.handling_ms = round(rng.uniform(10, 100), 3)
    handling = parts(events)["handling"].to_pylist()
    assert len(handling) <= 9_000 < len({event.handling_ms for event in events})
    assert sum(row["events"] for row in handling) == len(events)
    assert max(row["handling_ms"] for row in handling) == max(e.handling_ms for e in events)
    assert all(0 <= round(r["handling_ms"] * 1000) - r["handling_us"] < 10 for r in handling)


def test_a_duration_of_millennia_is_counted_too():
    [event, *_] = GeneratedHistory(7).events(1, 1)
    event.handling_ms = 5e15
    [row] = parts([event])["handling"].to_pylist()
    assert (row["handling_us"], row["handling_ms"]) == (5 * 10**18, 5e15)
