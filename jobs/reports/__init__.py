"""The parts of reports on assignments, failures and events."""
