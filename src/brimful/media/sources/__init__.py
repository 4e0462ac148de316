"""Rows whose media lie next to them: pairs of files, and tars."""
