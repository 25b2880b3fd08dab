"""A headless Chromium driven over its own pipe: for the tests of pages, and for pictures of them.

Chromium's DevTools protocol as JSON messages over two pipes (`--remote-debugging-pipe`), without a
library or a port. What a page logs and asks the network for is kept.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_TIMEOUT_S = 60.0


def executable() -> str | None:
    """Where Chromium is; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One open page. `messages` are what it logged, `requests` the addresses it asked for."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._number, self._rest, self._session = 0, b"", ""
        self.messages: list[str] = []
        self.requests: list[str] = []
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scale: float = 1,
    ) -> None:
        """Loads a file and waits until it has drawn itself."""
        self.resize(width, height, scale)
        theme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", features=theme)
        self._send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; of a promise, what it comes to."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, within_s: float = 30.0) -> None:
        """Returns when an expression is true."""
        until = time.monotonic() + within_s
        while not self.run(expression):
            if time.monotonic() > until:
                raise TimeoutError(f"never true: {expression}; logged: {self.messages}")
            time.sleep(0.05)

    def settle(self) -> None:
        """Returns when what was asked for is drawn: scrolled, painted, told to the page."""
        frame = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
        self.run(f"{frame}.then(() => 0)")

    def key(self, name: str) -> None:
        """Presses a key."""
        text = {"text": name} if len(name) == 1 else {}
        self._send("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self._send("Input.dispatchKeyEvent", type="keyUp", key=name)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """Moves, presses or releases the mouse: "mouseMoved", "mousePressed", "mouseReleased"."""
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        buttons = 0 if kind == "mouseReleased" else 1 if held else 0
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, buttons=buttons, **held)

    def picture(self, path: Path, selector: str | None = None) -> None:
        """A PNG of the whole page, or of one element of it."""
        box = self.run(
            "(() => { const box = "
            + (f"document.querySelector({json.dumps(selector)})" if selector else "document.body")
            + ".getBoundingClientRect(); return [box.left + scrollX, box.top + scrollY, box.width, "
            "box.height]; })()"
        )
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
        shot = self._send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _TIMEOUT_S
        while True:
            answer = self._receive(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer.get("result", {})
            self._note(answer)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select([self._read], [], [], max(until - time.monotonic(), 0))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError("Chromium does not answer")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, told = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            said = " ".join(str(part.get("value", part)) for part in told["args"])
            self.messages.append(f"{told['type']}: {said}")
        elif method == "Runtime.exceptionThrown":
            self.messages.append(f"exception: {told['exceptionDetails']}")
        elif method == "Log.entryAdded":
            self.messages.append(f"{told['entry']['level']}: {told['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])


@contextmanager
def browser() -> Generator[Browser]:
    """A Chromium of its own, with a fresh profile, ended at the end."""
    path = executable()
    if path is None:
        raise FileNotFoundError("no Chromium is installed: apt-get install chromium")
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()

    def wire() -> None:
        # Chromium reads from 3 and writes to 4. Both are moved out of the way first.
        high = os.dup(their_in), os.dup(their_out)
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    with tempfile.TemporaryDirectory(prefix="ratrain-browser-") as profile:
        process = subprocess.Popen(
            [path, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=wire,
            env={**os.environ, "HOME": profile},
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)
        try:
            yield Browser(process, our_in, our_out)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(our_in)
            os.close(our_out)
            time.sleep(0.2)  # its helpers let go of the profile
