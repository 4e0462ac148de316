"""Other projects: their trainers, and the layouts of their data."""
