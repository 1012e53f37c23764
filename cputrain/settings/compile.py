"""Setting `compile`: torch.compile on every model of the script.

Compilation takes from seconds to minutes; compiled models are faster in some cases and slower in
others (measured: 90 s for a ResNet-50, whose steps then took 1.3 times as long).
"""

from __future__ import annotations

from cputrain.settings.core.setting import ARITHMETIC, Switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.settings.core.setting import Applied
    from cputrain.settings.core.situation import Situation


class CompileSetting(Switch):
    """Whether models are compiled once they are trained."""

    name = "compile"
    excluded_by = frozenset({"memory_limit", "reproducible"})
    order = 190
    group = ARITHMETIC
    help = "torch.compile every model (auto: off, unless measured)"
    says_on = "models compiled"
    says_off = "models as the script compiles them"
    reason = "compiling takes a while, and pays for some models only: a matter of measuring"
    trial_order = 90
    is_expensive_to_try = True

    def candidates(self, situation: Situation) -> list[str]:
        """Return on, if a C++ compiler is installed."""
        from shutil import which

        return ["on"] if any(map(which, ("g++", "clang++", "c++"))) else []

    def apply(self, torch: ModuleType, value: bool) -> Applied | None:
        """Compile models once they are trained."""
        from cputrain.runtime.compiling import Compiled

        return Compiled(torch) if value else None


SETTING = CompileSetting()
