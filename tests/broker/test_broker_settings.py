from __future__ import annotations

from regent.broker.broker_settings import broker_settings
from regent.config.settings import BrokerConfig, Settings
from regent.core.admin.config_descriptions import BrokerSetting, ConfigType


def test_settings_have_kafkas_names_and_say_what_they_would_be_by_default():
    described = broker_settings(Settings(broker=BrokerConfig(num_partitions=3)), 7)
    assert described["broker.id"] == BrokerSetting("7", "-1", ConfigType.INT)
    assert described["num.partitions"] == BrokerSetting("3", "1", ConfigType.INT)
    assert described["auto.create.topics.enable"] == BrokerSetting(
        "true", "true", ConfigType.BOOLEAN
    )
    assert described["log.flush.interval.ms"].type is ConfigType.LONG
    assert described["log.dirs"].type is ConfigType.STRING
    assert "zookeeper.session.timeout.ms" in described
    assert described["logging.levels"].value == "kazoo=WARNING,pykka=WARNING"
