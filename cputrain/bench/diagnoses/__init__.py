"""What `cputrain diagnose` predicts, beside what its remedies give; and what it costs to ask."""
