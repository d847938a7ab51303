"""Who leads a partition: the decision, its conditional write, elections on request."""
