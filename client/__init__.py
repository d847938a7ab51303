"""What commands and jobs use to talk to a running cluster."""
