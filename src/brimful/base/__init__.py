"""Base of all rooms: files, tables, numbers, settings, messages; imports none of them."""
