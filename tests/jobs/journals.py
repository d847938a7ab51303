"""Event journals of a simulated cluster with known facts.

A seed creates a small cluster in which controllers change, brokers fail and return, and ISRs
shrink and grow. Every event becomes a line as ``actors/event_journal.py`` writes it, and is stored
with its facts for an oracle.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regent.core.controller.effects import MAX_NAMED_CHANGES

START_MS = 1_795_000_000_000
TOPICS = ("payments", "audit-log.v2", "a")
ANSWERS = ("LeaderAndIsrResponseReceived", "UpdateMetadataResponseReceived")

Name = tuple[str, int]


@dataclass
class Leadership:
    """A partition's leadership, decided or learned by an event."""

    topic: str
    partition: int
    leader: int
    isr: list[int]
    leader_epoch: int
    before: "Leadership | None" = None

    def __str__(self) -> str:
        name, then = f"{self.topic}-{self.partition}", self.before
        if then is None:
            return f"{name}: created, leader {self.leader}, isr {self.isr}"
        if then.leader == self.leader:
            text = f"leader {self.leader}, isr {then.isr} → {self.isr}"
        else:
            text = f"leader {then.leader} → {self.leader}, isr {self.isr}"
        has_new_epoch = then.leader_epoch != self.leader_epoch
        return f"{name}: {text}" + (f", leader epoch {self.leader_epoch}" if has_new_epoch else "")

    def typed(self) -> dict[str, object]:
        """Return the record of the journal."""
        then = self.before
        return {
            "topic": self.topic,
            "partition": self.partition,
            **({"leader_before": then.leader, "isr_before": then.isr} if then else {}),
            "leader": self.leader,
            "isr": self.isr,
            "leader_epoch": self.leader_epoch,
        }


@dataclass
class Event:
    """One line of a journal and the facts behind it."""

    ts_ms: int
    broker_id: int
    controller_epoch: int
    event_id: int
    event: str
    cause: str
    queue_ms: float
    handling_ms: float
    sentences: list[str] = field(default_factory=list)
    leaderships: list[Leadership] = field(default_factory=list)
    answered_ms: float | None = None
    broker: int | None = None
    typed: dict[str, Any] = field(default_factory=dict)

    @property
    def named(self) -> list[Leadership]:
        """The leaderships with sentences in the line."""
        return self.leaderships[: MAX_NAMED_CHANGES - len(self.sentences)]

    @property
    def unnamed(self) -> int:
        """The number of changes without a sentence."""
        return len(self.leaderships) - len(self.named)

    @property
    def changes(self) -> list[str]:
        """The sentences of the line."""
        more = [f"and {self.unnamed} more"] if self.unnamed else []
        return [*self.sentences, *map(str, self.named), *more]

    def line(self) -> str:
        """Return the line as it is in the journal."""
        count = len(self.sentences) + len(self.leaderships)
        fields: dict[str, object] = {
            "ts_ms": self.ts_ms,
            "broker_id": self.broker_id,
            "controller_epoch": self.controller_epoch,
            "event_id": self.event_id,
            "event": self.event,
            "cause": self.cause,
            "queue_ms": self.queue_ms,
            "handling_ms": self.handling_ms,
            "answered_ms": self.answered_ms,
        }
        fields |= {"broker": self.broker, "change_count": count or None, **self.typed}
        fields |= {"partitions": [led.typed() for led in self.named] or None}
        present = {name: value for name, value in fields.items() if value is not None}
        present["changes"] = self.changes
        return json.dumps(present, separators=(",", ":"), ensure_ascii=False)


class GeneratedHistory:
    """A cluster that generates its history, event by event."""

    def __init__(self, seed: int, *, brokers: int = 4, partitions: int = 30) -> None:
        self._random = random.Random(seed)
        self._brokers = range(brokers)
        self._live = set(self._brokers)
        self._now_ms = START_MS
        self._event_ids = dict.fromkeys(self._brokers, 0)
        self._controller, self._epoch = 0, 0
        self._led: dict[Name, Leadership] = {}
        self._names = [(TOPICS[n % len(TOPICS)], n // len(TOPICS)) for n in range(partitions)]

    def events(self, terms: int, events_in_a_term: int) -> Iterator[Event]:
        """Yield the events of all brokers in sequence."""
        for _ in range(terms):
            yield from self._change_of_power()
            if self._epoch == 1:
                yield self._event("TopicChange", "/brokers/topics", (), self._create())
            for _ in range(events_in_a_term):
                yield self._anything()

    # --- possible events ---

    def _change_of_power(self) -> Iterator[Event]:
        previous, is_first = self._controller, not self._epoch
        has_fallen = not is_first and len(self._live) > 1 and self._random.random() < 0.5
        if has_fallen:
            self._live.discard(previous)
            self._now_ms += self._random.randrange(50, 7000)
        elif not is_first:
            yield self._event(
                "Reelect",
                "/controller deleted",
                [f"broker {previous}: resigned"],
                typed={"resigned": self._epoch},
            )
        others = sorted(self._live - {previous})
        self._controller = self._random.choice(others) if others else previous
        self._epoch += 1
        won = [f"broker {self._controller}: controller epoch {self._epoch}"]
        changed = self._left_by(previous) if has_fallen else []
        trigger = ("Startup", "broker started") if is_first else ("Reelect", "/controller deleted")
        yield self._event(*trigger, won, changed, typed={"elected": self._epoch})
        for broker_id in sorted(self._live):
            if broker_id != self._controller:
                yield self._event("Reelect", "/controller deleted", by=broker_id)
            yield self._answer(broker_id, "LeaderAndIsrResponseReceived")

    def _anything(self) -> Event:
        dice = self._random.random()
        others = sorted(self._live - {self._controller})
        dead = sorted(set(self._brokers) - self._live)
        if dice < 0.02 and len(others) > 1:
            broker_id = self._random.choice(others)
            self._live.discard(broker_id)
            said, typed = [f"brokers [{broker_id}]: failed"], {"failed": [broker_id]}
            changed = self._left_by(broker_id)
            return self._event("BrokerChange", "/brokers/ids", said, changed, typed=typed)
        if dice < 0.04 and dead:
            broker_id = dead[0]
            self._live.add(broker_id)
            said, typed = [f"brokers [{broker_id}]: started"], {"started": [broker_id]}
            changed = self._revived(broker_id)
            return self._event("BrokerChange", "/brokers/ids", said, changed, typed=typed)
        if dice < 0.10:
            leader = self._random.choice(sorted(self._live))
            cause = f"request of broker {leader}"
            changed = self._isr_changes(leader)
            return self._event("AlterPartitionReceived", cause, (), changed, broker=leader)
        if dice < 0.12:
            event = "AutoPreferredReplicaLeaderElection"
            return self._event(event, "timer", (), self._preferred())
        if dice < 0.13 and others:
            cause = f"channel of broker {others[0]} is full"
            return self._event("ChannelOverflowed", cause, broker=others[0])
        return self._answer(self._random.choice(sorted(self._live)), self._random.choice(ANSWERS))

    def _answer(self, broker_id: int, event: str) -> Event:
        answer = self._event(event, f"answer of broker {broker_id}", broker=broker_id)
        answer.answered_ms = round(self._random.lognormvariate(broker_id, 1), 3)
        return answer

    # --- leaderships ---

    def _create(self) -> list[Leadership]:
        created = []
        for number, name in enumerate(self._names):
            isr = [(number + j) % len(self._brokers) for j in range(3)]
            created.append(Leadership(*name, isr[0], isr, leader_epoch=0))
        return self._now(created)

    def _left_by(self, broker_id: int) -> list[Leadership]:
        changed = []
        for name, led in self._led.items():
            isr = [b for b in led.isr if b != broker_id] or led.isr
            if led.leader == broker_id:
                live = [b for b in isr if b in self._live]
                changed.append(self._elected(name, live[0] if live else -1, isr))
            elif isr != led.isr:
                changed.append(self._with_isr(name, isr, is_proposed=False))
        return self._now(changed)

    def _revived(self, broker_id: int) -> list[Leadership]:
        waiting = [n for n, led in self._led.items() if led.leader == -1 and broker_id in led.isr]
        return self._now([self._elected(n, broker_id, self._led[n].isr) for n in waiting])

    def _preferred(self) -> list[Leadership]:
        return self._now(
            [
                self._elected(name, min(led.isr), led.isr)
                for name, led in self._led.items()
                if led.leader != -1 and led.leader != min(led.isr) and min(led.isr) in self._live
            ]
        )

    def _isr_changes(self, leader: int) -> list[Leadership]:
        member = self._random.choice(sorted(self._live))
        changed = []
        for name, led in self._led.items():
            if led.leader == leader != member:
                isr = [b for b in led.isr if b != member]
                isr = [*isr, member] if member not in led.isr else isr
                changed.append(self._with_isr(name, isr, is_proposed=True))
        return self._now(changed)

    def _elected(self, name: Name, leader: int, isr: list[int]) -> Leadership:
        led = self._led[name]
        return Leadership(*name, leader, isr, led.leader_epoch + 1, led)

    def _with_isr(self, name: Name, isr: list[int], *, is_proposed: bool) -> Leadership:
        led = self._led[name]
        return Leadership(*name, led.leader, isr, led.leader_epoch + (not is_proposed), led)

    def _now(self, changed: list[Leadership]) -> list[Leadership]:
        for led in changed:
            self._led[led.topic, led.partition] = replace(led, before=None)
        return changed

    def _event(
        self,
        event: str,
        cause: str,
        sentences: Sequence[str] = (),
        leaderships: Sequence[Leadership] = (),
        by: int | None = None,
        broker: int | None = None,
        typed: Mapping[str, Any] | None = None,
    ) -> Event:
        broker_id = self._controller if by is None else by
        epoch = self._epoch if by is None else 0
        self._now_ms += self._random.randrange(60)
        self._event_ids[broker_id] += 1
        return Event(
            self._now_ms,
            broker_id,
            epoch,
            self._event_ids[broker_id],
            event,
            cause,
            round(self._random.lognormvariate(0, 2), 3),
            round(self._random.lognormvariate(-1, 1.5), 3),
            list(sentences),
            list(leaderships),
            broker=broker,
            typed=dict(typed or {}),
        )


def write_journals(directory: Path, events: Sequence[Event]) -> None:
    """Write each broker's events into its folder; those of broker 0 into two files."""
    lines_of: dict[int, list[str]] = {0: []}
    for event in events:
        lines_of.setdefault(event.broker_id, []).append(f"{event.line()}\n")
    for broker_id, lines in lines_of.items():
        folder = directory / f"broker-{broker_id}"
        folder.mkdir(parents=True)
        earlier = len(lines) // 2 if broker_id == 0 else 0
        if broker_id == 0:
            text = "".join(lines[:earlier])
            (folder / "events.jsonl.1").write_text(text, encoding="utf-8")
        (folder / "events.jsonl").write_text("".join(lines[earlier:]), encoding="utf-8")
