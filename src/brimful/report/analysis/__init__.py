"""Numbers of a report, and sentences that rest on them: pure but for the lookup of files."""
