"""Compare torchrun and cputrain launch with several ranks on one node, and time all-reduce."""
