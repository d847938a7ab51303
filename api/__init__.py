"""The Kafka APIs: what each request means, as KafkaApis is in Kafka."""
