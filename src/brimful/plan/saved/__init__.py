"""A plan that was saved: its file, and what it must hold when it is opened."""
