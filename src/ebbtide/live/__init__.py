"""Running for real: a controller that may be killed at any instant and started again."""
