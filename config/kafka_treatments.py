"""What Regent does with each setting of a Kafka broker: takes it, ignores it or refuses it.

``config.kafka_properties`` reads files of Kafka's by this, and ``docs/kafka-properties.md`` shows
it. Settings that Regent's tables have under Kafka's names are taken, without a row here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from regent.config.settings import rows

TAKEN_SPECIALLY: Final[Mapping[str, str]] = {
    "broker.id": "the id, unless `--id` says it; else that of `meta.properties`",
    "node.id": "another name of `broker.id`",
    "zookeeper.connect": "the address of ZooKeeper with its chroot, unless `--zookeeper` says it",
    "log.dir": "`log_dirs`, if `log.dirs` is not set",
    "log.retention.minutes": "`log_retention_ms`, if that is not set",
    "log.retention.hours": "`log_retention_ms`, if neither that nor the minutes are set",
    "log.roll.hours": "`log_roll_ms`, if that is not set",
    "log.roll.jitter.hours": "`log_roll_jitter_ms`, if that is not set",
    "controller.socket.timeout.ms": "`controller.request_timeout_ms`",
    "delegation.token.secret.key": "`delegation_token_secret_key_file`, a private file with it",
    "delegation.token.master.key": "the former name of `delegation.token.secret.key`",
}
"""Settings that Regent has in another form, and as what they are taken."""

_IGNORED: Final[Mapping[str, str]] = {
    "a broker has one event loop, and threads of its own choice": """
        num.network.threads num.io.threads num.replica.fetchers background.threads
        num.replica.alter.log.dirs.threads queued.max.requests group.coordinator.threads
        group.coordinator.append.linger.ms group.coordinator.new.enable
        fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
        delete.records.purgatory.purge.interval.requests""",
    "the system sizes the buffers of sockets, and waits are the broker's own": """
        socket.send.buffer.bytes socket.receive.buffer.bytes socket.listen.backlog.size
        replica.socket.receive.buffer.bytes replica.socket.timeout.ms request.timeout.ms
        socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
        server.max.startup.time.ms zookeeper.max.in.flight.requests zookeeper.clientCnxnSocket
        zookeeper.sync.time.ms""",
    "metrics are Prometheus's, at regent.metrics.port": """
        metric.reporters kafka.metrics.reporters kafka.metrics.polling.interval.secs
        auto.include.jmx.reporter metrics.num.samples metrics.recording.level
        metrics.sample.window.ms telemetry.max.bytes""",
    "only Kafka without ZooKeeper (KRaft) uses it": """
        controller.listener.names controller.quorum.append.linger.ms
        controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
        controller.quorum.election.timeout.ms controller.quorum.fetch.timeout.ms
        controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
        controller.quorum.voters sasl.mechanism.controller.protocol broker.heartbeat.interval.ms
        broker.session.timeout.ms initial.broker.registration.timeout.ms early.start.listeners
        eligible.leader.replicas.enable log.dir.failure.timeout.ms metadata.log.dir
        metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
        metadata.log.segment.bytes metadata.log.segment.min.bytes metadata.log.segment.ms
        metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
        zookeeper.metadata.migration.min.batch.size unclean.leader.election.interval.ms
        unstable.feature.versions.enable""",
    "only Kafka without ZooKeeper (KRaft) has these groups": """
        group.consumer.assignors group.consumer.heartbeat.interval.ms
        group.consumer.max.heartbeat.interval.ms group.consumer.max.session.timeout.ms
        group.consumer.max.size group.consumer.min.heartbeat.interval.ms
        group.consumer.min.session.timeout.ms group.consumer.session.timeout.ms
        group.consumer.migration.policy group.coordinator.rebalance.protocols group.share.enable
        group.share.delivery.count.limit group.share.heartbeat.interval.ms group.share.max.groups
        group.share.max.heartbeat.interval.ms group.share.max.record.lock.duration.ms
        group.share.max.session.timeout.ms group.share.max.size
        group.share.min.heartbeat.interval.ms group.share.min.record.lock.duration.ms
        group.share.min.session.timeout.ms group.share.partition.max.record.locks
        group.share.record.lock.duration.ms group.share.session.timeout.ms
        unstable.api.versions.enable""",
    "there is no tiered storage": """
        log.local.retention.bytes log.local.retention.ms remote.fetch.max.wait.ms
        remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
        remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
        remote.log.manager.copy.quota.window.size.seconds
        remote.log.manager.expiration.thread.pool.size
        remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
        remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
        remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
        remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
        remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
        remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
        remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
        remote.log.reader.threads remote.log.storage.manager.class.name
        remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix""",
    "Kerberos is not offered, so its settings have no effect": """
        sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
        sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor""",
    "a broker that logs in reads its password or token from a file, for each login": """
        sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
        sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
        sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
        sasl.login.retry.backoff.ms sasl.oauthbearer.scope.claim.name""",
    "TLS is OpenSSL's, not Java's": """
        ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.protocol
        ssl.secure.random.implementation""",
    "passwords are encoded with Kafka's defaults; those that were encoded otherwise are read": """
        password.encoder.cipher.algorithm password.encoder.iterations password.encoder.key.length
        password.encoder.keyfactory.algorithm""",
    "batches stay as the producer compressed them": """
        compression.type compression.gzip.level compression.lz4.level compression.zstd.level""",
    "Kafka ignores it too: the name must begin with the listener's and the mechanism's": """
        sasl.jaas.config""",
    "quotas of throttled replicas have fixed windows": """
        replication.quota.window.num replication.quota.window.size.seconds
        alter.log.dirs.replication.quota.window.num
        alter.log.dirs.replication.quota.window.size.seconds""",
    "ids of brokers are always given": """
        broker.id.generation.enable reserved.broker.max.id""",
    "a broker always asks the controller to move its leaderships before it stops": """
        controlled.shutdown.enable""",
    "consumers read from leaders": "replica.selector.class",
    "the limit is the client's own": "fetch.max.bytes max.request.partition.size.limit",
    "fetch sessions are limited by the broker itself": "max.incremental.fetch.session.cache.slots",
    "a commit always waits for all replicas in sync": "offsets.commit.required.acks",
    "files of logs grow as they are written": "log.preallocate",
    "tasks of logs begin a few seconds after the start": """
        log.initial.task.delay.ms producer.id.expiration.check.interval.ms""",
}

IGNORED: Final[Mapping[str, str]] = {
    name: reason for reason, names in _IGNORED.items() for name in names.split()
}
"""The reasons why settings have no meaning here, by their names."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Values of a setting that Regent cannot honour; all but those that ``allowed`` matches.

    ``remedy`` is the end of a sentence that says why, and what to do.
    """

    allowed: str
    remedy: str

    def allows(self, value: str) -> bool:
        """Whether Regent can honour a value."""
        return re.fullmatch(self.allowed, value.strip()) is not None


_NONE: Final = ""
_FALSE: Final = "(?i:false)|"
_PLUGIN: Final = "Regent loads no classes of Java: remove it"
_NO_TLS: Final = (
    "connections to ZooKeeper are not encrypted: use ZooKeeper's clientPort on a network that only"
    " the brokers reach"
)
_LISTENERS: Final = "Kafka 3 has removed it: write its value in listeners or advertised.listeners"
_QUOTA: Final = "Kafka 3 has removed it: set a default quota in ZooKeeper with kafka-configs.sh"
_OAUTH: Final = r"org\.apache\.kafka\.common\.security\.oauthbearer\.(?:secured\.)?OAuthBearer"
_VERSION: Final = r"(?:2\.4(?!-IV0$)|2\.[5-8]|3\.[0-9])(?:[.-].*)?"
_NEW_FORMAT: Final = r"(?:0\.11|[1-9]\.[0-9])(?:[.-].*)?"

REFUSED: Final[Mapping[str, Refusal]] = {
    "process.roles": Refusal(
        _NONE, "that is Kafka without ZooKeeper (KRaft), and Regent needs ZooKeeper"
    ),
    "zookeeper.metadata.migration.enable": Refusal(
        _FALSE, "a cluster that moves to KRaft cannot have brokers of Regent: remove it first"
    ),
    "authorizer.class.name": Refusal(
        r"(?:kafka\.security\.authorizer\.AclAuthorizer)?",
        "only kafka.security.authorizer.AclAuthorizer is offered",
    ),
    "inter.broker.protocol.version": Refusal(
        _VERSION,
        "brokers speak the protocols of Kafka 2.4 to 3.9, from 2.4-IV1 on: raise it at all brokers"
        " first",
    ),
    "log.message.format.version": Refusal(
        _NEW_FORMAT,
        "logs have only messages of format 2: raise it to 0.11 or later, and copy older records to"
        " new topics first",
    ),
    "remote.log.storage.system.enable": Refusal(_FALSE, "there is no tiered storage"),
    "zookeeper.set.acl": Refusal(
        _FALSE,
        "it needs a login for ZooKeeper: write USER:PASSWORD of the JAAS section Client in a"
        " private file and add regent.secret.file=FILE",
    ),
    "config.providers": Refusal(_NONE, "write the values themselves in the file"),
    "sasl.login.class": Refusal(_NONE, _PLUGIN),
    "sasl.login.callback.handler.class": Refusal(
        rf"(?:{_OAUTH}LoginCallbackHandler)?",
        _PLUGIN,
    ),
    "sasl.client.callback.handler.class": Refusal(_NONE, _PLUGIN),
    "sasl.server.callback.handler.class": Refusal(
        rf"(?:{_OAUTH}ValidatorCallbackHandler)?", _PLUGIN
    ),
    "sasl.oauthbearer.token.endpoint.url": Refusal(
        _NONE,
        "a broker reads its token from a file: add regent.sasl.inter.broker.password.file=FILE",
    ),
    "principal.builder.class": Refusal(
        r"(?:org\.apache\.kafka\.common\.security\.authenticator\.DefaultKafkaPrincipalBuilder)?",
        "names of users are made by ssl.principal.mapping.rules only: remove it",
    ),
    "ssl.engine.factory.class": Refusal(_NONE, _PLUGIN),
    "ssl.provider": Refusal(_NONE, _PLUGIN),
    "security.providers": Refusal(_NONE, _PLUGIN),
    "ssl.cipher.suites": Refusal(
        r"(?!.*TLS_).*",
        "write OpenSSL's names, which `openssl ciphers -stdname` shows, in"
        " --ssl-cipher-suites; those of TLS 1.3 cannot be chosen",
    ),
    **dict.fromkeys(
        (
            *("alter.config.policy.class.name", "create.topic.policy.class.name"),
            "client.quota.callback.class",
        ),
        Refusal(_NONE, _PLUGIN),
    ),
    **{
        f"zookeeper.ssl.{name}": Refusal(default, _NO_TLS)
        for name, default in {
            "client.enable": _FALSE,
            "crl.enable": _FALSE,
            "ocsp.enable": _FALSE,
            "endpoint.identification.algorithm": "HTTPS|",
            "protocol": r"TLSv1\.2|",
            **dict.fromkeys(
                (
                    *("cipher.suites", "enabled.protocols", "keystore.location"),
                    *("keystore.password", "keystore.type", "truststore.location"),
                    *("truststore.password", "truststore.type"),
                ),
                _NONE,
            ),
        }.items()
    },
    **dict.fromkeys(
        ("host.name", "port", "advertised.host.name", "advertised.port"),
        Refusal(_NONE, _LISTENERS),
    ),
    **dict.fromkeys(
        ("quota.producer.default", "quota.consumer.default"),
        Refusal(r"|9223372036854775807", _QUOTA),
    ),
}
"""What Regent cannot honour, by the names of settings.

Allowed values have no effect, or are taken.
"""

REMOVED: Final = {
    *("host.name", "port", "advertised.host.name", "advertised.port", "zookeeper.sync.time.ms"),
    *("quota.producer.default", "quota.consumer.default"),
}
"""Names here that only older versions of Kafka have."""

TAKEN: Final = {row.kafka_name: (table, row) for table, row in rows() if row.kafka_name is not None}
"""Tables and settings by Kafka's names."""

OURS: Final = {
    f"regent.{row.dotted_name}": (table, row) for table, row in rows() if row.kafka_name is None
}
"""Regent's own settings by the names that they have in a file of Kafka's, which ignores them."""
