"""What a field may hold, and that nothing else gets past its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from regent.core.errors import BadDataError, Errors
from regent.transport.control.schema import decoder


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    tags: tuple[str, ...]


class Outcome(NamedTuple):
    name: str
    error_code: Errors


@dataclass(frozen=True, slots=True)
class Shape:
    colour: Colour
    points: tuple[Point, ...]
    outcomes: tuple[Outcome, ...] = ()
    label: str | None = None
    filled: bool = False


decode = decoder(Shape)
LEGAL: dict[str, Any] = {
    "colour": 1,
    "points": ((1, ("a",)), (2, ())),
    "outcomes": (("x", 0), ("y", 6)),
    "label": "square",
    "filled": True,
}


def test_a_map_becomes_its_dataclass_and_arrays_become_rows() -> None:
    assert decode(LEGAL) == Shape(
        Colour.RED,
        (Point(1, ("a",)), Point(2, ())),
        (Outcome("x", Errors.NONE), Outcome("y", Errors.NOT_LEADER_OR_FOLLOWER)),
        "square",
        filled=True,
    )


def test_rows_have_their_own_type() -> None:
    shape = decode(LEGAL)
    assert type(shape.points[0]) is Point
    assert type(shape.outcomes[0].error_code) is Errors


def test_a_missing_key_takes_its_default_and_an_unknown_one_is_ignored() -> None:
    assert decode({"colour": 1, "points": (), "new": object()}) == Shape(Colour.RED, ())


def test_null_is_a_value_only_where_the_hint_allows_it() -> None:
    assert decode(LEGAL | {"label": None}).label is None
    with pytest.raises(BadDataError, match=r"Shape\.filled: expected bool, found NoneType"):
        decode(LEGAL | {"filled": None})


def test_an_error_code_we_do_not_know_is_an_unknown_error() -> None:
    shape = decode(LEGAL | {"outcomes": (("x", 31_000),)})
    assert shape.outcomes[0].error_code is Errors.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": 2}, r"Shape\.colour: a number is not a Colour"),
        ({"colour": True}, r"Shape\.colour: expected int, found bool"),
        ({"colour": 1.0}, r"Shape\.colour: expected int, found float"),
        ({"points": ((True, ()),)}, r"Point\.x: expected int, found bool"),
        ({"points": ((float("nan"), ()),)}, r"Point\.x: expected int, found float"),
        ({"points": ((1, (b"a",)),)}, r"Point\.tags: expected str, found bytes"),
        ({"points": ((1, "ab"),)}, r"Point\.tags: expected tuple, found str"),
        ({"points": ((2**63, ()),)}, r"Point\.x: a number is out of the 64-bit range"),
        ({"points": ((1,),)}, r"Shape\.points: a Point has 2 fields"),
        ({"points": ((1, (), 3),)}, r"Shape\.points: a Point has 2 fields"),
        ({"points": ({},)}, r"Shape\.points: expected tuple, found dict"),
        ({"points": {}}, r"Shape\.points: expected tuple, found dict"),
        ({"label": 1}, r"Shape\.label: expected str, found int"),
        ({"filled": 1}, r"Shape\.filled: expected bool, found int"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_named(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadDataError, match=complaint):
        decode(LEGAL | change)


def test_a_required_key_must_be_there() -> None:
    with pytest.raises(BadDataError, match=r"Shape\.colour is missing"):
        decode({"points": ()})


@pytest.mark.parametrize("value", [None, 1, (), "text", 1.5])
def test_a_body_that_is_no_map_is_refused(value: object) -> None:
    with pytest.raises(BadDataError, match="Shape: expected dict"):
        decode(value)


def test_the_extremes_of_64_bits_are_legal() -> None:
    points = ((2**63 - 1, ()), (-(2**63), ()))
    assert [p.x for p in decode(LEGAL | {"points": points}).points] == [2**63 - 1, -(2**63)]


def test_a_hint_that_cannot_travel_is_refused_when_compiled() -> None:
    @dataclass(frozen=True)
    class Unsendable:
        ratio: float

    with pytest.raises(TypeError, match=r"Unsendable\.ratio"):
        decoder(Unsendable)
