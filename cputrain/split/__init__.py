"""One batch over several CPU replicas and other devices, with the same result."""

from cputrain.split.balance.ddp import RankSampler, RankShare, rank_share
from cputrain.split.module import Split, splitter_of
from cputrain.split.proof.verify import Verification, verify

__all__ = [
    "RankSampler",
    "RankShare",
    "Split",
    "Verification",
    "rank_share",
    "splitter_of",
    "verify",
]
