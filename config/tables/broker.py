"""The table ``[broker]``: addresses, replication, and the limits of clients."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import NOT_NEGATIVE, TIMEOUT_MS
from regent.core.admin.admin_manager import AdminSettings
from regent.core.replication.replication_settings import ReplicationSettings
from regent.core.setting import INT_MAX, LONG_MAX, ConfigType, Scope, setting

ISR_CHANGES_THROUGH_ZOOKEEPER = "zookeeper"
_PORT = (0, 65_535)
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_PROTOCOL_MAP = ",".join(f"{name}:{name}" for name in _PROTOCOLS)
_ADVERTISED = (
    r"\s*[A-Za-z0-9_.-]+://(?!0\.0\.0\.0:|\[::\]:)(\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]*):[0-9]{1,5}\s*"
)
_FETCH_BYTES = (1, 2**30)  # with one more batch, a response must have fewer than 2**31 bytes


@dataclass(frozen=True)
class BrokerConfig:
    """The table ``[broker]``."""

    host: str = setting(
        "127.0.0.1",
        'The address to listen on: a name, IPv4, or IPv6 without brackets. "0.0.0.0" and "::"'
        " (which takes IPv4 too) listen on all addresses of the machine. With listeners: the"
        " address of the control port and of the metrics.",
        ours=True,
    )
    port: int = setting(
        9_092,
        "The port for Kafka clients. 0: any free port. Not with listeners.",
        limits=_PORT,
        ours=True,
    )
    control_port: int = setting(
        10_092,
        "The port for control requests of the controller and for requests of the command line. 0:"
        " any free port, which others learn from ZooKeeper.",
        limits=_PORT,
        ours=True,
    )
    replication_port: int = setting(
        11_092,
        "The port that followers fetch from. 0: any free port. Not with listeners.",
        limits=_PORT,
        ours=True,
    )
    metrics_port: int = setting(
        12_092,
        "The port for Prometheus. 0: any free port. If the port is taken, a free one is used, with"
        " a warning.",
        limits=_PORT,
        ours=True,
    )
    listeners: str = setting(
        "",
        "Where the broker listens, as Kafka's: NAME://HOST:PORT,NAME://HOST:PORT,… An empty host"
        " means all addresses; port 0 is any free port. Each listener is for clients, which are"
        " told the addresses of the listener that they came by; that of"
        " inter_broker_listener_name is for brokers too, as in Kafka. Settings of one listener are"
        " in the table [listener_name.NAME], with the name in lower case: max_connections,"
        " max_connection_creation_rate. Empty:"
        " host, port and replication_port say it.",
    )
    advertised_listeners: str = setting(
        "",
        "Where clients and brokers find these listeners, if not where they listen; those that are"
        " not listed are not told to anybody. A running broker follows.",
        pattern=rf"|{_ADVERTISED}(,{_ADVERTISED})*",
        form="NAME://HOST:PORT,NAME://HOST:PORT,…, with hosts that clients can reach",
        scope=Scope.PER_BROKER,
    )
    listener_security_protocol_map: str = setting(
        DEFAULT_PROTOCOL_MAP,
        "The security protocol of each listener: NAME:PROTOCOL,… A name that is no protocol must be"
        " here.",
        scope=Scope.PER_BROKER,
    )
    inter_broker_listener_name: str = setting(
        "", "The listener that brokers find each other at. Use the same for all brokers."
    )
    security_inter_broker_protocol: str = setting(
        "PLAINTEXT",
        "The name of that listener if inter_broker_listener_name is empty.",
        choices=_PROTOCOLS,
    )
    allow_unauthenticated: bool = setting(
        False,
        "Whether the broker may listen beyond loopback where clients and brokers do not prove who"
        " they are (PLAINTEXT, or SSL that does not require certificates of clients): everybody who"
        " reaches the port can read and write all topics.",
        ours=True,
    )
    local_users: str = setting(
        "same",
        "Which users of this machine may connect where the broker listens on loopback, beside its"
        ' own: "same": no other; "any": all; or names or ids, separated by commas. Connections of'
        " others are closed at once. It is so at the ZooKeeper of a `regent cluster`, too. Who is"
        " named may connect to every port: without logins and an authorizer that user may read,"
        " write and delete every topic, that of Prometheus too. Only Linux can"
        " tell users apart. Where the broker listens on other addresses this has no effect.",
        pattern=r"\s*[^,\s]+\s*(,\s*[^,\s]+\s*)*",
        form="same, any, or users separated by commas",
        ours=True,
    )
    keys_dir: str = setting(
        "",
        "The directory of keys: in allowed/NAME.key the public keys of those that may send control"
        " requests, beside the registered brokers (`regent keys`). Empty: the folder keys beside"
        " the data directory if there is one, else in it.",
        ours=True,
    )
    broker_keys: str = setting(
        "registered",
        'Which keys of other brokers are believed: "registered": those in their registrations,'
        ' unless the directory of keys has one for the broker; "allowed": only those in the'
        " directory of keys. `regent cluster` uses allowed with the ZooKeeper that it starts. With"
        " registered, who may write registrations in ZooKeeper decides who is a broker.",
        pattern="registered|allowed",
        form="registered or allowed",
        ours=True,
    )
    metrics_token_file: str = setting(
        "",
        "The file with the token that Prometheus must send for the metrics (its authorization"
        " setting, type Bearer): one line, readable by the user of the broker only. Empty: none.",
        ours=True,
    )
    metrics_tls: bool = setting(
        False,
        "Whether the metrics are served with TLS (https), with the key of [tls]; then"
        " ssl_client_auth says whether Prometheus needs a certificate. /health, /ready and"
        " /controller never need one.",
        ours=True,
    )
    advertised_host: str = setting(
        "",
        "The address at which clients and other brokers find this broker, if that is not host:"
        " behind a published port or an address translation. Required when"
        ' host is "0.0.0.0" or "::". With listeners: of the control port.',
        ours=True,
    )
    advertised_port: int = setting(
        0, "The Kafka port that clients are told. 0: the real one.", limits=_PORT, ours=True
    )
    advertised_control_port: int = setting(
        0, "The control port that brokers are told. 0: the real one.", limits=_PORT, ours=True
    )
    advertised_replication_port: int = setting(
        0, "The replication port that followers are told. 0: the real one.", limits=_PORT, ours=True
    )
    control_plane_listener_name: str = setting(
        "",
        "The listener for requests between a controller and a broker of which one is Kafka's; empty"
        " is that of brokers. It must be one of listeners, and not that of brokers. A broker of"
        " Kafka without it gets them at the listener of brokers. Brokers of Regent send such"
        " requests to each other's control_port.",
    )
    rack: str = setting(
        "",
        "The rack of this broker; empty: none. The placement strategy rack-aware spreads the"
        " replicas of a partition over racks.",
        prefix="broker.",
    )
    node_host: str = setting(
        "",
        "The name of the machine, if other brokers run on it too; `regent node` sets it. Two"
        " replicas of a partition are never placed on one machine. Empty: this broker is the only"
        " one on its machine.",
        pattern="[A-Za-z0-9._:-]{0,255}",
        form="up to 255 letters, digits, dots, colons, dashes and underscores",
        ours=True,
    )
    thread_name_prefix: str = setting(
        "",
        "The beginning of the names of this broker's threads: with b1, the thread that fetches from"
        " broker 2 is b1:ReplicaFetcherThread-0-2. `ps -L` and `top -H` show the first 15 bytes.",
        pattern="[A-Za-z0-9._-]{0,32}",
        form="up to 32 letters, digits, dots, dashes and underscores",
        ours=True,
    )
    controlled_shutdown_max_retries: int = setting(
        3,
        "How often a broker that stops asks the controller to move its leaderships.",
        limits=NOT_NEGATIVE,
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        5_000,
        "The pause between these requests. `regent cluster` uses 200 unless its configuration file"
        " has this setting.",
        type=ConfigType.LONG,
    )
    controlled_shutdown_timeout_ms: int = setting(
        30_000,
        "How long a broker that stops waits for the answer of one request.",
        limits=TIMEOUT_MS,
        ours=True,
    )
    replica_lag_time_max_ms: int = setting(
        ReplicationSettings.replica_lag_time_max_ms,
        "A follower that has not caught up with its leader for this time leaves the ISR. Checked"
        " twice in this time.",
        limits=(100, LONG_MAX),
        type=ConfigType.LONG,
    )
    replica_fetch_wait_max_ms: int = setting(
        ReplicationSettings.replica_fetch_wait_max_ms,
        "How long a leader holds the fetch of a follower that has all records; up to twice as long"
        " after a fetch that brought nothing. At most replica_lag_time_max_ms, and never longer"
        " than 3000.",
    )
    replica_fetch_backoff_ms: int = setting(
        ReplicationSettings.replica_fetch_backoff_ms,
        "The pause of a follower after a fetch without an answer, and the longest one after an"
        " error of a partition: there the first is 20 ms, and each further one is twice as long.",
    )
    replica_fetch_min_bytes: int = setting(
        ReplicationSettings.replica_fetch_min_bytes,
        "How many bytes a follower's fetch waits for.",
        limits=NOT_NEGATIVE,
    )
    replica_fetch_max_bytes: int = setting(
        ReplicationSettings.replica_fetch_max_bytes,
        "How many bytes of one partition a follower's fetch gets. A larger batch is fetched alone.",
        limits=_FETCH_BYTES,
    )
    replica_fetch_response_max_bytes: int = setting(
        ReplicationSettings.replica_fetch_response_max_bytes,
        "How many bytes of all partitions a follower's fetch gets.",
        limits=_FETCH_BYTES,
    )
    isr_change_protocol: str = setting(
        "controller",
        'How leaders change an ISR: with "controller" they send AlterPartition to the controller;'
        ' with "zookeeper" they write the ISR and notify the controller, as before Kafka 2.7. Use'
        " the same for all brokers.",
        choices=("controller", ISR_CHANGES_THROUGH_ZOOKEEPER),
        ours=True,
    )
    auto_create_topics_enable: bool = setting(
        True, "Whether a topic is created when a client asks for its metadata."
    )
    no_replicas: bool = setting(
        False,
        "Whether this broker is there to be the controller of brokers of Kafka. New replicas are"
        " kept off it; those that it has already stay. When a broker of Kafka is the controller, it"
        " takes its place at once.",
        ours=True,
    )
    internal_topics_at_start: bool = setting(
        False,
        "Whether __consumer_offsets and __transaction_state are created as soon as enough brokers"
        " live, instead of with the first group and the first transaction: if a broker has died by"
        " then, they may not get their replicas. `regent cluster` sets this for its brokers.",
        ours=True,
    )
    num_partitions: int = setting(
        AdminSettings.num_partitions,
        "The number of partitions of a topic that is created without a number.",
        limits=(1, 1_000_000),
    )
    default_replication_factor: int = setting(
        AdminSettings.default_replication_factor,
        "The replication factor of a topic that is created without one.",
        limits=(1, 32_767),
    )
    placement_service: str = setting(
        "",
        'The service that places the topics of clients: "tcp://HOST:PORT", or the path of a'
        " cluster.json, whose cluster starts the service when a topic needs it. Without the service"
        ' no topic is placed; with "" the broker places topics itself, by the same algorithm.'
        " `regent cluster` sets this for its brokers.",
        ours=True,
    )
    socket_request_max_bytes: int = setting(
        104_857_600, "The largest request of a client.", limits=NOT_NEGATIVE
    )
    queued_requests_per_connection: int = setting(
        64,
        "How many requests of one connection are handled at a time; more wait.",
        limits=(1, 100_000),
        ours=True,
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "How many bytes the requests of all clients may take, counted as they arrive. A client that"
        " needs more waits. While one waits, a request of which less than 256 KiB arrive in a"
        " second is given up and its connection closed. -1: no limit.",
        limits=(-1, LONG_MAX),
        type=ConfigType.LONG,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "How long a client's connection may be silent before it is closed; -1: for ever.",
        limits=(-1, LONG_MAX),
        type=ConfigType.LONG,
    )
    max_connections: int = setting(
        INT_MAX,
        "How many connections clients may have. Further ones wait until one ends. A quarter of"
        " them, and one at least, may be without a login or in a TLS handshake: above it the one"
        " that has waited longest at the address with the most of them is closed. 128 file"
        " descriptors are always kept for logs and other brokers.",
        limits=(1, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    password_encoder_secret: str = setting(
        "",
        "The secret with which the passwords of listeners in ZooKeeper are encoded, as by Kafka:"
        " for example listener.name.NAME.ssl.key.password, which can change while the broker runs."
        " Empty: such a password cannot be set there.",
        type=ConfigType.PASSWORD,
        pattern=r"(?s:.*)",
    )
    password_encoder_old_secret: str = setting(
        "",
        "The secret before password_encoder_secret: what was encoded with it is encoded again when"
        " the broker starts.",
        type=ConfigType.PASSWORD,
        pattern=r"(?s:.*)",
    )
    max_connection_creation_rate: int = setting(
        INT_MAX,
        "How many connections a second clients may open, by the windows of quota_window_num."
        " Further ones wait, at most quota_window_size_seconds each. A listener may have a limit of"
        " its own, and that of brokers, if it is one by itself, has no other.",
        limits=NOT_NEGATIVE,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = setting(
        INT_MAX,
        "How many connections clients at one address may have. Further ones are closed. With IPv6"
        " one machine may have many addresses, and each has this limit, as in Kafka.",
        limits=NOT_NEGATIVE,
        scope=Scope.CLUSTER_WIDE,
    )
    max_connections_per_ip_overrides: str = setting(
        "",
        'The limit of some hosts: "HOST:COUNT,HOST:COUNT".',
        pattern=r"|\s*[^,]+:[0-9]{1,10}\s*(,\s*[^,]+:[0-9]{1,10}\s*)*",
        form="HOST:COUNT,HOST:COUNT,…",
        scope=Scope.CLUSTER_WIDE,
    )
