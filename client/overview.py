"""Each live broker on one line: its pace, its disks, what it leads, and what it has to fetch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from regent.client.broker_answers import ask_brokers
from regent.client.controller_ref import ControllerRef
from regent.client.live_brokers import read_live_brokers
from regent.client.log_sizes import CatchingUp, LogDirectorySize, catching_up, read_log_dirs
from regent.client.partitions import DescribedPartition, read_partitions
from regent.client.slow_brokers import BrokerPace, paces
from regent.core.errors import RegentError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.protocol.broker import DescribeMetadataResponse
from regent.core.protocol.controller import DescribeControllerRequest, DescribeControllerResponse
from regent.zk.stores.admin_store import ZkAdminStore

_CONTROLLER_S: Final = 2.0
_CLIENT_ID: Final = "regent-cli"


@dataclass(frozen=True, slots=True)
class BrokerOverview:
    """``directories`` None: the broker has not answered. Bytes; -1: unknown."""

    registration: BrokerRegistration
    pace: BrokerPace
    directories: Sequence[LogDirectorySize] | None
    leads: int
    replicas: int
    catching_up: CatchingUp | None

    @property
    def log_bytes(self) -> int | None:
        """The bytes of its logs."""
        found = self.directories
        return None if found is None else sum(one.size for one in found)

    @property
    def free_bytes(self) -> int | None:
        """What is free in its fullest log directory: the first that will be full."""
        known = [one.free_bytes for one in self.directories or () if one.free_bytes >= 0]
        return min(known, default=None)

    def facts(self) -> dict[str, object]:
        """Return what programs get, in bytes and milliseconds."""
        left = self.catching_up
        return {
            "leads": self.leads,
            "replicas": self.replicas,
            "log_bytes": self.log_bytes,
            "free_bytes": self.free_bytes,
            "log_dirs": None
            if self.directories is None
            else [
                {
                    "path": one.log_dir,
                    "is_offline": one.is_offline,
                    "total_bytes": one.total_bytes,
                    "free_bytes": one.free_bytes,
                    "log_bytes": one.size,
                }
                for one in self.directories
            ],
            **self.pace.facts(),
            "catching_up": None
            if left is None
            else {**left._asdict(), "seconds_left": left.seconds_left},
        }


@dataclass(frozen=True, slots=True)
class Overview:
    """All live brokers by id, and what was read for them."""

    brokers: Mapping[BrokerId, BrokerOverview] = field(default_factory=dict)
    partitions: Sequence[DescribedPartition] = ()
    described: DescribeControllerResponse | None = None
    answers: Mapping[BrokerId, DescribeMetadataResponse] = field(default_factory=dict)


def read_overview(admin: ZkAdminStore) -> Overview:
    """Read it; what does not answer in time is unknown. Raises ``BadDataError``."""
    live = read_live_brokers(admin)
    names = set(admin.topics.read_topic_names()) - admin.topics.read_topics_being_deleted()
    partitions = read_partitions(admin, sorted(names)).partitions
    described = _ask_controller(admin)
    answers = ask_brokers(list(live.values()))
    directories = read_log_dirs(live)
    left = {row.broker_id: row for row in catching_up(partitions, live)}
    leads = Counter(p.leader for p in partitions)
    replicas = Counter(b for p in partitions for b in p.assignment.replicas)
    return Overview(
        {
            pace.broker_id: BrokerOverview(
                live[pace.broker_id],
                pace,
                directories.get(pace.broker_id),
                leads[pace.broker_id],
                replicas[pace.broker_id],
                left.get(pace.broker_id),
            )
            for pace in paces(live, described, answers)
        },
        partitions,
        described,
        answers,
    )


def _ask_controller(admin: ZkAdminStore) -> DescribeControllerResponse | None:
    with (
        suppress(RegentError),
        ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller,
    ):
        deadline = time.monotonic() + _CONTROLLER_S
        request = DescribeControllerRequest()
        return controller.ask(request, DescribeControllerResponse, deadline=deadline)
    return None
