"""The Kafka protocol on the broker's advertised port."""
