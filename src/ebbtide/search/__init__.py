"""Searches of other libraries whose trials are trained by Ebbtide: `ebbtide.search.optuna`."""
