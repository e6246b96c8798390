"""From a config to a model that answers, and what the routes need to know of it.

Owns the constants of the served model; starts no thread. Knows nothing of HTTP or of how an engine
is put together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from dvi.config import DviConfig
from dvi.decoding import AdapterSlot, Engine
from dvi.decoding.startup import Outlets, open_engine
from dvi.drafting import Drafter
from serving.service import ServedModel
from serving.tools.syntax import find_syntax
from serving.words import TokenTexts


@dataclass(frozen=True, slots=True)
class Runtime:
    """The decode side of one server, ready for its thread."""

    engine: Engine
    model: ServedModel

    @property
    def drafter(self) -> Drafter:
        """Who proposes."""
        return self.engine.parts.drafter

    @property
    def slot(self) -> AdapterSlot:
        """Where new draft weights go."""
        return self.engine.slot


@dataclass(frozen=True, slots=True)
class Privacy:
    """What is done about people's text."""

    user_key: bytes  # of the hash that stands for `user`
    keep_content: bool
    has_tenants: bool = False  # several keys


def model_name(config: DviConfig) -> str:
    """The one id of /v1/models: never a path."""
    if config.serving.model_name:
        return config.serving.model_name
    return config.model.path.rstrip("/").rsplit("/", 1)[-1] or "model"


def _max_choices(config: DviConfig, privacy: Privacy) -> int:
    """What one request may ever get: rows and queue, of several keys one at most half of them."""
    num_places = config.serving.max_queue + config.serving.max_batch_size
    return num_places // 2 if privacy.has_tenants else num_places


def build_runtime(config: DviConfig, name: str, privacy: Privacy, outlets: Outlets) -> Runtime:
    """Load the model and make the engine; ``open_engine`` says what is raised."""
    opened = open_engine(config, outlets)
    if opened.engine.parts.grammars is not None:
        opened.engine.parts.grammars.warm_up()
    model = ServedModel(
        name=name,
        created_s=int(time.time()),
        max_context_len=config.serving.max_context_len,
        num_token_ids=opened.engine.parts.target.spec.num_token_ids,
        max_draft_len=config.decoding.max_draft_len,
        max_choices=_max_choices(config, privacy),
        system_fingerprint=opened.system_fingerprint,
        defaults=opened.tokenizer.generation_defaults,
        tokenizer=opened.tokenizer,
        texts=TokenTexts(opened.tokenizer),
        user_key=privacy.user_key,
        keep_content=privacy.keep_content,
        has_tenants=privacy.has_tenants,
        max_request_s=config.serving.max_request_s,
        tools=find_syntax(opened.tokenizer, config.serving.tool_parser),
    )
    return Runtime(opened.engine, model)
