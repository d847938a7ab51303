"""What the reports on assignments, failures and events are made of."""
