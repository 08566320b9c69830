"""Token ids in, token ids out."""

__version__ = "0.1.0"  # as in pyproject.toml
