"""What to change for each cause."""
