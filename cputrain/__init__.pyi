"""Public names, for editors and type checkers; at run time they are imported on first access."""

from cputrain.data import DataLoader as DataLoader
from cputrain.many.executor import Many as Many
from cputrain.notebook import load_ipython_extension as load_ipython_extension
from cputrain.notebook import setup as setup
from cputrain.notebook import unload_ipython_extension as unload_ipython_extension
from cputrain.pool import Pool as Pool
from cputrain.pool import fill as fill
from cputrain.split import Split as Split
from cputrain.step import Stack as Stack
from cputrain.step import Step as Step

__all__ = ["DataLoader", "Many", "Pool", "Split", "Stack", "Step", "__version__", "fill", "setup"]

__version__: str
