"""A page in headless Chromium, driven by its DevTools protocol."""

import asyncio
import base64
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)


class Page:
    """An open page.

    Attributes:
        requests: addresses that it asked for, besides its own.
        complaints: what it and the browser wrote to the console: errors and warnings.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._socket, self._numbers = socket, count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come before its answer are noted."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer
            self._note(message)

    async def evaluate(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        done = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        await self.evaluate(
            "new Promise(done => {"
            f"  const look = () => ({condition}) ? done() : setTimeout(look, 20);"
            "  look();"
            "})"
        )

    async def show(self, file: Path, width: int, dark: bool) -> None:
        """Open a file and wait until its script has said that it is ready."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        await self.call("Page.navigate", url=file.absolute().as_uri())
        await self.until("document.documentElement?.dataset.ready !== undefined")

    async def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def screenshot(self, file: Path, whole: bool = True) -> None:
        """Write a picture of the page, or of what is on the screen."""
        taken = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(taken["data"]))

    def _note(self, event: dict[str, Any]) -> None:
        facts = event["params"]
        match event["method"]:
            case "Network.requestWillBeSent":
                url = facts["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    self.requests.append(url)
            case "Runtime.exceptionThrown":
                self.complaints.append(str(facts["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if facts["type"] in ("error", "warning"):
                self.complaints.append(str(facts["args"]))
            case "Log.entryAdded":
                self.complaints.append(str(facts["entry"]))


@asynccontextmanager
async def opened(profile: Path) -> AsyncIterator[Page]:
    """An empty page in a browser of its own.

    Args:
        profile: folder for the browser's files.
    """
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        address = ""
        while not address:
            line = (await process.stderr.readline()).decode()
            assert line, "the browser has ended"
            found = re.search(r"ws://([^/]+)/", line)
            address = found[1] if found else ""
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{address}/json/list") as answer:
                targets = await answer.json()
            (url,) = [one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.kill()
        await process.wait()
