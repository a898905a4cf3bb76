"""Contract suites for pytest: what every policy, cloud, object store and price source must do."""
