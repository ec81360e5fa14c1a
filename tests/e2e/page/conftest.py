import base64
import shutil
from pathlib import Path

import pytest
from live_server import LiveServer
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--lang=en-US"]


@pytest.fixture
def server(tmp_path):
    one = LiveServer(tmp_path / "server")
    yield one
    one.stop()


class Page:
    """A browser window on the live page."""

    def __init__(self, driver, screenshots: Path):
        self.driver, self.screenshots = driver, screenshots

    def open(self, url, width=1400, height=900, phone=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone})
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector):
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def painted_colours(self, selector):
        """Different colours among the pixels of a canvas; 1 when nothing is drawn on it."""
        return self.run("""
            const c = document.querySelector(arguments[0]);
            const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            const seen = new Set();
            for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
            return seen.size;""", selector)

    def console_errors(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def shoot(self, name, whole=True):
        """A screenshot, of the whole page unless told otherwise."""
        self.screenshots.mkdir(parents=True, exist_ok=True)
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole})["data"]
        path = self.screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(picture))
        return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "/usr/bin/chromium"
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    one = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "/usr/bin/chromedriver"))
    yield one
    one.quit()


@pytest.fixture
def page(driver, tmp_path):
    driver.get("about:blank")
    driver.get_log("browser")  # what an earlier test left
    return Page(driver, tmp_path / "screenshots")
