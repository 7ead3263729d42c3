"""The version of the package: the one place that states it."""

__version__ = "0.1.0.dev0"
