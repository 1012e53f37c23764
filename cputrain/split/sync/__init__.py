"""What replicas do together: barriers, statistics and losses of the whole batch, random numbers."""
