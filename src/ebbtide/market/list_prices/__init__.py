"""On-demand list prices from the clouds' own price APIs, and a user's folder that keeps what has changed."""
