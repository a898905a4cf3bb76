"""Execution: the engine that drives a policy, the providers behind it, the ledger and the timeline."""
