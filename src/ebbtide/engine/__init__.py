"""What drives a policy, and keeps the books: engine, ledger, timeline."""
