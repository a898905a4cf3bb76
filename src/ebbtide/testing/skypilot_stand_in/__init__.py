"""A stand-in for SkyPilot's API server: clusters of one node as local processes."""
