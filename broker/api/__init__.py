"""The handlers of Kafka requests, as ``KafkaApis`` in Kafka."""
