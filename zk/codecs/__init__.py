"""The znodes of Kafka: their paths, and their bytes to values and back."""
