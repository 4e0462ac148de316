"""Items as counts of lengths, and packs as patterns: cost by distinct lengths instead of by samples."""
