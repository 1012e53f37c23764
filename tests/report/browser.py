"""A headless Chromium, spoken to by its own protocol through two pipes."""

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

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")

PATIENCE = 60.0
"""Seconds for an answer; starting takes some on a busy machine."""


class Browser:
    """One page, and what its console said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        """Errors and warnings, and what was asked for from elsewhere."""
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_it, self._out = os.pipe()
        self._in, from_it = os.pipe()
        inside = f'exec {FOUND} "$@" 3<&{to_it} 4>&{from_it}'
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
                 f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe",
                 "about:blank"]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", inside, "chromium", *words], pass_fds=(to_it, from_it),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(to_it)
        os.close(from_it)
        self._number, self._rest, self._events = 0, b"", []  # type: ignore[var-annotated]
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        self._ask("Browser.close")
        self._process.wait(PATIENCE)
        os.close(self._in)
        os.close(self._out)
        self._profile.cleanup()

    def open(self, path: Path, *, width: int, height: int, dark: bool = False):
        """Show a file, on a screen of that size."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._ask("Page.navigate", url=path.as_uri())
        self._wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, of all of the page."""
        options = {"captureBeyondViewport": whole}
        if whole:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"],
                               "scale": 1}  # fmt: skip
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot", **options)["data"]))

    def printed(self, path: Path) -> None:
        """On paper."""
        options = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        path.write_bytes(base64.b64decode(self._ask("Page.printToPDF", **options)["data"]))

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self._number:
            self._note(found)
        assert "error" not in found, (method, found["error"])
        return found["result"]

    def _wait_for(self, event: str) -> None:
        while event not in self._events:
            self._note(self._next())

    def _note(self, event: dict[str, Any]) -> None:
        name, given = event.get("method", ""), event.get("params", {})
        self._events.append(name)
        if name == "Runtime.exceptionThrown":
            self.said.append(given["exceptionDetails"]["text"])
        elif name == "Runtime.consoleAPICalled":
            self.said.append(str([one.get("value") for one in given["args"]]))
        elif name == "Log.entryAdded":
            self.said.append(given["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            url = given["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.said.append(f"asked for {url}")

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)
