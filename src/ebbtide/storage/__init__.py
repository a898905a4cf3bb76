"""Object stores, and the checkpoints that lie in them."""
