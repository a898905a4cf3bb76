"""ExoSphere: portfolios of spot machines for parallel applications."""
