"""Several ranks on one node: torchrun against cputrain launch, and all-reduce of gradients."""
