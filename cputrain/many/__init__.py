"""Many trainings beside one another on one machine."""
