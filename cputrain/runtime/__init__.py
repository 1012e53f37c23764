"""Apply a plan within the user's process; decisions are made in `plan`."""
