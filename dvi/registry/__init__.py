"""The adapter registry: the durable seam from the trainer back to the engine.

Owns versions on disk; does not know how an adapter is trained or used.
"""

from dvi.registry.history import Act, Event
from dvi.registry.manifest import Adapter, DraftShape, Manifest, ManifestFields, RegistryError
from dvi.registry.registry import Registry

__all__ = [
    "Act",
    "Adapter",
    "DraftShape",
    "Event",
    "Manifest",
    "ManifestFields",
    "Registry",
    "RegistryError",
]
