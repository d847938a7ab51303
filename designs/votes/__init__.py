"""A model of replication: majority vote, in-sync replicas, all replicas, and no leader.

How many replicas survive N failures, and what does a commit, or a death, cost? Each answer is
computed. The schemes are those of "Replicated logs: quorums, ISRs, and state machines" in Kafka's
documentation, and of Dynamo.
"""
