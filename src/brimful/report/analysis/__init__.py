"""Numbers of a report, and sentences that rest on them: pure except for file lookups."""
