"""Fast libraries in place of their references, each watched by its reference."""
