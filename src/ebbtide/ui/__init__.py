"""The page of live runs in a browser, read only, and the same figures for Prometheus."""
