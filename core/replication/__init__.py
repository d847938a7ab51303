"""What a broker does when the controller tells it to lead, follow or drop a replica."""
