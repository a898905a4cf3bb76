"""DeepSpotCloud's policy."""
