"""DeepSpotCloud's policy: one machine per job, moved to the cheapest market of any region."""
