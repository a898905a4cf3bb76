"""Other libraries' searches with trials trained by Ebbtide: `ebbtide.search.optuna`, `ebbtide.search.ray_tune`."""
