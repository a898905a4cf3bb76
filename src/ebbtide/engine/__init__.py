"""Engine that drives a policy, and its books: decisions, ledger, timeline."""
