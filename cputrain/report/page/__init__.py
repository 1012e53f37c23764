"""A diagnosis as a page for a browser: one file, nothing from elsewhere."""

from __future__ import annotations

from cputrain.report.page.whole import diagnosis_page

__all__ = ["diagnosis_page"]
