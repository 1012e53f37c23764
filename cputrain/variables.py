"""Environment variables by which the launcher and the script's processes communicate."""

from __future__ import annotations

PLAN = "CPUTRAIN_PLAN"
"""The plan as JSON, which child processes inherit."""

REPORT = "CPUTRAIN_REPORT"
"""For the launched process only: "1" has it print a summary line at its end."""

PRELOAD = "CPUTRAIN_LD_PRELOAD"
"""For the launched process only: the value of LD_PRELOAD to restore once it runs."""

TRIAL = "CPUTRAIN_TRIAL"
"""Arguments, as JSON, of a recorder in the script's process; child processes do not inherit it."""

PROGRESS = "CPUTRAIN_PROGRESS"
"""File in which a job of `cputrain many` counts its optimizer steps."""

STACK = "CPUTRAIN_STACK"
"""File with the arguments of all jobs that one process of `cputrain many` is to train."""

COMMON_DATA = "CPUTRAIN_COMMON_DATA"
"""File in memory in which jobs of `cputrain many` store data that several of them have."""

OCL_FALLBACK = "CPUTRAIN_OCL_FALLBACK"
"""Policy for operators without an OpenCL kernel; "needed" and "error" disable the usual one."""

OCL_TUNE = "CPUTRAIN_OCL_TUNE"
"""Whether kernels are measured; "0" takes the first candidate."""

OCL_GRAPHS = "CPUTRAIN_OCL_GRAPHS"
"""Whether calls of models on an OpenCL device are replayed; "0" has them made as written."""

AT_PROCESS_START = frozenset({"LD_PRELOAD"})
"""Variables of the dynamic linker: the launcher sets them, and sitecustomize removes them."""
