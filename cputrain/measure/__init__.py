"""Statistics of timings, interleaved rounds, and child processes that are measured."""
