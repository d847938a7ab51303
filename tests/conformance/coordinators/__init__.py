"""The conformance cases of coordinators, transactions and compaction, one module a suite."""
