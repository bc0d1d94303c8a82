"""Headless Chromium of Debian's packages (`make browser`), driven over its debugging pipe.

Messages are JSON ended by a zero byte, written to its file descriptor 3 and read from 4.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: run `make browser` to install it")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT = 60.0
# Gives Chromium the pipes as descriptors 3 and 4, whatever numbers they had. (A fork here would alarm JAX.)
ARRANGE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A Chromium with one page, spoken to in its debugging protocol."""

    def __init__(self, profile):
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        command = [sys.executable, "-c", ARRANGE, str(to_read), str(to_write), CHROMIUM, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}"], pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._count, self._replies, self.events = 0, {}, []
        self._news = threading.Condition()
        self._is_open = True
        threading.Thread(target=self._listen, daemon=True).start()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    _session = None

    def _listen(self):
        rest = b""
        while block := os.read(self._read, 65536):
            *messages, rest = (rest + block).split(b"\0")
            with self._news:
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._replies[message["id"]] = message
                    else:
                        self.events.append(message)
                self._news.notify_all()
        with self._news:
            self._is_open = False
            self._news.notify_all()

    def call(self, method, **parameters):
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        self.wait(lambda: number in self._replies)
        reply = self._replies.pop(number)
        assert "error" not in reply, reply
        return reply["result"]

    def wait(self, is_there):
        end = time.monotonic() + TIMEOUT
        with self._news:
            while not is_there():
                assert self._is_open, "Chromium ended"
                assert self._news.wait(end - time.monotonic()), "Chromium does not answer"

    def named(self, method):
        return [event["params"] for event in self.events if event["method"] == method]

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(lambda: self.named("Page.loadEventFired"))

    def evaluate(self, script):
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def set_size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._write)

    def screenshot(self, path, *, is_whole=True):
        """The page as a PNG: all of it, or what the window shows."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole, **self._clip(is_whole))["data"]
        path.write_bytes(base64.b64decode(data))

    def _clip(self, is_whole):
        if not is_whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def set_dark(self, is_dark):
        value = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def troubles(self, page):
        """What a quiet page has none of: exceptions, console messages, log entries, requests other than for itself."""
        asked = [event["request"]["url"] for event in self.named("Network.requestWillBeSent")]
        others = [url for url in asked if not url.startswith("data:") and url != page.resolve().as_uri()]
        events = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [*(event for name in events for event in self.named(name)), *others]
