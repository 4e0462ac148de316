"""One HTML page that needs no network."""
