"""The machine's best as diagnose measures it, beside other ways to measure it."""
