"""The pages: which parts each has, and the HTML of every part.

A part is a piece of HTML with an id. A page is loaded with all of its parts; afterwards only those
that have changed are sent. Templates escape every value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from regent.client.cluster_connection import Cluster
from regent.client.doctor.diagnosis import TITLES, diagnose
from regent.client.lag_rates import LagPaces
from regent.client.partitions import DescribedPartition
from regent.client.wording import counted
from regent.config.command_line import program
from regent.console.cluster_view import (
    WINDOW_MS,
    ClusterView,
    Lane,
    grid,
    history,
    journal,
    lanes,
    verdict,
)
from regent.console.design_replay import BROKERS, PARTITIONS, REPLAYS, dots_of
from regent.console.form_numbers import MAX_PARTITION, number_in
from regent.console.inquiries import Answers, BrokerQuestions
from regent.console.move_progress import MoveProgress
from regent.console.operator_actions import offered
from regent.console.plan_operations import PlanStandings, plans_folder
from regent.console.record_browser import FORMS, SHOWN, STARTS, RecordQuery, read_records
from regent.console.reports import FOLDER, find_reports, json_lines, read_report
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.messages.describe_producers import ProducerState

Parts: TypeAlias = Mapping[str, str]
"""HTML, by id; a row of the grid has the characters of its cells instead."""

GRID_ROW: Final = "grid-"
"""The ids of the rows of the grid begin so; the name of the topic follows."""

STATIC: Final = Path(__file__).parent / "static"
_TEMPLATES: Final = Path(__file__).parent / "templates"
_NEEDS_ZOOKEEPER: Final = "This page needs ZooKeeper: start the console with --zookeeper."
_JOURNAL_LINES: Final = 300
_TOPICS_A_PAGE: Final = 200
_GROUPS_WATCHED_S: Final = 6.0  # a page must not take much longer
_MOVES_SHOWN: Final = 500
_FORGET_S: Final = 30.0  # after the last page that showed groups
_LANE_HEIGHT: Final = 28.0
_TICK_FULL_MS: Final = 100.0  # an answer that took so long is as high as the lane


class PageNotFoundError(RegentError):
    """There is no such page, topic, partition or failover."""


@dataclass(frozen=True, slots=True)
class PageMemory:
    """What pages showed before: rates come from two looks."""

    paces: LagPaces = field(default_factory=lambda: LagPaces(_FORGET_S))
    moves: MoveProgress = field(default_factory=MoveProgress)
    plans: PlanStandings = field(default_factory=PlanStandings)


@dataclass(frozen=True, slots=True)
class PageLook:
    """What a page is made of: the view, the cluster for questions, and the query of the address.

    ``reports``, ``plans``: the folders that the command line names. ``memory``: what pages showed
    before.
    """

    view: ClusterView
    cluster: Cluster
    arguments: Mapping[str, str] = field(default_factory=dict)
    may_write: bool = False
    reports: Path | None = None
    plans: Path | None = None
    memory: PageMemory = field(default_factory=PageMemory)

    @property
    def reports_folder(self) -> Path | None:
        """The folder of reports: the named one, or that of a cluster on this machine."""
        data_dir = self.view.data_dir
        return self.reports or (None if data_dir is None else data_dir / FOLDER)


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """A page; ``every_s``: how often brokers are asked while it is open, 0: never, None: no need.

    ``parts`` makes the HTML of its parts, by id.
    """

    title: str
    parts: Callable[[PageLook], Parts]
    every_s: float | None = None
    needs_partitions: bool = True


def _moment(at_ms: float | None) -> str:
    if at_ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a record may have any time
        return f"{at_ms} ms"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{int(at_ms) % 1000:03}Z"


def _clock(at_ms: float | None) -> str:
    return _moment(at_ms)[11:].removesuffix("Z") if at_ms is not None else "-"


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:.0f}"


def _ids(brokers: Any) -> str:
    return ", ".join(map(str, brokers)) or "none"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"moment": _moment, "clock": _clock, "bytes": _bytes, "ids": _ids}
    environment.filters |= {"rate": _rate}
    environment.globals |= {"counted": counted, "program": program()}
    return environment


_ENVIRONMENT: Final = _environment()


def render(template: str, **values: Any) -> Markup:
    """Return the HTML of a template."""
    return Markup(_ENVIRONMENT.get_template(template).render(**values))


# --- the pages ------------------------------------------------------------------------------------


def _overview(look: PageLook) -> Parts:
    view = look.view
    drawn = [lane_drawing(lane, view.at_ms) for lane in lanes(view)]
    offers = {row.broker_id: offered(view, row) for row in view.brokers} if look.may_write else {}
    return {
        "lanes": render(
            "lanes.html",
            lanes=drawn,
            offers=offers,
            base_ms=_base_ms(view.at_ms),
            may_write=look.may_write,
        ),
        "failovers": render("failovers.html", failovers=view.failovers, view=view),
    }


def _base_ms(at_ms: float) -> int:
    """Return the origin of the coordinates of lanes: numbers stay small, and change rarely."""
    return int(at_ms) // 600_000 * 600_000


def lane_drawing(lane: Lane, at_ms: float) -> dict[str, Any]:
    """Return a lane in the coordinates of its drawing: seconds, and a height of 28.

    What lasts ends an hour later: the drawing moves, and shows the part until now.
    """
    base_ms = _base_ms(at_ms)

    def seconds(ms: float) -> float:
        return round((ms - base_ms) / 1000, 3)

    def bar(from_ms: float, until_ms: float | None) -> tuple[float, float]:
        start = max(from_ms, base_ms - 2 * WINDOW_MS)
        end = start + 3_600_000 if until_ms is None else until_ms
        return seconds(start), round(max(end - start, 150) / 1000, 3)

    def height(took_ms: float) -> float:
        return round(min(max(took_ms / _TICK_FULL_MS, 0.06), 1.0) * _LANE_HEIGHT, 1)

    return {
        "lane": lane,
        "gaps": [bar(*span) for span in lane.gaps],
        "crowns": [bar(*span) for span in lane.crowns],
        "ticks": [
            (seconds(tick.at_ms), height(tick.took_ms), round(tick.took_ms, 1), tick.event)
            for tick in lane.ticks
        ],
    }


def _failover(look: PageLook) -> Parts:
    found = look.view.failover(look.arguments.get("key", ""))
    if found is None:
        raise PageNotFoundError("this failover is not among the last ten that the journals tell")
    total = max(found.duration_ms, 1.0)
    rows = [
        (
            name,
            start,
            end,
            round(100 * start / total, 2),
            max(round(100 * (end - start) / total, 2), 0.4),
        )
        for name, start, end in found.spans
    ]
    return {"waterfall": render("waterfall.html", failover=found, rows=rows)}


def _partitions(look: PageLook) -> Parts:
    rows = {f"{GRID_ROW}{topic}": cells for topic, cells in grid(look.view).items()}
    return {"legend": render("legend.html", view=look.view, topics=len(rows)), **rows}


def _absent(look: PageLook, what: str) -> RegentError:
    """Return the error that this does not exist, or that nobody knows it yet."""
    if look.view.table.at_ms:
        return PageNotFoundError(f"there is no {what}")
    why = look.view.problem or "the partitions are being read"
    return RegentError(f"whether there is a {what} is not known yet: {why}; load the page again")


def _partition(look: PageLook) -> Parts:
    at = _asked_partition(look)
    found = next((p for p in look.view.table.partitions if p.topic_partition == at), None)
    if found is None:
        raise _absent(look, f"partition {at}")
    questions = _questions(look)
    beliefs, changes = questions.beliefs(at), history(look.view, at)
    problem = ""
    producers: Sequence[ProducerState] = ()
    try:
        _, producers = questions.open_transactions(at)
    except RegentError as error:
        problem = str(error)
    return {
        "partition": render(
            "partition.html", partition=found, beliefs=beliefs, changes=changes, view=look.view
        ),
        "transactions": render(
            "open_transactions.html",
            at=at,
            producers=producers,
            problem=problem,
            may_write=look.may_write,
        ),
    }


def _asked_partition(look: PageLook) -> TopicPartition:
    text = look.arguments.get("partition", "")
    number = number_in(text, MAX_PARTITION)
    if number is None:
        raise PageNotFoundError(f"{text!r} is not the number of a partition")
    return TopicPartition(look.arguments.get("topic", ""), number)


def _topics(look: PageLook) -> Parts:
    text = look.arguments.get("text", "").lower()
    names = sorted(name for name in look.view.table.by_topic if text in name.lower())
    pages = max(-(-len(names) // _TOPICS_A_PAGE), 1)
    page = _page_of(look.arguments.get("page", ""), pages)
    shown = {
        name: look.view.table.by_topic[name]
        for name in names[(page - 1) * _TOPICS_A_PAGE : page * _TOPICS_A_PAGE]
    }
    sizes = _questions(look).sizes(shown)
    rows = []
    for topic, partitions in shown.items():
        replicas = [sizes.found.get(p.topic_partition, {}) for p in partitions]
        rows.append(
            {
                "topic": topic,
                "partitions": len(partitions),
                "factor": max(len(p.assignment.replicas) for p in partitions),
                "behind": sum(p.is_under_replicated for p in partitions),
                "told": sum(map(len, replicas)),
                "replicas": sum(len(p.assignment.replicas) for p in partitions),
                "bytes": sum(sum(of.values()) for of in replicas),
                "largest": max((max(of.values(), default=0) for of in replicas), default=0),
            }
        )
    return {
        "topics": render(
            "topics.html",
            rows=rows,
            problems=sizes.problems,
            found=len(names),
            page=page,
            pages=pages,
            text=look.arguments.get("text", ""),
        )
    }


def _page_of(text: str, pages: int) -> int:
    """Return the number of a page that there is."""
    return min(max(number_in(text, MAX_PARTITION) or 1, 1), pages)


def _questions(look: PageLook) -> BrokerQuestions:
    return BrokerQuestions(look.cluster, look.view.table.by_topic)


def _topic(look: PageLook) -> Parts:
    name = look.arguments.get("name", "")
    partitions = look.view.table.by_topic.get(name)
    if partitions is None:
        raise _absent(look, f"topic {name!r}")
    questions = _questions(look)
    sizes, settings = questions.sizes({name: partitions}), questions.settings(name)
    return {
        "topic": render(
            "topic.html",
            name=name,
            partitions=partitions,
            sizes=sizes.found,
            settings=settings.found,
            problems=sizes.problems + settings.problems,
            may_write=look.may_write,
        )
    }


def _records(look: PageLook) -> Parts:
    at, given = _asked_partition(look), look.arguments
    if not any(p.topic_partition == at for p in look.view.table.by_topic.get(at.topic, ())):
        raise _absent(look, f"partition {at}")
    query = RecordQuery(
        at,
        _one_of(STARTS, given.get("start", "")),
        given.get("at", "").strip(),
        _one_of(FORMS, given.get("form", "")),
        given.get("search", ""),
        is_committed=given.get("open", "") != "yes",
    )
    found, problem = None, ""
    try:
        found = read_records(look.cluster, query)
    except RegentError as error:
        problem = str(error)
    return {
        "records": render(
            "records.html",
            query=query,
            found=found,
            problem=problem,
            starts=STARTS,
            forms=FORMS,
            limit=SHOWN,
            partitions=len(look.view.table.by_topic[at.topic]),
            may_write=look.may_write,
        )
    }


def _one_of(choices: tuple[str, ...], given: str) -> str:
    return given if given in choices else choices[0]


def _groups(look: PageLook) -> Parts:
    questions = _questions(look)
    groups, transactions = questions.groups(), questions.transactions()
    look.memory.paces.keep({reader for group in groups.found for reader in group.readers})
    return {
        "groups": render(
            "groups.html",
            groups=[(group, group.lags(look.memory.paces)) for group in groups.found],
            problems=groups.problems,
            may_write=look.may_write,
        ),
        "transactions": render(
            "transactions.html",
            rows=transactions.found,
            problems=transactions.problems,
            may_write=look.may_write,
        ),
    }


def _moves(look: PageLook) -> Parts:
    if look.cluster.bootstrap:
        return {"moves": render("problem.html", problem=_NEEDS_ZOOKEEPER)}
    folder = plans_folder(look.cluster, look.plans)
    moving = [p for p in look.view.table.partitions if p.assignment.is_being_reassigned]
    shown, more = moving[:_MOVES_SHOWN], len(moving) - _MOVES_SHOWN
    topics: dict[str, list[DescribedPartition]] = {}
    for partition in shown:
        topics.setdefault(partition.topic_partition.topic, []).append(partition)
    sizes = _questions(look).sizes(topics) if shown else Answers({})
    return {
        "moves": render(
            "moves.html",
            moves=look.memory.moves.look(shown, sizes.found),
            problems=sizes.problems,
            more=more,
            may_write=look.may_write,
            paused_ms=look.view.moves_paused_ms,
        ),
        "plans": render(
            "plans.html",
            plans=look.memory.plans.look(look.cluster, folder),
            folder=folder,
            may_write=look.may_write,
        ),
    }


def _doctor(look: PageLook) -> Parts:
    began = time.monotonic()
    findings = diagnose(look.cluster, look.view.data_dir, watched_s=_GROUPS_WATCHED_S)
    groups: dict[str, list[Any]] = {}
    for finding in findings:
        groups.setdefault(TITLES[finding.check], []).append(finding)
    took_s = time.monotonic() - began
    return {"doctor": render("doctor.html", groups=groups, took_s=took_s)}


def _journal(look: PageLook) -> Parts:
    text, broker = look.arguments.get("text", ""), look.arguments.get("broker", "")
    lines = journal(look.view, text, broker, limit=_JOURNAL_LINES)
    return {"journal": render("journal.html", lines=lines, view=look.view, limit=_JOURNAL_LINES)}


def _reports(look: PageLook) -> Parts:
    folder, name = look.reports_folder, look.arguments.get("name", "")
    found = [] if folder is None else find_reports(folder)
    report = next((each for each in found if each.name == name), None)
    if name and report is None:
        raise PageNotFoundError("there is no such report")
    text = ""
    if report is not None and not report.is_html:
        text = json_lines(read_report(folder, name))
    return {
        "reports": render("reports.html", folder=folder, reports=found, report=report, text=text)
    }


def _designs(_: PageLook) -> Parts:
    rows = [(replay, dots_of(replay.watches_fired)) for replay in REPLAYS]
    return {"designs": render("designs.html", rows=rows, partitions=PARTITIONS, brokers=BROKERS)}


PAGES: Final[Mapping[str, ConsolePage]] = {
    "overview": ConsolePage("Overview", _overview, needs_partitions=False),
    "partitions": ConsolePage("Partitions", _partitions),
    "topics": ConsolePage("Topics", _topics, every_s=5.0),
    "groups": ConsolePage("Groups", _groups, every_s=2.0),
    "moves": ConsolePage("Moves", _moves, every_s=2.0),
    "doctor": ConsolePage("Doctor", _doctor, every_s=0.0),
    "journal": ConsolePage("Journal", _journal, needs_partitions=False),
    "reports": ConsolePage("Reports", _reports, every_s=0.0, needs_partitions=False),
    "designs": ConsolePage("Designs", _designs, every_s=0.0, needs_partitions=False),
    "failover": ConsolePage("Failover", _failover, needs_partitions=False),
    "partition": ConsolePage("Partition", _partition, every_s=2.0),
    "topic": ConsolePage("Topic", _topic, every_s=5.0),
    "records": ConsolePage("Records", _records, every_s=0.0),
}
"""The pages by name; those with a place in the menu first."""

MENU: Final = (
    *("overview", "partitions", "topics", "groups", "moves", "doctor", "journal"),
    *("reports", "designs"),
)


def parts_of(page: ConsolePage, look: PageLook) -> Parts:
    """Return all parts of a page; the first one is the verdict. Raises ``RegentError``."""
    head = render("verdict.html", verdict=verdict(look.view), view=look.view)
    return {"verdict": head, **page.parts(look)}


def whole(name: str, parts: Parts, look: PageLook) -> str:
    """Return a page with its parts."""
    menu = [(each, PAGES[each].title) for each in MENU]
    rows = [f"{i[len(GRID_ROW) :]} {cells}" for i, cells in parts.items() if i.startswith(GRID_ROW)]
    return render(
        "page.html",
        name=name,
        title=PAGES[name].title,
        menu=menu,
        parts={i: html for i, html in parts.items() if not i.startswith(GRID_ROW)},
        rows="\n".join(rows),
        is_live=PAGES[name].every_s != 0.0,
        arguments=look.arguments,
        may_write=look.may_write,
    )
