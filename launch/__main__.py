"""`python -m cputrain.launch` is the `cputrain` command."""

import sys

from cputrain.launch.cli import main

sys.exit(main())
