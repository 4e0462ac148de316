"""Configurations of runs: read, completed with defaults, and judged by the facts of their trainer."""
