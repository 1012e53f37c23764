"""Several ranks of one node: under torchrun and under us, and how they add up gradients."""
