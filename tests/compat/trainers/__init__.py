"""A file for each trainer: what is run for it, and a step of training as a program."""
