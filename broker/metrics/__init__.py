"""The metrics of a broker, for Prometheus."""
