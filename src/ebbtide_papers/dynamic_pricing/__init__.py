"""Training on a Dime: deep learning with dynamic prices."""
