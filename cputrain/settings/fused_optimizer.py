"""Setting `fused_optimizer`: optimizer steps in one pass over memory instead of a dozen."""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, OnByDefault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.settings.core.setting import Applied


class FusedOptimizerSetting(OnByDefault):
    """Whether optimizers use fused kernels where the script chose no implementation."""

    name = "fused_optimizer"
    order = 130
    group = ARITHMETIC
    is_advanced = True
    help = "one-pass updates in Adam, AdamW, SGD and Adagrad (auto: on)"
    says_on = "fused optimizers"
    says_off = "optimizers as the script sets them"
    reason = "one pass over parameters, gradients and moments instead of one for each operation"
    reason_not_off = "on two threads they took between a quarter and all of the time of the others"

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Patch torch.optim."""
        from cputrain.runtime.fused import FusedOptimizers

        return FusedOptimizers(torch) if value else None


SETTING = FusedOptimizerSetting()
