"""The table ``[zookeeper]``: the session."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import TIMEOUT_MS
from regent.core.setting import setting


@dataclass(frozen=True)
class ZooKeeperConfig:
    """The table ``[zookeeper]``."""

    session_timeout_ms: int = setting(
        6_000,
        "A broker that sends nothing to ZooKeeper for this time counts as dead. A crash is noticed"
        " at once by the guardian process; this timeout is for failures of machines and networks.",
        limits=TIMEOUT_MS,
        prefix="zookeeper.",
    )
    secret_file: str = setting(
        "",
        'The file with the login for ZooKeeper: one line, "user:password", readable by the user of'
        " the broker only. With it the broker logs in (scheme digest), and what it creates has"
        " Kafka's ACLs (zookeeper.set.acl). All brokers, commands and tools must have the same"
        " login. `regent cluster` makes one for the ZooKeeper that it starts. Empty: the file that"
        " REGENT_ZOOKEEPER_SECRET of the environment names, else no login.",
        ours=True,
    )
    connection_timeout_ms: int = setting(
        18_000,
        "How long a broker that starts tries to reach ZooKeeper.",
        limits=TIMEOUT_MS,
        prefix="zookeeper.",
    )
