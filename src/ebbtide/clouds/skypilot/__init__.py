"""SkyPilot as a launcher: its API server rents machines of twenty clouds, on which our agents run."""
