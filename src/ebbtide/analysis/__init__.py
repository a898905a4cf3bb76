"""What users ask of a policy: backtest, compare, plan; and what is kept of the answers."""
