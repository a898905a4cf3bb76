"""Interface of policies: what a policy is shown, and the actions that it may take."""
