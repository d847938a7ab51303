from __future__ import annotations

from regent.broker.broker_settings import broker_settings
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.setting import ConfigType


def test_settings_have_kafkas_names_and_defaults_and_whether_they_were_given():
    given = {"num_partitions": 3, "default_replication_factor": 1}
    described = broker_settings(load_settings(None, {"broker": given}), 7)
    facts = {name: (row.value, row.default, row.is_given) for name, row in described.items()}
    assert facts["broker.id"] == ("7", "-1", True)
    assert facts["num.partitions"] == ("3", "1", True)
    assert facts["default.replication.factor"] == ("1", "1", True)
    assert facts["auto.create.topics.enable"] == ("true", "true", False)
    assert facts["zookeeper.session.timeout.ms"] == ("6000", "6000", False)


def test_settings_have_kafkas_types():
    types = {name: row.setting.type for name, row in broker_settings(Settings(), 0).items()}
    assert types["log.flush.interval.ms"] is types["log.retention.ms"] is ConfigType.LONG
    assert types["log.segment.bytes"] is types["num.partitions"] is ConfigType.INT
    assert types["log.cleanup.policy"] is ConfigType.LIST
    assert types["auto.create.topics.enable"] is ConfigType.BOOLEAN
    assert types["log.dirs"] is ConfigType.STRING
