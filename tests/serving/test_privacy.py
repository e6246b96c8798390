"""After a purge nothing of an answer is left: no byte on disk, nothing that the memory proposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dvi.cli.main import run
from dvi.config import DrafterConfig
from dvi.drafting.auto import sources_of
from tests.replay.fakes import make_store, make_trace, small_config
from tests.serving.live import Live, live_server, tiny_config, wait_for

MARKER = "xylophone quagmire 7351"
OTHER = "SELECT name, price FROM orders"


def complete(live: Live, prompt: str, name: str, **body: Any) -> dict[str, Any]:
    asked = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    answer = live.http.post("/v1/completions", json=asked | body, headers={"X-Request-Id": name})
    assert answer.status_code == 200, answer.text
    return answer.json()


def forms_of(ids: Sequence[int]) -> list[bytes]:
    """A few tokens in a row as they would stand in a blob, in JSON, or printed."""
    few = list(ids)[:4]
    return [
        np.asarray(few, "<i4").tobytes(),
        np.asarray(few, "<i8").tobytes(),
        ",".join(map(str, few)).encode(),
        ", ".join(map(str, few)).encode(),
    ]


def files_with(folder: Path, forms: Sequence[bytes]) -> set[str]:
    """Names of files below ``folder`` that hold one of the forms."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if any(form in path.read_bytes() for form in forms)}


def test_after_a_purge_no_byte_is_left_on_disk_and_the_memory_has_forgotten(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(
        tiny_config(tiny_model, tmp_path / "state"), drafter=DrafterConfig(kind="auto")
    )
    with live_server(config, tmp_path / "run") as live:
        secret = complete(live, MARKER, "secret", user="ann")["choices"][0]
        other = complete(live, OTHER, "other")["choices"][0]
        prompt_forms = [MARKER.encode(), b"ann\0", *forms_of(secret["prompt_token_ids"])]
        forms = [*prompt_forms, *forms_of(secret["token_ids"])]
        assert wait_for(lambda: live.metrics()["dvi_replay_rows"] == 2)
        assert files_with(tmp_path, forms) & {"replay.sqlite", "replay.sqlite-wal"}
        answers = [forms_of(one["token_ids"])[0] for one in (secret, other)]
        assert wait_for(lambda: all(one in _remembered(live) for one in answers))
        words = ["--request", "secret", "--yes", f"state_dir={config.state_dir}"]
        assert run(["replay", "purge", *words]) == 0
        assert "1 answers selected, 1 erased" in capsys.readouterr().out
        assert files_with(tmp_path, forms) == set()
        assert wait_for(lambda: answers[0] not in _remembered(live))
        assert wait_for(lambda: answers[1] in _remembered(live))  # read again from what is left
        assert answers[0] not in _remembered(live)
    assert files_with(tmp_path, forms) == set()  # nor what a server writes at its end


def _remembered(live: Live) -> bytes:
    """All ids that the memory can match or propose, once a request that it must not keep made it
    look."""
    complete(live, "fox", "look", max_tokens=8, dvi={"log": False})
    memory = sources_of(live.server.runtime.drafter).memory
    assert memory is not None
    text = memory.served.text("")
    if text is None:
        return b""
    likeliest = [one.shares.ids[:, 0] for one in text.documents if one.shares is not None]
    assert len(likeliest) == len(text.documents)  # of each answer what was likely is known too
    return np.concatenate([np.asarray(text.ids), *likeliest]).astype("<i4").tobytes()


def test_rows_beyond_the_age_bound_leave_no_byte(tmp_path: Path) -> None:
    now_s = [1e9]
    with make_store(tmp_path, small_config(max_age_days=2.0), lambda: now_s[0]) as store:
        store.append("w", [make_trace("secret", fill=7_654_321)])
        form = [np.asarray([7_654_321] * 4, "<i4").tobytes()]
        assert files_with(tmp_path, form)
        now_s[0] += 2 * 86_400 + 1
        assert store.evict() == 1
        assert files_with(tmp_path, form) == set()
