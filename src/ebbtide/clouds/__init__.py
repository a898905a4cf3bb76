"""Clouds that rent machines out."""
