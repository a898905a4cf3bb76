"""The policy that is taken by default, which joins what the papers' policies know."""
