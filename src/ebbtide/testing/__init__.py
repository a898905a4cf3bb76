"""What tests of policies, clouds and runs need."""
