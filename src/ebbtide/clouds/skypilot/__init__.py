"""SkyPilot as a launcher: its API server rents machines of twenty clouds, which run Ebbtide's agents."""
