"""Plans carried out on a running cluster, wave by wave."""
