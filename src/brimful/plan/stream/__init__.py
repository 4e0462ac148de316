"""Planning of streams: a window of samples at a time."""
