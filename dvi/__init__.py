"""DVI: draft, verify, improve. Lossless speculative serving whose draft learns from its traffic."""

__version__ = "0.1.0"
