"""Faults and expected outcomes in words: a sentence is understood completely or refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tests.conformance.fields import UnknownInCaseError
from tests.conformance.sentences import Sentence

USUAL_ROUNDS = 5
_UNITS = {"b": 1, "kb": 10**3, "kib": 2**10, "mb": 10**6, "mib": 2**20}
_RATE = r"(?P<rate>\d+(?:\.\d+)?) ?(?P<unit>[km]?i?b)(?:ytes)?(?:/s|ps| (?:per|a) second)"
_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}
_COUNTS = "|".join(_NUMBERS)


class Kind(Enum):
    """What happens to brokers."""

    NOTHING = "nothing"
    STOP = "stopped for good"
    BOUNCE = "stopped and started again"
    PAUSE = "stopped by a signal"
    CUT = "cut off"
    RESTART_ALL = "all killed, then all started"
    DIRECTORY = "a log directory lost"
    REASSIGN = "everything moved"


@dataclass(frozen=True)
class Fault:
    """One fault; ``mode`` is how processes end: controlled or hard."""

    kind: Kind
    mode: str = "controlled"
    rounds: int = USUAL_ROUNDS
    pause_ms: int = 0  # until stopped processes start again; of a pause or cut, 0: never
    bounces: bool = False  # during another operation
    bytes_per_second: int | None = None  # of a reassignment; None: no throttle
    has_deleted_records: bool = False  # logs do not begin with 0


def faults(how: str) -> list[Fault]:
    """Return every fault that a description means. Raises ``UnknownInCaseError``."""
    sentence = Sentence(how, "how")
    if sentence.says("none|nothing|no faults?(?: is)?(?: injected| at all)?|baseline"):
        sentence.end()
        return [Fault(Kind.NOTHING)]
    if sentence.says(r"(?:while )?the (?:consumer|producer|client|application)s? (?:is|are) \w+"):
        raise UnknownInCaseError(f"this fault is not about brokers: {how!r}")
    found = (
        _directory(sentence)
        or _reassignments(sentence)
        or _absences(sentence)
        or _all_at_once(sentence)
        or _ends(sentence)
    )
    if not found:
        raise UnknownInCaseError(f"this fault is not about brokers: {how!r}")
    sentence.end()
    return found


def _directory(sentence: Sentence) -> list[Fault]:
    what = r"(?:write )?permissions?(?: from| of| on)?|unwritable|unusable|read-only|fails?"
    where = r"(?:the )?(?:second|one|a) (?:of two )?(?:data|log) director(?:y|ies)"
    if sentence.take(where) is None:
        return []
    if not sentence.says(f"(?:remove|removed|take away|revoke|make) (?:the )?(?:{what})|{what}"):
        raise UnknownInCaseError("it is not said what happens to the directory")
    return [Fault(Kind.DIRECTORY, bounces=bounces) for bounces in _with_and_without(sentence)]


def _reassignments(sentence: Sentence) -> list[Fault]:
    throttle = sentence.take(
        rf"(?:(?:under|with|at) )?(?:a )?{_RATE}(?: replication)? throttle"
        rf"|(?:throttled|(?:a )?throttle) (?:to|at|of) {_RATE.replace('<', '<to_')}"
    )
    moves = sentence.says(
        r"(?:rotat(?:e|ed|ing)|shuffl(?:e|ed|ing)) (?:the )?assignments?"
        r"|(?:a |the )?(?:shuffled |random |partition )*reassignments?"
        r"|reassign(?:ed|ing)?(?: (?:all )?partitions)?|mov(?:e|es|ed|ing) (?:all )?partitions"
    )
    if not moves:
        if throttle is not None:
            raise UnknownInCaseError("a throttle without a reassignment")
        return []
    rate = None if throttle is None else _bytes_per_second(throttle)
    if rate is not None:
        sentence.says("throttled")
    modes = _modes(sentence) or ["controlled"]
    is_bounced = sentence.take(
        r"(?:with )?(?:a )?(?:broker )?(?:bounc(?:e|ed|es|ing)|restart(?:s|ed|ing)?)"
    )
    variants = _with_and_without(sentence, usual=[is_bounced is not None])
    sentence.says("during|meanwhile")
    if sentence.says("optionally"):
        variants = [False, True]
    starts = _log_starts(sentence)
    return [
        Fault(
            Kind.REASSIGN,
            mode,
            bounces=bounces,
            bytes_per_second=rate,
            has_deleted_records=has_deleted_records,
        )
        for mode in modes
        for bounces in variants
        for has_deleted_records in starts
    ]


def _bytes_per_second(throttle: re.Match[str]) -> int:
    groups = throttle.groupdict()
    number, unit = groups["rate"] or groups["to_rate"], groups["unit"] or groups["to_unit"]
    if unit not in _UNITS:
        raise UnknownInCaseError(f"a throttle of {number} {unit} a second")
    return int(float(number) * _UNITS[unit])


def _log_starts(sentence: Sentence) -> list[bool]:
    both = r"log starts? (?:offset )?(?:at )?zero and above zero"
    if sentence.says(both):
        return [False, True]
    return [sentence.says(r"log starts? (?:offset )?above zero")]


def _with_and_without(sentence: Sentence, usual: Sequence[bool] = (False,)) -> Sequence[bool]:
    what = r"(?: (?:a )?(?:broker )?(?:bounces?|restarts?))?"
    if sentence.says(rf"with (?:and|or) without{what}"):
        return [False, True]
    if sentence.says(rf"without{what}|no (?:bounces?|restarts?)"):
        return [False]
    if sentence.says(r"with (?:a )?(?:broker )?(?:bounces?|restarts?)"):
        return [True]
    return usual


def _absences(sentence: Sentence) -> list[Fault]:
    is_cut = sentence.says(
        r"cut(?: off)? from (?:everyone|everybody|all brokers)(?:,? (?:clients?|and|zookeeper))*"
        r"(?:,? (?:incl\.?|including) (?:zookeeper|clients?))?|isolat(?:e|ed|ion)"
        r"|from (?:everyone|everybody) (?:incl\.?|including) zookeeper"
        r"|network partition|(?:partition(?:ed)?|disconnect(?:ed)?)(?: (?:the|one) broker)? from"
        r" (?:everything|everyone|all others|all other brokers)(?:,? (?:and )?zookeeper)?"
    )
    is_paused = sentence.says(
        r"(?:the )?process(?:es)? (?:is |are )?(?:stopped|paused) by (?:a )?(?:stop )?signal"
        r"|stop-signal|sigstop(?:ped)?|paus(?:e|ed)(?: by (?:a )?signal)?"
    )
    if not is_cut and not is_paused:
        return []
    if is_cut and is_paused:
        raise UnknownInCaseError("cut off and paused at once")
    lasts = sentence.says("until the end")
    pause_ms = _pause_ms(sentence)
    if lasts and pause_ms:
        raise UnknownInCaseError("until the end, and for a while")
    sentence.says("(?:one |the )?brokers?|process(?:es)?")
    return [Fault(Kind.CUT if is_cut else Kind.PAUSE, pause_ms=pause_ms)]


def _all_at_once(sentence: Sentence) -> list[Fault]:
    if not sentence.says(r"(?:kill|sigkill|hard shutdown of) all(?: brokers)?"):
        return []
    pause_ms = _pause_ms(sentence)
    if not sentence.says("(?:restart|start) all(?: brokers)?(?: again)?"):
        raise UnknownInCaseError("all brokers are killed, and not started again")
    return [Fault(Kind.RESTART_ALL, "hard", pause_ms=pause_ms)]


def _pause_ms(sentence: Sentence) -> int:
    wait = sentence.take(
        r"(?:wait|waits|after|down|for)(?: for)? (?P<n>\d+(?:\.\d+)?) ?(?P<unit>ms|s|seconds?)"
    )
    return 0 if wait is None else int(float(wait["n"]) * (1 if wait["unit"] == "ms" else 1_000))


def _ends(sentence: Sentence) -> list[Fault]:
    counted = r"(?= (?:clean |hard )?(?:rounds?|times|rolls?|restarts?|bounces?)(?!\w))"
    rounds = sentence.take(rf"(?P<n>\d+|{_COUNTS}){counted}")
    sentence.says("rounds?|times")
    modes = _modes(sentence)
    stays = sentence.says(r"(?:is |are )?(?:not|never) restarted|(?:no|without) restarts?|for good")
    pause_ms = _pause_ms(sentence)
    stops = sentence.says(r"shut ?downs?|stop(?:s|ped)?|shut down")
    is_down = sentence.says("down")
    # The targets decide which brokers it hits.
    sentence.says("(?:current )?(?:leader|controller|follower)|brokers?|process(?:es)?")
    sentence.says("wait(?:ing)? for (?:the )?full isrs?(?: between(?: them)?)?")  # always done
    bounces = (
        sentence.says(r"bounc(?:e|es|ed|ing)|restart(?:s|ed)?|roll(?:s|ed|ing)?|(?:back|up) again")
        or rounds is not None
        or sentence.says("back")
    )
    if not modes:
        if not (stops or bounces or is_down):
            return []
        modes = ["controlled", "hard"] if is_down else ["controlled"]
    if stays and bounces:
        raise UnknownInCaseError("restarted and not restarted")
    found = []
    if stops or not bounces:
        found += [Fault(Kind.STOP, mode) for mode in modes]
    if bounces:
        number = USUAL_ROUNDS if rounds is None else _NUMBERS.get(rounds["n"]) or int(rounds["n"])
        found += [Fault(Kind.BOUNCE, mode, number, pause_ms) for mode in modes]
    elif pause_ms:
        raise UnknownInCaseError("a pause after which nothing is started again")
    return found


def _modes(sentence: Sentence) -> list[str]:
    modes = {
        "controlled": r"sigterm(?:med)?|clean(?:ly)?|(?:in a )?controlled(?: way)?|orderly",
        "hard": r"sigkill(?:ed)?|kill -9|hard|kill(?:s|ed)?|crash(?:es|ed)?",
    }
    return [mode for mode, words in modes.items() if sentence.says(words)]


# --- expected outcomes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """The expectations of a case in addition to those of all cases; None, False: not given."""

    is_nothing_lost: bool = False
    is_available: bool = False
    reassigned_within_ms: int | None = None
    share_of_throttled_time: float | None = None
    has_no_duplicates: bool = False
    has_no_gaps: bool = False
    has_no_resets: bool = False
    is_directory_given_up: bool = False


def outcome(expect: str) -> Outcome:
    """Return the expectations of a sentence; there must be one. Raises ``UnknownInCaseError``."""
    sentence = Sentence(expect, "expect")
    found = Outcome(
        is_directory_given_up=sentence.says(
            r"(?:the )?broker stays up|is not (?:the )?leader|leaves (?:the |every )?isrs?"
            r"|afterwards|with the others stopped,? it alone serves the topic in its"
            r" (?:healthy|other) directory"
        ),
        is_nothing_lost=sentence.says(
            r"(?:every|all|each)(?: \w+ed| newly produced)? (?:records?|messages?) (?:is|are)"
            r" (?:consumed|received|read)(?: in the end)?"
            r"|(?:no|nothing) acked loss|no (?:loss|acked record is lost)|no record is lost"
            r"|no (?:acknowledged|acked) (?:record|message)s? (?:is|are) lost"
            r"|nothing (?:acknowledged |acked )?is lost"
            r"|everything (?:acknowledged |acked )?is (?:consumed|received|read)"
        ),
        is_available=sentence.says(
            r"(?:the )?(?:round trip|load)(?: of \d+ (?:messages|records))? completes"
            r"|producing and consuming resumes?"
            r"|(?:the )?topic stays writable|processing resumes"
            r"|(?:the )?application survives(?: if (?:the )?brokers were up before the fault)?"
        ),
    )
    within = sentence.take(
        r"(?:the )?reassignment (?:is )?(?:done|complete[sd]?)(?: within| in) (?P<n>\d+) ?s"
    )
    if within is not None:
        found = replace(found, reassigned_within_ms=int(within["n"]) * 1_000)
    share = sentence.take(
        r"(?:(?:(?:the )?(?:reassignment|move) )?takes )?at least (?P<share>0?\.\d+|1)"
        r" of the throttled (?:estimate|time)"
    )
    if share is not None:
        found = replace(found, share_of_throttled_time=float(share["share"]))
    if sentence.says(r"(?:the )?(?:reassignment|move|it)? ?completes"):
        found = replace(found, is_nothing_lost=True)
    found = replace(
        found,
        has_no_duplicates=sentence.says("(?:consumers? sees? )?no duplicates?"),
        has_no_gaps=sentence.says("(?:consumers? sees? )?no gaps?"),
        has_no_resets=sentence.says(
            r"(?:does not|never|no) resets?(?: to (?:the )?(?:start|beginning))?"
        ),
    )
    sentence.end()
    if found == Outcome():
        raise UnknownInCaseError(f"no expectation: {expect!r}")
    return found
