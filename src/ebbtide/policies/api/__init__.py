"""What a policy sees and may do."""
