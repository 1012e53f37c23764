"""How each operator carries the samples of a batch from its inputs to its outputs.

A rule is given an operator with its arguments and returns the layout of each output, or raises
`MixesSamples` where an output of one sample would depend on another one. An operator without a rule
is refused as soon as a sharded tensor reaches it: what is not known to keep samples apart does not
count as keeping them apart.
"""

from cputrain.split.proof.sharding.elementwise import only_replicated
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Reduced,
    SampleIndex,
    Shard,
)
from cputrain.split.proof.sharding.rules import base_name, rule_of

__all__ = [
    "Layout",
    "MixesSamples",
    "Opaque",
    "Operator",
    "Reduced",
    "SampleIndex",
    "Shard",
    "base_name",
    "only_replicated",
    "rule_of",
]
