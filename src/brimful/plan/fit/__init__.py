"""Textbook algorithms that pack by tokens only: one file each."""
