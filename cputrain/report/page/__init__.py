"""Diagnosis as a single HTML file without external resources."""

from __future__ import annotations

from cputrain.report.page.page import diagnosis_page

__all__ = ["diagnosis_page"]
