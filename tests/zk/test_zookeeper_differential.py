"""The fake ZooKeeper behaves as the real one for random operations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from regent.zk.client.operations import (
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    SetData,
    Znode,
    ZnodeStat,
)
from tests.support.zookeeper_sessions import (
    Ensemble,
    WatchingSession,
    fake_ensemble,
    real_ensemble,
)

STEPS = 300
STEPS_BETWEEN_LISTENING = 5
PATHS = ("/p", "/p/q", "/p/q/x", "/p/r", "/s", "/s/q", "/s/q/x", "/t")


class Step(NamedTuple):
    session: int
    method: str
    arguments: tuple[object, ...]
    watch: bool


def random_steps(seed: int) -> list[Step]:
    return [random_step(random.Random(f"{seed}-{number}")) for number in range(STEPS)]


def random_step(dice: random.Random) -> Step:
    session, watch = dice.randrange(2), dice.random() < 0.7
    paths = dice.choices(PATHS, k=dice.randrange(1, 6))
    batches = [
        [random_operation(dice) for _ in range(dice.choice([1, 1, 1, 2, 3]))] for _ in range(3)
    ]
    arguments: dict[str, tuple[object, ...]] = {
        "multi": (batches[0],),
        "multi_many": (batches,),
        "get": (paths[0],),
        "get_many": (paths,),
        "children": (paths[0],),
        "children_many": (paths,),
        "unwatch": (paths[:1],),
    }
    method = dice.choices(list(arguments), weights=[10, 2, 3, 3, 3, 1, 1])[0]
    return Step(session, method, arguments[method], watch)


def random_operation(dice: random.Random) -> Operation:
    path, version = dice.choice(PATHS), dice.choice([-1, -1, 0, 1, 2])
    data = dice.randbytes(3)
    create = Create(path, data, ephemeral=dice.random() < 0.2)
    numbered = Create(f"{path}/n_", data, sequential=True, ephemeral=dice.random() < 0.2)
    others: list[Operation] = [
        SetData(path, data, version),
        Delete(path, version),
        Check(path, version),
    ]
    return dice.choices([create, numbered, *others], weights=[6, 1, 5, 4, 1])[0]


def run(ensemble: Ensemble, steps: Iterable[Step]) -> list[object]:
    """Return every result and every event, in a sequence that does not depend on threads."""
    sessions = [ensemble.open_session(), ensemble.open_session()]
    outcomes: list[object] = []
    for number, step in enumerate(steps):
        watch = {"watch": step.watch} if step.method in {"get", "get_many", "children"} else {}
        method = getattr(sessions[step.session].zk, step.method)
        outcomes.append(method(*step.arguments, **watch))
        if number % STEPS_BETWEEN_LISTENING == 0:
            outcomes.extend(session.events() for session in sessions)
    stats = [*map(sessions[0].zk.get, PATHS)]
    return relative([*outcomes, stats], sessions)


def relative(outcomes: list[object], sessions: list[WatchingSession]) -> list[object]:
    """Replace zxids by their rank and session ids by their number; drop times."""
    zxids = {zxid for stat in stats_in(outcomes) for zxid in (stat.czxid, stat.mzxid)}
    ranks = {zxid: rank for rank, zxid in enumerate(sorted(zxids))}
    owners = {0: "no session"} | {s.zk.session_id: f"session {n}" for n, s in enumerate(sessions)}

    def relate(value: object) -> object:
        match value:
            case ZnodeStat(czxid, mzxid, _, version, owner):
                return ranks[czxid], ranks[mzxid], version, owners[owner]
            case Znode(data, stat):
                return data, relate(stat)
            case Committed(results):
                return [relate(result) for result in results]
            case list():
                return [relate(element) for element in value]
            case _:
                return value

    return [relate(outcome) for outcome in outcomes]


def stats_in(value: object) -> Iterator[ZnodeStat]:
    match value:
        case ZnodeStat():
            yield value
        case Znode(_, stat):
            yield stat
        case Committed(results):
            yield from stats_in(list(results))
        case list():
            for element in value:
                yield from stats_in(element)
        case _:
            pass


@pytest.mark.zookeeper
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_have_the_same_outcome_on_the_fake_and_on_the_real_server(
    seed: int, zookeeper_address: str
) -> None:
    steps = random_steps(seed)
    outcomes = []
    for ensemble in (fake_ensemble(), real_ensemble(zookeeper_address)):
        outcomes.append(run(ensemble, steps))
        ensemble.close()
    assert outcomes[0] == outcomes[1]


def test_random_operations_exercise_every_kind_of_outcome() -> None:
    text = str([run(fake_ensemble(), random_steps(seed)) for seed in range(3)])
    for outcome in (
        "NO_NODE",
        "NODE_EXISTS",
        "BAD_VERSION",
        "NOT_EMPTY",
        "NO_CHILDREN_FOR_EPHEMERALS",
        "WatchKind.CREATED",
        "WatchKind.CHANGED",
        "WatchKind.DELETED",
        "WatchKind.CHILDREN",
        "session 1",
    ):
        assert outcome in text


def test_the_fake_is_deterministic() -> None:
    assert run(fake_ensemble(), random_steps(9)) == run(fake_ensemble(), random_steps(9))
