"""What carries a plan out inside the user's process. Decides nothing."""
