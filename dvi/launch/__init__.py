"""From a command line to a checked config, a run folder and a running task.

The only package that knows Hydra and OmegaConf; the rest sees plain dataclasses.
"""

from dvi.launch.request import LaunchRequest, Outcome

__all__ = ["LaunchRequest", "Outcome"]
