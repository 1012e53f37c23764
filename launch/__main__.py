"""Run the `cputrain` command as `python -m cputrain.launch`."""

import sys

from cputrain.launch.cli import main

sys.exit(main())
