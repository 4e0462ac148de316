"""Textbook algorithms that pack by tokens alone: one file each."""
