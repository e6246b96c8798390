"""From what a user wrote as ``model.path`` to a local folder.

Owns the errors a user sees when a model is not there; does not read any weight. The network is
asked for hub ids only, and never with HF_HUB_OFFLINE.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The HTTP client that the hub library itself uses; its name differs between releases.
from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

from dvi.config import ModelConfig
from dvi.config.home import models_dir
from dvi.modeling.fetch import KNOWN_MODELS, is_fetched
from dvi.modeling.spec import ModelRefused

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model"]
HUB_REQUEST_TIMEOUT_S = 8.0
HUB_ANSWER_TIMEOUT_S = 12.0  # name lookup and retries included: the user reads a line within 15 s

T = TypeVar("T")


def resolve_model_path(config: ModelConfig, key: str = "model.path") -> Path:
    """The folder of ``config.path``: a fetched name, a local folder, or a hub id.

    Raises ModelRefused with one line that says what to do; ``key`` is what the user wrote it as.
    """
    return _local(config.path, key) or _from_hub(config.path, config.revision)


def local_model_path(config: ModelConfig, key: str = "model.path") -> Path | None:
    """The same without the network: None for a hub id that is not in the local cache."""
    folder = _local(config.path, key)
    if folder is not None:
        return folder
    try:
        return _cached(config.path, config.revision, "not asked")
    except ModelRefused:
        return None


def _local(name: str, key: str) -> Path | None:
    """The folder of a fetched name or a local folder, None for a hub id; else ModelRefused."""
    fetched = models_dir() / name
    if name in KNOWN_MODELS and not is_fetched(fetched):
        raise ModelRefused(f"model {name} is not fetched yet; run: dvi models fetch {name}")
    if re.fullmatch(r"[\w.-]+", name) and is_fetched(fetched):
        return fetched
    folder = Path(name).expanduser().absolute()
    if folder.is_dir():
        if not is_fetched(folder):
            raise ModelRefused(f"model folder {folder} has no config.json")
        return folder
    if HUB_ID.fullmatch(name):
        return None
    if "/" in name or name.startswith((".", "~")):
        raise ModelRefused(f"model folder {folder} does not exist")
    raise ModelRefused(
        f"{key}={name!r} is no folder, no name that `dvi models list` shows and no hub id "
        f"(owner/name); known names: {', '.join(KNOWN_MODELS)}"
    )


def _from_hub(repo_id: str, revision: str | None) -> Path:
    """The snapshot folder; the hub is asked for the revision, the files may be cached already."""
    if constants.is_offline_mode():
        return _cached(repo_id, revision, "HF_HUB_OFFLINE is set")
    try:
        commit = _within(
            HUB_ANSWER_TIMEOUT_S,
            lambda: (
                HfApi().model_info(repo_id, revision=revision, timeout=HUB_REQUEST_TIMEOUT_S).sha
            ),
        )
    except GatedRepoError as error:
        raise ModelRefused(
            f"{repo_id} is gated: accept its terms on the hub, set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelRefused(f"{repo_id} has no revision {revision!r} on the hub") from error
    except RepositoryNotFoundError as error:
        raise ModelRefused(
            f"{repo_id} is no local folder and not on the hub (or private: set HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        reason = f"the hub {constants.ENDPOINT} is unreachable ({type(error).__name__})"
        return _cached(repo_id, revision, reason)
    try:
        return Path(snapshot_download(repo_id, revision=commit, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, httpx.HTTPError, OSError) as error:
        raise ModelRefused(f"download of {repo_id} failed: {type(error).__name__}") from error


def _cached(repo_id: str, revision: str | None, reason: str) -> Path:
    try:
        return Path(
            snapshot_download(
                repo_id, revision=revision, local_files_only=True, allow_patterns=HUB_FILES
            )
        )
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelRefused(
            f"cannot get {repo_id}: {reason} and it is not in the local cache; give a local folder "
            f"or run: dvi models fetch {next(iter(KNOWN_MODELS))}"
        ) from error


def _within(limit_s: float, call: Callable[[], T]) -> T:
    """``call()`` on a thread that is left behind after ``limit_s`` (then TimeoutError)."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
            failure.append(error)

    thread = threading.Thread(target=work, name="hub-lookup", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer within {limit_s} s")
    return outcome[0]
