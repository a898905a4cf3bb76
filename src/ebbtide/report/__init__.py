"""Reports: a record of a backtest as a page of its own."""
