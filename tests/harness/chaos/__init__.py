"""Live runs with random faults, and checks that nothing is lost."""
