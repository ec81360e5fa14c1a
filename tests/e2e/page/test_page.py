"""The live page in Chromium, on a real trimtabd that is fed over the wire. Screenshots go to the test's folder."""

import json
import time
import urllib.parse

import pytest
from live_server import LiveServer
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

HOSTILE = "x/<img src=x onerror=\"window.pwned=1\"><script>window.pwned=2</script>'\"&\u202eevil \U0001f680 %2F"


def wait_for(condition, what, seconds=120):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def number(text):
    return float(text.replace("\u2212", "-").replace("\u202f", "").split()[0])


def run_over(server, page, run=None, **window):
    page.open(f"{server.url}/{'' if run is None else '#run=' + urllib.parse.quote(run, safe='')}", **window)
    wait_for(lambda: not page.run("return document.getElementById('run-view').hidden"), "the run to show")
    wait_for(lambda: page.text("#loss .readout") and page.text("#heat-logit .readout"), "charts and heat maps")


DEMO = "demo/run 1"


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """A server with a finished run of 4 × 8 heads whose layer 1 ran away and was switched by the default policy."""
    server = LiveServer(tmp_path_factory.mktemp("switched"))
    assert server.feed(DEMO, "--act", layers=4, heads=8, steps=1500, rate=120, ranks=2, runaway_step=250).wait(30) == 0
    assert server.state(DEMO)["modes"][1] == "stabilized", server.trimtab("events").stdout
    yield server
    server.stop()


def test_an_empty_server_explains_how_to_start(server, page):
    page.open(server.url + "/")
    wait_for(lambda: not page.run("return document.getElementById('empty').hidden"), "the explanation")
    assert "trimtab run --server 127.0.0.1:7070" in page.text("#start-command")
    assert page.run("return document.getElementById('run-view').hidden")
    page.shoot("empty")
    assert server.feed("first", steps=30).wait(30) == 0
    wait_for(lambda: page.run("return document.getElementById('empty').hidden"), "the run to replace the explanation")
    assert page.console_errors() == []


def test_everything_is_drawn_and_says_what_the_api_says(switched, page):
    run_over(switched, page, DEMO)
    state = switched.state(DEMO)
    for chart in ("#loss", "#grad", "#logit", "#sigma"):
        assert page.painted_colours(f"{chart} canvas") > 5, chart
    for heat in ("#heat-logit", "#heat-repeated"):
        assert page.painted_colours(f"{heat} canvas") > 10, heat
        assert page.painted_colours(f"{heat} canvas.legend") > 20, heat
    assert page.texts("#modes .letter") == ["O", "S", "O", "O"]
    assert state["modes"] == ["observe", "stabilized", "observe", "observe"]
    kinds = page.texts("#events .kind")
    for kind in ("alert", "switch applied", "run started"):
        assert kind in kinds
    assert "1\u202f500" in page.texts("#tiles .value")
    assert page.driver.title == "demo/run 1 · trimtab"
    page.shoot("desktop")
    assert page.console_errors() == []


def test_heat_map_numbers_equal_the_api(switched, page):
    run_over(switched, page, DEMO)
    state = switched.state(DEMO)
    for host, metric in (("#heat-logit", "max_attention_logit"), ("#heat-repeated", "repeated_max_share")):
        values = state["metrics"][metric]["values"]
        canvas = page.driver.find_element(By.CSS_SELECTOR, f"{host} canvas")
        # By keyboard: the first key shows cell (0, 0), the others move.
        canvas.send_keys(Keys.ARROW_RIGHT)
        for layer in range(4):
            for head in range(8):
                label = page.text(f"{host} .readout")
                assert label.startswith(f"layer {layer} (blocks.{layer}.attention), head {head}: "), label
                shown = float(page.run("return document.querySelector(arguments[0]).dataset.value", f"{host} .readout"))
                assert shown == pytest.approx(values[layer * 8 + head], rel=1e-6)
                canvas.send_keys(Keys.ARROW_RIGHT)
            canvas.send_keys(Keys.ARROW_DOWN, *[Keys.ARROW_LEFT] * 7)
        # By pointer: the middle of a cell.
        ActionChains(page.driver).move_to_element(canvas).perform()
        label = page.text(f"{host} .readout")
        assert label.startswith("layer 2") or label.startswith("layer 1"), label
    assert number(page.text("#heat-logit .readout").split(": ")[-1]) > 0


def test_chart_tells_values_at_the_cursor(switched, page):
    run_over(switched, page, DEMO)
    canvas = page.driver.find_element(By.CSS_SELECTOR, "#loss canvas")
    canvas.send_keys(Keys.END)
    tip = wait_for(lambda: page.text("#loss .tip"), "the cursor's values")
    last = switched.get("/api/v1/series", run=DEMO, metric="loss")["series"][0]
    assert tip.splitlines()[0] == "step 1\u202f500"
    assert number(tip.splitlines()[-1]) == pytest.approx(last["values"][-1], abs=5e-4)
    canvas.send_keys(Keys.ESCAPE)
    assert page.run("return document.querySelector('#loss .tip').hidden")


def test_events_open_to_their_evidence_and_stay_open(switched, page):
    run_over(switched, page, DEMO)
    applied = page.driver.find_element(By.CSS_SELECTOR, "#events [data-kind='switch_applied'] summary")
    applied.click()
    assert page.run("return document.querySelector(\"#events [data-kind='switch_applied'] details\").open")
    assert switched.feed("other", steps=10).wait(30) == 0
    wait_for(lambda: len(page.texts("#run-picker option")) == 2, "the other run in the picker")
    assert page.run("return document.querySelector(\"#events [data-kind='switch_applied'] details\").open")
    page.shoot("event-open")


def test_a_phone_needs_no_sideways_scrolling(switched, page):
    run_over(switched, page, DEMO, width=375, height=812, phone=True)
    assert page.run("return document.documentElement.scrollWidth") <= 375
    for selector in (".card", ".tile", "#events", "#run-picker"):
        for left, right in page.run("return [...document.querySelectorAll(arguments[0])].map(e => e.getBoundingClientRect())"
                                    ".map(r => [r.left, r.right])", selector):
            assert left >= 0 and right <= 375.5, selector
    page.shoot("phone")
    page.run("document.documentElement.dataset.theme = 'dark'; window.dispatchEvent(new Event('resize'))")
    assert page.console_errors() == []


def test_the_theme_can_be_changed_and_is_remembered(switched, page):
    run_over(switched, page, DEMO)
    before = page.run("return getComputedStyle(document.body).backgroundColor")
    page.driver.find_element(By.ID, "theme").click()
    after = page.run("return getComputedStyle(document.body).backgroundColor")
    assert after != before
    run_over(switched, page, DEMO)
    assert page.run("return getComputedStyle(document.body).backgroundColor") == after
    page.shoot("other-theme")
    page.run("localStorage.clear()")


@pytest.mark.parametrize("phone", [False, True])
def test_ninety_six_layers_of_128_heads_are_readable(server, page, phone):
    assert server.feed("large", layers=96, heads=128, steps=60).wait(120) == 0
    page.open(server.url + "/", *((375, 812) if phone else (1400, 900)), phone=phone)
    wait_for(lambda: page.text("#heat-logit .readout") and page.text("#logit .readout"), "the heat map")
    assert page.painted_colours("#heat-logit canvas") > 50
    canvas = page.driver.find_element(By.CSS_SELECTOR, "#heat-logit canvas")
    canvas.send_keys(Keys.ARROW_RIGHT, *[Keys.ARROW_DOWN] * 95, *[Keys.ARROW_RIGHT] * 127)
    assert page.text("#heat-logit .readout").startswith("layer 95 (blocks.95.attention), head 127: ")
    shown = float(page.run("return document.querySelector('#heat-logit .readout').dataset.value"))
    assert shown == pytest.approx(server.state("large")["metrics"]["max_attention_logit"]["values"][-1], rel=1e-6)
    assert len(page.texts("#modes li")) == 96
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    page.shoot("large-phone" if phone else "large")
    assert page.console_errors() == []


def test_hostile_names_stay_text(server, page):
    assert server.feed(HOSTILE, "--odd-values", steps=60, layers=2, heads=2).wait(30) == 0
    run_over(server, page)
    assert HOSTILE in page.texts("#run-picker option")[0]
    assert page.run("return window.pwned === undefined && document.querySelectorAll('main img, main script').length === 0")
    assert page.driver.title.startswith(HOSTILE)
    # Chosen by its address, too.
    page.driver.get(server.url + "/#run=" + page.run("return encodeURIComponent(arguments[0])", HOSTILE))
    wait_for(lambda: page.text("#loss .readout"), "the run chosen by address")
    assert page.run("return window.pwned === undefined")
    assert page.console_errors() == []


def test_cells_without_sample_and_infinities_show(server, page):
    assert server.feed("odd", "--odd-values", steps=60, layers=2, heads=4).wait(30) == 0
    run_over(server, page)
    canvas = page.driver.find_element(By.CSS_SELECTOR, "#heat-logit canvas")
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert "head 0: no sample" in page.text("#heat-logit .readout")
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert "head 1: ∞" in page.text("#heat-logit .readout")
    assert "∞" in page.texts("#tiles .value")
    page.shoot("odd-values")


def test_silence_turns_to_a_warning(server, page):
    process = server.feed("quiet", steps=30, hold=120)
    try:
        page.open(server.url + "/")
        wait_for(lambda: page.run("return document.getElementById('age').dataset.level") == "ok", "a fresh age")
        assert "last sample" in page.text("#age")
        wait_for(lambda: page.run("return document.getElementById('age').dataset.level") == "warn", "the warning")
        page.shoot("silent", whole=False)
    finally:
        process.terminate()
        process.wait(10)


def test_a_server_that_goes_away_is_said_and_found_again(server, page):
    assert server.feed("one", steps=30).wait(30) == 0
    run_over(server, page)
    server.stop()
    wait_for(lambda: not page.run("return document.getElementById('banner').hidden"), "the banner")
    assert "does not answer" in page.text("#banner")
    assert page.run("return document.getElementById('age').dataset.level") == "bad"
    page.shoot("server-away", whole=False)
    again = LiveServer(server.folder, listen=server.grpc, http=server.http)
    try:
        wait_for(lambda: page.run("return document.getElementById('banner').hidden"), "the server to be found again")
        assert page.text("#loss .readout")
    finally:
        again.stop()


def test_a_running_run_moves_without_reloading(server, page):
    process = server.feed("moving", wait=False, steps=100000, rate=100)
    try:
        wait_for(lambda: server.get("/api/v1/runs")["runs"], "the run")
        run_over(server, page)
        before = number(page.texts("#tiles .value")[1])
        wait_for(lambda: number(page.texts("#tiles .value")[1]) > before + 100, "later steps")
        assert json.loads(page.run("return JSON.stringify(performance.getEntriesByType('navigation').length)")) == 1
        # Other origins' resources: none.
        assert page.run("return performance.getEntriesByType('resource').every(r => r.name.startsWith(location.origin))")
    finally:
        process.terminate()
        process.wait(10)


def test_landmarks_and_names_for_assistive_technology(switched, page):
    run_over(switched, page, DEMO)
    assert page.run("return [...document.querySelectorAll('canvas:not(.legend)')].every(c => c.getAttribute('aria-label')"
                    " && c.tabIndex === 0 && c.getAttribute('role') === 'img')")
    assert page.run("return document.querySelector('#age').getAttribute('aria-live')") == "polite"
    assert page.run("return document.documentElement.lang") == "en"
    assert page.run("return [...document.querySelectorAll('section')].every(s => s.getAttribute('aria-label') || "
                    "s.getAttribute('aria-labelledby') || s.id === 'empty')")
    labels = page.run("return [...document.querySelectorAll('#modes li')].map(e => e.getAttribute('aria-label'))")
    assert labels[1].startswith("layer 1 (blocks.1.attention): stabilized")
