"""The dashboard in a real browser, on a small model: what a person sees and does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dvi.config import DrafterConfig
from tests.serving.browser import chromium, open_tab
from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for

pytestmark = pytest.mark.browser
# A page that has loaded need not have painted yet: the entry is waited for, milliseconds.
FIRST_PAINT = """new Promise(found => new PerformanceObserver(list => list.getEntries()
    .filter(one => one.name === "first-contentful-paint").forEach(one => found(one.startTime)))
    .observe({type: "paint", buffered: true}))"""
ENDED = r"\d+ rounds"
PHONE = {"viewport": {"width": 360, "height": 740}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("dashboard")
    config = replace(tiny_config(tiny_model, folder / "state"), drafter=DrafterConfig(kind="auto"))
    with live_server(config, folder) as running:
        for seed in (1, 2):
            publish_random(running, seed)
        assert wait_for(lambda: running.server.runtime.drafter.adapter_version == 2)
        yield running


def text_of(page: Any, selector: str) -> str:
    return str(page.locator(selector).inner_text())


def test_numbers_arrive_by_themselves_from_this_host_only_and_nothing_complains(
    browser: Any, live: Live
) -> None:
    with open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        tab.until("#status", "^live")
        assert text_of(page, "#adapter") == "2"
        before = text_of(page, "#latency tbody tr:has-text('request') td:last-child")
        live.http.post("/v1/completions", json={"prompt": "SELECT", "max_tokens": 16})
        tab.until("#latency tbody tr:has-text('request') td:last-child", f"^{int(before) + 1}$")
        assert "prompts and answers are kept for training" in text_of(page, "#content")
        assert page.locator("#chart-alpha svg path.line").count() == 2
        assert tab.complaints == []
        assert tab.hosts == {live.server.url.split("/")[2]}


def test_curves_start_anew_with_a_server_that_was_started_anew(browser: Any, live: Live) -> None:
    with open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        tab.until("#status", "^live")
        page.wait_for_selector("#chart-round svg")

        def answer(route: Any) -> None:
            data = live.http.get("/dashboard/data").json()  # all points, however few are new
            early = [data["points"][0] | {"time_s": float(i)} for i in range(500)]
            route.fulfill(json=data | {"series": "another", "points": early})

        page.route(lambda url: "series=another" not in url and "/dashboard/data" in url, answer)
        page.evaluate("document.getElementById('keys').requestSubmit()")  # polls at once
        page.wait_for_selector("#chart-round svg[aria-label$='over 500 points']")
        assert tab.complaints == []


def test_the_first_paint_takes_less_than_a_second(browser: Any, live: Live) -> None:
    with open_tab(browser, live.server.url) as tab:
        paint = tab.page.evaluate(FIRST_PAINT)
        assert paint < 1000 * 4  # the contract's second is on an idle machine


def test_an_answer_is_streamed_with_each_token_marked_by_who_proposed_it(
    browser: Any, live: Live
) -> None:
    written = live.server.metrics.counts.view().opted_out
    with open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        page.fill("#prompt", "abab abab abab <b>bold</b>")
        page.fill("#max-tokens", "40")
        page.click("#send")
        rounds = int(tab.until("#answer-note", ENDED).split()[0])
        kinds = page.eval_on_selector_all(
            "#answer .token", "all => all.map(one => one.className.replace('token ', ''))"
        )
        # Every round ends with one token of the target's own; the others were accepted.
        assert kinds.count("target") == rounds
        assert set(kinds) <= {"target", "neural", "memory"}
        assert page.locator("#answer b").count() == 0  # text stays text
        assert tab.complaints == []
    # Nothing is kept of it unless the box is ticked.
    assert live.server.metrics.counts.view().opted_out == written + 1


def test_a_version_shows_what_the_gate_decided_by(browser: Any, live: Live) -> None:
    with open_tab(browser, live.server.url) as tab:
        said = tab.until("#adapters tbody tr:first-child", "agreement").split("\t")
    assert "candidate agreement 0.50, gate confidence 0.96" in said


def test_promoting_and_rolling_back_ask_first(browser: Any, live: Live) -> None:
    with open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        questions: list[str] = []
        answers = iter([False, True, True])

        def reply(dialog: Any) -> None:
            questions.append(dialog.message)
            dialog.accept() if next(answers) else dialog.dismiss()

        page.on("dialog", reply)
        page.get_by_role("button", name="Promote 1", exact=True).click()
        assert live.http.get("/admin/adapters").json()["current"] == 2  # dismissed
        page.get_by_role("button", name="Promote 1", exact=True).click()
        tab.until("tr.live th", "^1$")
        page.get_by_role("button", name="Roll back").click()
        tab.until("tr.live th", "^2$")
        assert len(questions) == 3
        assert tab.complaints == []


def test_everything_can_be_reached_with_the_keyboard(browser: Any, live: Live) -> None:
    with open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        page.wait_for_selector("tr.live")
        wanted = {"prompt", "max-tokens", "temperature", "keep", "send", "rollback"}
        reached: set[str] = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        assert wanted <= reached
        page.focus("#prompt")
        page.fill("#max-tokens", "3")
        page.focus("#max-tokens")
        page.keyboard.press("Enter")
        tab.until("#answer-note", ENDED)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{}, PHONE], ids=["desk", "phone"])
def test_contrast_and_names_pass_axe_and_nothing_is_cut_off(
    scheme: str, size: dict[str, Any], browser: Any, live: Live
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with open_tab(browser, live.server.url, color_scheme=scheme, **size) as tab:
        page: Any = tab.page
        page.fill("#max-tokens", "12")
        page.click("#send")
        tab.until("#answer-note", ENDED)
        page.wait_for_selector("tr.live")
        page.evaluate("document.getElementById('keys').hidden = false")
        response = axe.run(page).response
        assert "color-contrast" in {one["id"] for one in response["passes"]}
        found = response["violations"]
        assert [(one["id"], [n["html"] for n in one["nodes"]]) for one in found] == []
        # Nothing scrolls sideways but the one table that may.
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_server_with_keys_gets_them_from_the_form_and_forgets_them_on_reload(
    browser: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVI_API_KEY", "user-key")
    monkeypatch.setenv("DVI_ADMIN_KEY", "admin-key")
    config = tiny_config(tiny_model, tmp_path / "state")
    with live_server(config, tmp_path / "run") as live, open_tab(browser, live.server.url) as tab:
        page: Any = tab.page
        page.wait_for_selector("#keys:not([hidden])")
        assert text_of(page, "#model") == ""
        page.fill("#api-key", "user-key")
        page.click("text=Use these keys")
        tab.until("#status", "^live")
        assert "admin key" in text_of(page, "#adapters-note")
        page.fill("#admin-key", "admin-key")
        page.click("text=Use these keys")
        page.wait_for_selector("tr.live")
        assert page.locator("#keys").is_hidden()
        kept = "JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie"
        assert page.evaluate(kept) == "{}"
        page.reload()
        page.wait_for_selector("#keys:not([hidden])")
        assert page.input_value("#api-key") == ""
