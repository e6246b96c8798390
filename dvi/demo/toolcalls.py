"""The demo's tool calls: whether the model can be shown tools.

Owns the template that the server is given; questions and functions are the traffic's.
"""

from __future__ import annotations

from pathlib import Path

from dvi.config import DviConfig
from dvi.traffic.tools import FUNCTIONS, with_tools

FIELDS = {"tools": FUNCTIONS, "tool_choice": "required"}  # of each request


def template_of(config: DviConfig) -> str:
    """The chat template that the model has, or is given; empty where there is none."""
    if config.model.chat_template is not None:
        given = Path(config.model.chat_template)  # where it is missing, the server says so
        return given.read_text(encoding="utf-8") if given.is_file() else ""
    # The hub's client takes a second to import.
    from dvi.modeling.resolve import resolve_model_path
    from dvi.modeling.spec import read_chat_template

    return read_chat_template(resolve_model_path(config.model))


def write_template(config: DviConfig, path: Path) -> bool:
    """Whether the model shows tools, if need be by the template that is then at ``path``."""
    template = template_of(config)
    mine = with_tools(template)
    if mine is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(mine, encoding="utf-8")
    return mine is not None or "tools" in template
