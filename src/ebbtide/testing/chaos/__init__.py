"""Live runs with faults at random moments: whether anything is lost by them."""
