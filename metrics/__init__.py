"""What a broker tells Prometheus."""
