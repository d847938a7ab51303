"""The settings of Kafka 3.9's brokers that have no effect here, as data.

Clients and tools know their names: they are listed, and those that Kafka's clients can change are
stored and shown. A row has the name, the type, the default ("-": null) and the allowed values of a
setting: a range of numbers, or words. From ``KafkaConfig.configDef`` and
``DynamicBrokerConfig.AllDynamicConfigs`` of Kafka 3.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from regent.core.setting import (
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    NOT_HERE,
    WITHOUT_EFFECT,
    ConfigType,
    Declaration,
    Scope,
    Setting,
)

_MOST: Final[Mapping[ConfigType, float]] = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
    ConfigType.DOUBLE: DOUBLE_MAX,
}

_CLUSTER_WIDE: Final = """\
background.threads int 10 1..
compression.gzip.level int -1 -1|1|2|3|4|5|6|7|8|9
compression.lz4.level int 9 1..17
compression.type string producer uncompressed|zstd|lz4|snappy|gzip|producer
compression.zstd.level int 3 -131072..22
log.local.retention.bytes long -2 -2..
log.local.retention.ms long -2 -2..
log.preallocate boolean false
metric.reporters list ""
num.io.threads int 8 1..
num.network.threads int 3 1..
num.replica.fetchers int 1
remote.fetch.max.wait.ms int 500 1..
remote.log.index.file.cache.total.size.bytes long 1073741824 1..
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1..
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1..
"""
_PER_BROKER: Final = """\
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
sasl.jaas.config password -
sasl.kerberos.kinit.cmd string /usr/bin/kinit
sasl.kerberos.min.time.before.relogin long 60000
sasl.kerberos.principal.to.local.rules list DEFAULT
sasl.kerberos.service.name string -
sasl.kerberos.ticket.renew.jitter double 0.05
sasl.kerberos.ticket.renew.window.factor double 0.8
sasl.login.refresh.buffer.seconds short 300
sasl.login.refresh.min.period.seconds short 60
sasl.login.refresh.window.factor double 0.8
sasl.login.refresh.window.jitter double 0.05
ssl.engine.factory.class class -
ssl.keymanager.algorithm string SunX509
ssl.protocol string TLSv1.3
ssl.provider string -
ssl.secure.random.implementation string -
ssl.trustmanager.algorithm string PKIX
"""  # noqa: E501
_READ_ONLY: Final = """\
alter.config.policy.class.name class -
alter.log.dirs.replication.quota.window.num int 11 1..
alter.log.dirs.replication.quota.window.size.seconds int 1 1..
auto.include.jmx.reporter boolean true
broker.heartbeat.interval.ms int 2000
broker.id.generation.enable boolean true
broker.session.timeout.ms int 9000
client.quota.callback.class class -
controlled.shutdown.enable boolean true
controller.listener.names string -
controller.quorum.append.linger.ms int 25
controller.quorum.bootstrap.servers list ""
controller.quorum.election.backoff.max.ms int 1000
controller.quorum.election.timeout.ms int 1000
controller.quorum.fetch.timeout.ms int 2000
controller.quorum.request.timeout.ms int 2000
controller.quorum.retry.backoff.ms int 20
controller.quorum.voters list ""
controller.socket.timeout.ms int 30000
create.topic.policy.class.name class -
delegation.token.master.key password -
delegation.token.secret.key password -
delete.records.purgatory.purge.interval.requests int 1
early.start.listeners string -
eligible.leader.replicas.enable boolean false
fetch.max.bytes int 57671680 1024..
fetch.purgatory.purge.interval.requests int 1000
group.consumer.assignors list org.apache.kafka.coordinator.group.assignor.UniformAssignor,org.apache.kafka.coordinator.group.assignor.RangeAssignor
group.consumer.heartbeat.interval.ms int 5000 1..
group.consumer.max.heartbeat.interval.ms int 15000 1..
group.consumer.max.session.timeout.ms int 60000 1..
group.consumer.max.size int 2147483647 1..
group.consumer.min.heartbeat.interval.ms int 5000 1..
group.consumer.min.session.timeout.ms int 45000 1..
group.consumer.session.timeout.ms int 45000 1..
group.coordinator.append.linger.ms int 10 0..
group.coordinator.rebalance.protocols list classic consumer|classic|share|unknown
group.coordinator.threads int 1 1..
group.share.delivery.count.limit int 5 2..10
group.share.heartbeat.interval.ms int 5000 1..
group.share.max.groups short 10 1..100
group.share.max.heartbeat.interval.ms int 15000 1..
group.share.max.record.lock.duration.ms int 60000 30000..3600000
group.share.max.session.timeout.ms int 60000 1..
group.share.max.size short 200 10..1000
group.share.min.heartbeat.interval.ms int 5000 1..
group.share.min.record.lock.duration.ms int 15000 1000..30000
group.share.min.session.timeout.ms int 45000 1..
group.share.partition.max.record.locks int 200 100..10000
group.share.record.lock.duration.ms int 30000 1000..60000
group.share.session.timeout.ms int 45000 1..
initial.broker.registration.timeout.ms int 60000
kafka.metrics.polling.interval.secs int 10 1..
kafka.metrics.reporters list ""
log.dir string /tmp/kafka-logs
log.dir.failure.timeout.ms long 30000 1..
log.message.format.version string 3.0-IV1
log.retention.hours int 168
log.retention.minutes int -
log.roll.hours int 168 1..
log.roll.jitter.hours int 0 0..
max.incremental.fetch.session.cache.slots int 1000 0..
max.request.partition.size.limit int 2000 1..
metadata.log.dir string -
metadata.log.max.record.bytes.between.snapshots long 20971520 1..
metadata.log.max.snapshot.interval.ms long 3600000 0..
metadata.log.segment.bytes int 1073741824 12..
metadata.log.segment.ms long 604800000
metadata.max.idle.interval.ms int 500 0..
metadata.max.retention.bytes long 104857600
metadata.max.retention.ms long 604800000
metrics.num.samples int 2 1..
metrics.recording.level string INFO
metrics.sample.window.ms long 30000 1..
num.replica.alter.log.dirs.threads int -
offsets.commit.required.acks short -1
password.encoder.cipher.algorithm string AES/CBC/PKCS5Padding
password.encoder.iterations int 4096 1024..
password.encoder.key.length int 128 8..
password.encoder.keyfactory.algorithm string -
process.roles list "" broker|controller
producer.purgatory.purge.interval.requests int 1000
queued.max.requests int 500 1..
remote.log.manager.copier.thread.pool.size int -1
remote.log.manager.copy.quota.window.num int 11 1..
remote.log.manager.copy.quota.window.size.seconds int 1 1..
remote.log.manager.expiration.thread.pool.size int -1
remote.log.manager.fetch.quota.window.num int 11 1..
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
remote.log.manager.task.interval.ms long 30000 1..
remote.log.manager.thread.pool.size int 10 1..
remote.log.metadata.custom.metadata.max.bytes int 128 0..
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100 1..
remote.log.reader.threads int 10 1..
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
replica.selector.class string -
replica.socket.receive.buffer.bytes int 65536
replica.socket.timeout.ms int 30000
replication.quota.window.num int 11 1..
replication.quota.window.size.seconds int 1 1..
request.timeout.ms int 30000
reserved.broker.max.id int 1000 0..
sasl.client.callback.handler.class class -
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.mechanism.controller.protocol string GSSAPI
sasl.oauthbearer.scope.claim.name string scope
sasl.oauthbearer.token.endpoint.url string -
sasl.server.callback.handler.class class -
security.providers string -
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
socket.listen.backlog.size int 50 1..
socket.receive.buffer.bytes int 102400
socket.send.buffer.bytes int 102400
telemetry.max.bytes int 1048576 1..
zookeeper.clientCnxnSocket string -
zookeeper.max.in.flight.requests int 10 1..
zookeeper.metadata.migration.enable boolean false
zookeeper.set.acl boolean false
zookeeper.ssl.cipher.suites list -
zookeeper.ssl.client.enable boolean false
zookeeper.ssl.crl.enable boolean false
zookeeper.ssl.enabled.protocols list -
zookeeper.ssl.endpoint.identification.algorithm string HTTPS
zookeeper.ssl.keystore.location string -
zookeeper.ssl.keystore.password password -
zookeeper.ssl.keystore.type string -
zookeeper.ssl.ocsp.enable boolean false
zookeeper.ssl.protocol string TLSv1.2
zookeeper.ssl.truststore.location string -
zookeeper.ssl.truststore.password password -
zookeeper.ssl.truststore.type string -
"""  # noqa: E501


def _settings(table: str, scope: Scope) -> Iterator[tuple[str, Setting]]:
    meaning = NOT_HERE if scope is Scope.READ_ONLY else WITHOUT_EFFECT
    for line in table.splitlines():
        name, type_name, default, *allowed = line.split()
        type_ = ConfigType[type_name.upper()]
        low, separator, high = (allowed or [""])[0].partition("..")
        most = _MOST.get(type_, 0)
        declared = Declaration(
            meaning,
            limits=(float(low) if type_ is ConfigType.DOUBLE else int(low), int(high or most))
            if separator
            else (-most - 1, most),
            choices=() if separator or not allowed else tuple(allowed[0].split("|")),
            type=type_,
            scope=scope,
        )
        yield name, Setting(name.replace(".", "_"), _default(type_, default), declared)


def _default(type_: ConfigType, text: str) -> Any:
    if text == "-":
        return None
    return Setting("", None, Declaration("", type=type_)).parsed(text.replace('""', ""))


KAFKA_ONLY_SETTINGS: Final[Mapping[str, Setting]] = {
    **dict(_settings(_CLUSTER_WIDE, Scope.CLUSTER_WIDE)),
    **dict(_settings(_PER_BROKER, Scope.PER_BROKER)),
    **dict(_settings(_READ_ONLY, Scope.READ_ONLY)),
}
"""These settings by their names."""
