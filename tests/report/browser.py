"""Headless Chromium, controlled by the DevTools protocol through two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

TIMEOUT_S = 60.0
"""Time limit of an answer in seconds; Chromium starts slowly on a busy machine."""


class Browser:
    """One page of Chromium, with the messages of its console."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        """Errors and warnings, and requests for external resources."""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        inside = f'exec {CHROMIUM} "$@" 3<&{child_in} 4>&{child_out}'
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
                 f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe",
                 "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", inside, "chromium", *words], pass_fds=(child_in, child_out),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        self._number, self._rest, self._events = 0, b"", []  # type: ignore[var-annotated]
        self._session: str | None = None
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self._send("Browser.close")
        self._process.wait(TIMEOUT_S)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def open(self, path: Path, *, width: int, height: int, dark: bool = False):
        """Open a file on a screen of this size."""
        self._send("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._send("Page.navigate", url=path.as_uri())
        self._wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse to a position."""
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a screenshot, by default of the whole page."""
        options = {"captureBeyondViewport": whole}
        if whole:
            size = self._send("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"],
                               "scale": 1}  # fmt: skip
        path.write_bytes(base64.b64decode(self._send("Page.captureScreenshot", **options)["data"]))

    def printed(self, path: Path) -> None:
        """Write the page as PDF on A4 paper."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        path.write_bytes(base64.b64decode(self._send("Page.printToPDF", **options)["data"]))

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            self._note(message)
        assert "error" not in message, (method, message["error"])
        return message["result"]

    def _wait_for(self, event: str) -> None:
        while event not in self._events:
            self._note(self._next())

    def _note(self, event: dict[str, Any]) -> None:
        name, details = event.get("method", ""), event.get("params", {})
        self._events.append(name)
        if name == "Runtime.exceptionThrown":
            self.messages.append(details["exceptionDetails"]["text"])
        elif name == "Runtime.consoleAPICalled":
            self.messages.append(str([arg.get("value") for arg in details["args"]]))
        elif name == "Log.entryAdded":
            self.messages.append(details["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.messages.append(f"requested {url}")

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
