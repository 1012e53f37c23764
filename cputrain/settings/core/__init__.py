"""Base class, registry and common parts of settings."""
