"""The length of a history and the probabilities of its actions; each seed draws its own.

A history with all actions at usual rates seldom has many of one kind (swarm testing, Groce et al.,
2012). So each probability is zero in some histories, usual in most, high in some, and the same
holds for each action of a ``Menu``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TypeAlias

BROKERS = 4
STEPS = 260
MAX_DELAY_MS = 5_000
MAX_JUMP_MS = 40 * 24 * 60 * 60 * 1000
MAX_LEADER_EPOCHS = 20  # of a partition, from the end of all faults until the cluster is at rest
MAX_LEADER_EPOCHS_WITHOUT_FAULTS = 10  # a move requested twice takes 9 with a new controller
STALL_STEPS = 25
MAX_NESTED_STALLS = 2
MAX_STEPS_TO_FAULT = 30
FACTORS = (0.0, 1.0, 1.0, 1.0, 3.0)
FACTORS_OF_KINDS = (0.3, 1.0, 1.0, 2.0)
MAX_PROBABILITY = 0.9

Action: TypeAlias = Callable[[], None]


@dataclass(slots=True)
class Odds:
    """The usual probabilities; ``draw`` returns those of one history.

    A new fault inside a call, or at a special moment, needs one more field here.
    """

    # Kinds of steps; the rest are steps of the cluster itself.
    fault: float = 0.1
    admin: float = 0.08
    client: float = 0.12
    # Faults of packets.
    packet_loss: float = 0.04
    packet_duplicate: float = 0.06
    packet_hold: float = 0.02
    proposal_duplicate: float = 0.25
    fetch_delay: float = 0.15
    # Faults inside a call.
    call_fault: float = 0.02
    race: float = 0.1
    power_loss: float = 0.2
    disk_failure: float = 0.15
    same_port: float = 0.3
    refusal: float = 0.5
    missing_broker: float = 0.3
    afterwards: float = 0.6
    # Faults at a special moment.
    bad_moment: float = 0.4
    quick_restart: float = 0.6

    @classmethod
    def draw(cls, dice: random.Random) -> Odds:
        """Return the odds of one history."""
        odds = cls()
        for field in fields(odds):
            factors = FACTORS_OF_KINDS if field.name in ("fault", "admin", "client") else FACTORS
            usual = getattr(odds, field.name)
            setattr(odds, field.name, min(MAX_PROBABILITY, usual * dice.choice(factors)))
        return odds

    def favour_records(self) -> None:
        """Raise the rates of writes and of losses, for logs with files."""
        self.client = max(self.client, 0.4)
        self.power_loss = max(self.power_loss, 0.5)


FILES_PROBABILITY = 0.0625
GROUPS_PROBABILITY = 0.1
GROUPS_ACT_PROBABILITY = 0.12  # in a step of a history with groups
TRANSACTIONS_PROBABILITY = 0.03
TRANSACTIONS_ACT_PROBABILITY = 0.15  # in a step of a history with transactions
LEADERS_WRITE_PROBABILITY = 0.2
LOST_ISR_ANSWER_PROBABILITY = 0.1
BROKEN_START_PROBABILITY = 0.1
BROKEN_START_AT_A_BAD_MOMENT = 0.9  # while a topic in the directory is to be deleted
SAME_DISK_PROBABILITY = 0.6
SETTLED_PROBABILITY = 0.8
SETTLED_MS = 1_500
MAX_FIRST_TOPICS = 3
MAX_FIRST_RECORDS = 8
CALM_PROBABILITY = 0.2
KEPT_CONTROLLERS_PROBABILITY = 0.55
UNEXPECTED_ERRORS_PROBABILITY = 0.2
UNEXPECTED_ERROR_PROBABILITY = 0.03
FAILOVER_PROBABILITY = 0.5
FAILOVER_STEPS = 40
SMALL_INBOX_PROBABILITY = 0.15
THREADS_PROBABILITY = 0.25  # other threads of a broker act between steps of the one with the lock
PROBING_PROBABILITY = 0.2
SMALL_REQUEST_PROBABILITY = 0.3
HIDING_HISTORIES = 0.08
HIDING_PROBABILITY = 0.03
LAST_MEMBER_PROBABILITY = 0.8  # of its end, while an eligible replica has lost its log


class Menu:
    """Actions of which one is picked at random; each is off in some histories."""

    def __init__(self, dice: random.Random) -> None:
        self._random = dice
        self._actions: list[Action] = []
        self._weights: list[float] = []

    def add(self, action: Action, weight: float = 1.0, *, is_remedy: bool = False) -> None:
        """Add an action; ``weight`` is its usual rate relative to the others.

        A remedy is never off: without it the other actions soon have no target left.
        """
        factor = self._random.choice(FACTORS)
        self._actions.append(action)
        self._weights.append(weight * (max(factor, 1.0) if is_remedy else factor))

    def add_all(self, actions: Sequence[tuple[Action, float]]) -> None:
        """Add actions with their weights."""
        for action, weight in actions:
            self.add(action, weight)

    def act(self) -> None:
        """Run one of the actions, unless all are off."""
        total = list(accumulate(self._weights))
        if total and total[-1] > 0:
            (action,) = self._random.choices(self._actions, cum_weights=total)
            action()
