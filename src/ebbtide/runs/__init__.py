"""Live runs as users see them: start, status, stop, fetch, cost, why, rehearse."""
