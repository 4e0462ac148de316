"""Policies that turn samples into items: overflow, alignment, budgets, groups, targets."""
