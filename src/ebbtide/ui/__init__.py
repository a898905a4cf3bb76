"""A read-only web page of live runs, and the same figures for Prometheus."""
