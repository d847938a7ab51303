"""Who may do what in the cluster."""
