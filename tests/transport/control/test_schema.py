"""What a field may hold, and that nothing else gets past its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from regent.core.errors import BadDataError, Errors
from regent.core.protocol.message import Int8, Int16, Int32, Int64, Uuid, message, since, until
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


@message
class Side:
    length: Int16
    marks: tuple[Int32, ...] | None = since(3, default=None, tag=0)


@message
class Figure:
    colour: Int8 = until(4, default=7)
    figure_id: Uuid
    sides: tuple[Side, ...]
    area: Int64 = since(2, default=-1)


decode_figure = decoder(Figure)
ID = "AAAAAAAAAAAAAAAAAAAA_w"
FIGURE: dict[str, Any] = {
    "colour": -128,
    "figure_id": ID,
    "sides": ({"length": 2**15 - 1, "marks": (2**31 - 1,)}, {"length": -(2**15), "marks": None}),
    "area": 2**63 - 1,
}


def test_a_kafka_message_has_the_fields_of_all_its_versions() -> None:
    sides = (Side(length=2**15 - 1, marks=(2**31 - 1,)), Side(length=-(2**15)))
    assert decode_figure(FIGURE) == Figure(colour=-128, figure_id=ID, sides=sides, area=2**63 - 1)
    assert decode_figure(FIGURE | {"figure_id": None}).figure_id is None


def test_a_kafka_message_of_a_peer_of_another_version_has_fewer_or_more_fields() -> None:
    data = {"figure_id": ID, "sides": ({"length": 1},), "new": object()}
    assert decode_figure(data) == Figure(figure_id=ID, sides=(Side(length=1),))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": 128}, r"Figure\.colour: a number is out of the 8-bit range"),
        ({"colour": None}, r"Figure\.colour: expected int, found NoneType"),
        ({"figure_id": "AA"}, r"Figure\.figure_id: a text is not a UUID"),
        ({"figure_id": ID + "A"}, r"Figure\.figure_id: a text is not a UUID"),
        ({"figure_id": 1}, r"Figure\.figure_id: expected str, found int"),
        ({"sides": ({"length": 2**15},)}, r"Side\.length: a number is out of the 16-bit range"),
        (
            {"sides": ({"length": 1}, {"length": -(2**15) - 1})},
            r"Side\.length: a number is out of the 16-bit range",
        ),
        (
            {"sides": ({"length": 1, "marks": (2**31,)},)},
            r"Side\.marks: a number is out of the 32-bit range",
        ),
        ({"sides": ({},)}, r"Side\.length is missing"),
        ({"sides": ((1, ()),)}, r"Figure\.sides: expected dict, found tuple"),
        ({"area": 2**63}, r"Figure\.area: a number is out of the 64-bit range"),
    ],
)
def test_a_wrong_value_of_a_kafka_message_is_refused_with_the_field_named(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadDataError, match=complaint):
        decode_figure(FIGURE | change)
