"""Failovers, as the journals of the controllers tell them: who died, and what each step took.

A journal has a line for each event that a controller handled. A failover begins with the event in
which a controller took over, or in which it saw that a broker's registration was gone. It ends with
the last answer to the requests of this event: then every live broker tells clients the new leaders.
Times are milliseconds of the brokers' wall clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from regent.client.journals import Journals
from regent.client.wording import counted, listed
from regent.core.model import BrokerId

Fields: TypeAlias = Mapping[str, Any]
"""The fields of a line of a journal, see ``actors.event_journal``."""

Deaths: TypeAlias = Mapping[BrokerId, Sequence[int]]
"""When the process of a broker ended, as its supervisor saw it, oldest first."""

TOLD: Final = "LeaderAndIsrResponseReceived"
UPDATED: Final = "UpdateMetadataResponseReceived"
ANSWERS: Final = (TOLD, UPDATED, "TopicDeletionStopReplicaResponseReceived")

_NOTICED_MS: Final = 60_000  # a session times out after that at the latest
_CLOCKS_MS: Final = 1_000  # what the supervisor may see later than a controller
_REELECTION_MS: Final = 5_000  # from the first broker that stands to the one that is elected
_GAP_MS: Final = 50  # between an answer and the next request of the same event
_LONGEST_MS: Final = 60_000
_SHUTDOWN_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Step:
    """What was reached ``at_ms``; the step before it ended when this one began."""

    name: str
    at_ms: float


@dataclass(slots=True)
class Failover:
    """One failover; ``key`` is the id of its event: ``epoch-number``.

    ``broker_ids`` are the brokers that have gone: None in a journal that does not tell it.
    ``steps`` are in the sequence of their times.
    """

    key: str
    controller_id: BrokerId
    controller_epoch: int
    broker_ids: tuple[BrokerId, ...]
    what: str
    steps: list[Step]
    changes: int = 0
    handled_ms: float = 0.0
    open_ms: dict[BrokerId, float] = field(default_factory=dict)
    """When each broker gave its last answer to requests of this event."""

    @property
    def began_ms(self) -> float:
        """When the broker died, or when a controller noticed that it had gone."""
        return self.steps[0].at_ms

    @property
    def duration_ms(self) -> float:
        """From its beginning to the last step that is known."""
        return max(step.at_ms for step in self.steps) - self.began_ms

    @property
    def is_known(self) -> bool:
        """Whether every live broker tells clients the new leaders."""
        return any(step.name == ALL_KNOW for step in self.steps)

    @property
    def spans(self) -> list[tuple[str, float, float]]:
        """What each step took: its name, and from when until when after the beginning."""
        spans, at_ms = [], self.began_ms
        for step in self.steps[1:]:
            spans.append((step.name, at_ms - self.began_ms, step.at_ms - self.began_ms))
            at_ms = max(at_ms, step.at_ms)
        return spans

    @property
    def sentence(self) -> str:
        """The whole failover in one line."""
        until = "until every live broker knew it" if self.is_known else "so far"
        elected = counted(self.changes, "change") if self.changes else "no change of a partition"
        return f"{self.what}: {elected}, {self.duration_ms:.0f} ms {until}"

    def answered(self, fields: Fields) -> bool:
        """Take the answer of a broker to a request of this event; False: it is of another."""
        at_ms, broker_id = _noticed_ms(fields), fields.get("broker")
        sent_ms = at_ms - float(fields.get("answered_ms", 0.0))
        last_ms = self.open_ms.get(broker_id, self.handled_ms) if broker_id is not None else 0.0
        is_ours = fields.get("controller_epoch") == self.controller_epoch
        if not is_ours or broker_id is None or sent_ms > last_ms + _GAP_MS:
            return False
        self.open_ms[broker_id] = max(last_ms, at_ms)
        names = [step.name for step in self.steps]
        if fields["event"] == TOLD and FIRST_TOLD not in names:
            self.steps.append(Step(FIRST_TOLD, max(at_ms, self.handled_ms)))
        elif fields["event"] == UPDATED:
            self.steps = [step for step in self.steps if step.name != ALL_KNOW]
            self.steps.append(Step(ALL_KNOW, max(at_ms, self.handled_ms)))
        self.steps.sort(key=lambda step: step.at_ms)
        return True


DIED: Final = "process ended"
CLOSED: Final = "session closed, /controller deleted"
GONE: Final = "session closed, registration deleted"
ELECTED: Final = "next controller stands for election"
WRITTEN: Final = "elected, loaded, leaders elected and written"
SEEN: Final = "controller begins with it"
DECIDED: Final = "leaders elected and written"
FIRST_TOLD: Final = "first LeaderAndIsr answered"
ALL_KNOW: Final = "last UpdateMetadata answered: all clients know"


_NEEDED: Final = {"event": str, "broker_id": int, "controller_epoch": int, "event_id": int}


def new_lines(journals: Journals) -> list[Fields]:
    """Return the lines since the last call that have what every line of a journal has.

    A damaged disk may give others.
    """
    found = (event.fields for event in journals.new())
    return [f for f in found if all(isinstance(f.get(name), k) for name, k in _NEEDED.items())]


def find_failovers(events: Iterable[Fields], deaths: Deaths) -> list[Failover]:
    """Return the failovers in journals, which are merged by time; the newest first."""
    found: list[Failover] = []
    recent: deque[Fields] = deque()
    controllers: dict[int, BrokerId] = {}
    resigned: set[int] = set()
    for fields in events:
        if fields.get("event") in ANSWERS:
            for failover in reversed(found[-4:]):
                is_over = _noticed_ms(fields) - failover.began_ms > _LONGEST_MS
                if not is_over and failover.answered(fields):
                    break
            continue
        recent.append(fields)
        while fields["ts_ms"] - recent[0]["ts_ms"] > _SHUTDOWN_MS:
            recent.popleft()
        if "resigned" in fields:
            resigned.add(fields["resigned"])
        if "elected" in fields:
            epoch = fields["elected"]
            controllers[epoch] = fields["broker_id"]
            if epoch - 1 in controllers and fields["event"] != "Startup":
                former = controllers[epoch - 1]
                has_resigned = epoch - 1 in resigned
                found.append(_takeover(fields, former, recent, deaths, has_resigned=has_resigned))
        elif fields.get("failed"):
            found.append(_departure(fields, recent, deaths))
    return found[::-1]


def _takeover(
    fields: Fields,
    former: BrokerId,
    recent: Iterable[Fields],
    deaths: Deaths,
    *,
    has_resigned: bool,
) -> Failover:
    """Return the election of a controller after another one."""
    at_ms = float(fields["ts_ms"])
    standing = [_noticed_ms(f) for f in recent if f["event"] == "Reelect"]
    noticed_ms = min((ms for ms in standing if at_ms - ms < _REELECTION_MS), default=at_ms)
    noticed_ms = min(noticed_ms, at_ms)
    died_ms = None if has_resigned else _died_ms(former, noticed_ms, deaths)
    by = fields["broker_id"]
    if has_resigned:
        what = f"the controller moved from broker {former} to broker {by}"
    else:
        died = "died" if died_ms is not None else "was lost"
        what = f"controller {former} {died}, broker {by} took over"
    steps = [
        *([] if died_ms is None else [Step(DIED, died_ms)]),
        Step(CLOSED, noticed_ms),
        Step(ELECTED, at_ms),
    ]
    return _failover(fields, () if has_resigned else (former,), what, steps, WRITTEN)


def _departure(fields: Fields, recent: Iterable[Fields], deaths: Deaths) -> Failover:
    """Return what a controller did when registrations of brokers were gone."""
    broker_ids = tuple(fields["failed"])
    noticed_ms = _noticed_ms(fields)
    asked = {f.get("broker") for f in recent if f["event"] == "ControlledShutdown"}
    died = [ms for b in broker_ids if (ms := _died_ms(b, noticed_ms, deaths)) is not None]
    how = "stopped in order" if asked.issuperset(broker_ids) else "died"
    who = "broker" if len(broker_ids) == 1 else "brokers"
    what = f"{who} {listed(broker_ids)} {how}"
    steps = [
        *([Step(DIED, min(died))] if died else []),
        Step(GONE, noticed_ms),
        Step(SEEN, float(fields["ts_ms"])),
    ]
    return _failover(fields, broker_ids, what, steps, DECIDED)


def _failover(
    fields: Fields, broker_ids: tuple[BrokerId, ...], what: str, steps: list[Step], done: str
) -> Failover:
    handled_ms = fields["ts_ms"] + float(fields.get("handling_ms", 0.0))
    steps.append(Step(done, handled_ms))
    return Failover(
        f"{fields.get('controller_epoch', 0)}-{fields.get('event_id', 0)}",
        fields["broker_id"],
        fields.get("controller_epoch", 0),
        broker_ids,
        what,
        steps,
        max(fields.get("change_count", 0) - 1, 0),
        handled_ms,
    )


def _noticed_ms(fields: Fields) -> float:
    """Return when an event was put into the controller's queue."""
    return float(fields["ts_ms"] - fields.get("queue_ms", 0.0))


def _died_ms(broker_id: BrokerId, noticed_ms: float, deaths: Deaths) -> float | None:
    """Return when the process ended; its supervisor may see that after a controller."""
    known = [
        ms
        for ms in deaths.get(broker_id, ())
        if noticed_ms - _NOTICED_MS <= ms <= noticed_ms + _CLOCKS_MS
    ]
    return min(float(known[-1]), noticed_ms) if known else None
