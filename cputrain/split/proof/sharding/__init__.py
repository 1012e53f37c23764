"""Sharding rules: how each operator carries the samples of a batch from its inputs to its outputs.

A rule takes an operator call and returns the layout of each output, or raises `MixesSamples` where
an output of one sample depends on another sample. An operator without a rule is refused as soon as
a sharded tensor reaches it, because it is not known to keep samples apart.
"""

from cputrain.split.proof.sharding.elementwise import only_replicated
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
    Reduced,
    SampleIndex,
    Shard,
)
from cputrain.split.proof.sharding.rules import base_name, rule_of

__all__ = [
    "Layout",
    "MixesSamples",
    "Opaque",
    "OperatorCall",
    "Reduced",
    "SampleIndex",
    "Shard",
    "base_name",
    "only_replicated",
    "rule_of",
]
