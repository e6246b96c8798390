"""The same tiny model folder and home as the serving room's."""

from tests.serving.conftest import own_home, tiny_model

__all__ = ["own_home", "tiny_model"]
