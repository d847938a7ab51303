"""The console: a web page on which an operator sees a cluster and its failovers."""
