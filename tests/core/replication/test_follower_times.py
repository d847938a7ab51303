"""How soon followers ask again, without the pauses of the leader itself."""

from __future__ import annotations

from regent.core.protocol.broker import FollowerPace
from regent.core.replication.follower_times import TICK_S, FollowerTimes


class Leader:
    """A leader with follower 2, whose loop ticks while time passes."""

    def __init__(self) -> None:
        self.times = FollowerTimes()
        self.now_s = 100.0
        self.run(1.0)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(self.now_s + TICK_S, end_s)
            self.times.tick(self.now_s)

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def ask(self, *, goes_on: bool = True) -> None:
        self.times.on_fetch(2, self.now_s, goes_on=goes_on)

    def answer(self) -> None:
        self.times.on_answer(2, self.now_s)

    @property
    def pace(self) -> FollowerPace:
        (pace,) = self.times.paces({2, 3}, self.now_s)
        return pace


def test_the_time_from_an_answer_to_the_next_fetch_is_measured_not_the_wait_for_records():
    leader = Leader()
    for _ in range(20):
        leader.ask()
        leader.run(0.5)  # it waits for records
        leader.answer()
        leader.run(0.003)
    pace = leader.pace
    assert (pace.fetches, pace.slow) == (19, 0)
    assert 1 <= pace.median_ms <= 5
    assert pace.slowest_ms <= 5


def test_a_follower_that_is_stopped_again_and_again_is_slow():
    leader = Leader()
    for _ in range(5):
        leader.ask()
        leader.answer()
        leader.run(1.5)
    leader.ask()
    assert leader.pace.slow == 5
    assert leader.pace.median_ms >= 1_000


def test_a_follower_that_runs_a_tenth_of_the_time_is_absent_though_no_gap_is_long():
    leader = Leader()
    for _ in range(29):
        leader.ask()
        leader.run(0.5)
        leader.answer()
        leader.run(0.4)  # it was stopped before the answer came
    leader.ask()
    assert leader.pace.slow == 0
    assert 9_000 <= leader.pace.absent_ms <= 29 * 400


def test_a_follower_that_fetches_much_is_not_absent():
    leader = Leader()
    for _ in range(500):
        leader.ask()
        leader.answer()
        leader.run(0.1)
    assert leader.pace.absent_ms == 0


def test_a_pause_of_the_leader_itself_does_not_make_its_followers_slow():
    leader = Leader()
    for _ in range(5):
        leader.ask()
        leader.answer()
        leader.pause(1.5)
        leader.ask()  # it came long ago, and is read before the tick
        leader.answer()
        leader.run(0.1)
        leader.ask()
        leader.answer()  # this answer is sent after a pause
        leader.pause(1.5)
        leader.times.tick(leader.now_s)
        leader.ask()
        leader.run(0.1)
    assert leader.pace.slow == 0
    assert leader.pace.slowest_ms < 500


def test_pauses_of_this_process_are_counted_but_not_the_time_without_followers():
    leader = Leader()
    for _ in range(20):
        leader.ask()
        leader.answer()
        leader.pause(0.9)
        leader.times.tick(leader.now_s)
        leader.run(0.1)
    assert 9_000 <= leader.times.paused_ms(leader.now_s) <= 20 * 900
    leader.run(10)  # nobody fetches any more: the last tick
    leader.pause(40)
    leader.ask()
    leader.times.tick(leader.now_s)
    leader.run(1)
    assert leader.times.paused_ms(leader.now_s) <= 20 * 900
    leader.pause(70)
    assert leader.times.paused_ms(leader.now_s) == 0


def test_a_follower_that_started_again_is_not_slow():
    leader = Leader()
    leader.ask()
    leader.answer()
    leader.run(20)
    leader.ask(goes_on=False)
    assert leader.pace.fetches == 0


def test_a_follower_that_has_not_asked_again_is_silent_since_its_last_answer():
    leader = Leader()
    leader.ask()
    leader.answer()
    leader.run(7)
    assert leader.pace.silent_ms == 7_000
    leader.ask()
    leader.run(7)
    assert leader.pace.silent_ms == 0, "its fetch waits"


def test_measuring_ends_when_nobody_fetches():
    leader = Leader()
    leader.ask()
    assert leader.times.tick(leader.now_s + 1)
    assert not leader.times.tick(leader.now_s + 10)
