"""Administration of a running cluster, used by the command line and by jobs."""
