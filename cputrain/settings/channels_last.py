"""Setting `channels_last`: convolution weights in the memory format in which oneDNN computes.

In a model of convolutions this saves a layout conversion before and after each (measured: 1.25
times the throughput of a ResNet-50). It changes the order of additions.
"""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation


class ChannelsLastSetting(Switch):
    """Whether the weights of convolutions are converted to channels last."""

    name = "channels_last"
    order = 140
    group = ARITHMETIC
    help = "lay convolution weights out channels last (auto: off, unless measured)"
    says_on = "convolutions channels last"
    says_off = "convolutions as the script lays them out"
    reason = "faster for some models and slower for others: a matter of measuring"
    trial_order = 20

    def candidates(self, situation: Situation) -> list[str]:
        """Return on, if the script computes convolutions."""
        return ["on"] if "convolution" in situation.uses else []

    def modules(self, value: bool) -> tuple[str, ...]:
        """Return safetensors, which saves tensors in the order of their memory."""
        return ("safetensors.torch",) if value else ()

    def after_import(self, module: ModuleType, value: bool) -> None:
        """Have safetensors save converted weights as it would under python."""
        from cputrain.runtime.memory_order import patch_safetensors

        patch_safetensors(module)

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Convert models when they are first called."""
        from cputrain.runtime.channels_last import ChannelsLast

        return ChannelsLast(torch) if value else None


SETTING = ChannelsLastSetting()
