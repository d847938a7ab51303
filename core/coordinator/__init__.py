"""The coordinators: a broker's work for the clients whose state is in a partition that it leads."""
