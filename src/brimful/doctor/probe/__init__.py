"""Probe: the forward of a running job, with other tokens in one segment."""
