"""What the tests of web pages stand on: a small study, a server in a thread, and a real Chromium where there is one.

Screenshots go to the folder that ENERGYLM_SCREENSHOTS names, else to the test's own temporary folder.
"""

import base64
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TAB, ENTER, CONTROL, RIGHT = "\ue004", "\ue007", "\ue009", "\ue014"
PHONE, DESK = (390, 844), (1280, 900)
ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run", "--mute-audio"),
    *("--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
HOSTILE = 'A clerk wrote <script>document.title = "stolen"</script> & "left" <b>early</b>'
STORY = (
    "The council met at dusk, as it had done every year since the bridge was built, and nobody spoke of the water that "
    "had come up to the third step of the mill. The clerk counted the lamps. Seven were lit and two were broken. "
    "“We have a letter from the harbour,” said the old miller, and he put it on the table,"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|cls|>{{ message['role'] }}: {{ message['content'] }}<|sep|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|cls|>assistant: {% endif %}"
)
CHAT = [{"role": "user", "content": "the clerk counts"}, {"role": "assistant", "content": "boats"}]
ENDINGS = (" before the tide came in.", " and nobody asked why.", " as the old miller had done.", " under seven lamps.")


def known(number: int, kind: str) -> Any:
    from energylm.apps.study.design import Known, item_id

    return Known(
        id=item_id("toy", kind, number),
        prefix=f"{number} of {kind}: {STORY}",
        real=f" and agreed to mend the bridge{ENDINGS[number % 4]}",
        wrong=f" bridge the the and boats of mend{ENDINGS[number % 4]}",
        wrong_source="shuffled",
    )


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Path]:
    """`make_study(pairs=6, qualification=4, **design)` writes a study of two models, A and B, into a folder."""
    from energylm.apps.study.design import Pair, StudyDesign, item_id, write_study

    def make(name: str = "study", *, pairs: int = 6, qualification: int = 3, **design: Any) -> Path:
        chosen = StudyDesign.checked({"qualification": {"items": qualification}, "seed": 5, **design})
        members = [
            Pair(
                id=item_id("toy", "pair", number),
                prefix=HOSTILE if number == 0 else f"{number} of pair: {STORY}",
                first=f" and forgot it there{ENDINGS[number % 4]}",
                second=f" and forgot forgot it{ENDINGS[number % 4]}",
                first_model="A",
                second_model="B",
            )
            for number in range(pairs)
        ]
        write_study(
            tmp_path / name,
            design=chosen,
            models=("A", "B"),
            comparisons=[("A", "B")],
            pairs=members,
            qualification=[known(number, "qualification") for number in range(qualification)],
            checks=[known(number, "check") for number in range(chosen.checks_needed(pairs))],
            origin={"made": "up"},
        )
        return tmp_path / name

    return make


@pytest.fixture
def energylm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Call the program as a person types it; its exit code, stdout and stderr."""
    from energylm.cli.main import main

    def run(*arguments: Any) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["energylm", *map(str, arguments)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return int(leaving.value.code or 0), *capsys.readouterr()

    return run


def completion_task(**values: Any) -> Any:
    """A task of the server's; what is not said is the language model alone, untruncated."""
    from energylm.apps.serve.completer import CompletionTask

    plain = {"temperature": 1.0, "top_p": 1.0, "top_k": None, "proposals": None, "weights": "paper"}
    few = {"model": "tiny", "prompts": ("x",), "n": 1, "max_new_tokens": 5, "stop": (), "seed": 0}
    return CompletionTask(**(few | plain | {"logprobs": None, "details": False} | values))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The application on a free port, in a thread; gives its address."""
    import uvicorn

    config = uvicorn.Config(app, port=0, log_level="critical", access_log=False, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)


class Browser:
    """A headless Chromium with a profile of its own, and what the tests do with it."""

    def __init__(self, screenshots: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.implicitly_wait(0)
        self.screenshots = screenshots
        self.size(*DESK)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        phone = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        media = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.find(selector).get_property("textContent").strip()

    def until(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        """What `condition` gives once it is true; pages change under our hands, so what has gone is looked up again."""
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

        end = time.monotonic() + seconds
        while True:
            try:
                if value := condition():
                    return value
            except (NoSuchElementException, StaleElementReferenceException):
                pass
            assert time.monotonic() < end, f"waited {seconds} seconds in vain at {self.driver.title!r}"
            time.sleep(0.02)

    def keys(self, *keys: str, control: bool = False) -> None:
        """Keys for whatever has the focus."""
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver, duration=0)
        if control:
            chain.key_down(CONTROL)
        chain.send_keys(*keys)
        if control:
            chain.key_up(CONTROL)
        chain.perform()

    def picture(self, name: str, *, whole: bool = False) -> None:
        options = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)["data"]
        (self.screenshots / f"{name}.png").write_bytes(base64.b64decode(data))

    def pictures(self, name: str) -> None:
        """The page as it is on a phone and on a desk, by day and by night."""
        for device, size in (("phone", PHONE), ("desk", DESK)):
            for dark in (False, True):
                self.size(*size, dark=dark)
                self.picture(f"{name}-{device}-{'dark' if dark else 'light'}")
        self.size(*DESK)

    def is_wider_than_the_phone(self) -> bool:
        """Whether a phone's reader would have to scroll sideways."""
        self.size(*PHONE)
        width = self.driver.execute_script("return document.documentElement.scrollWidth")
        self.size(*DESK)
        return width > PHONE[0]

    def complaints(self) -> list[str]:
        """What the page's console holds since the last time: errors of scripts, violations of the content policy."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def close(self) -> None:
        if self.driver.service.process is not None and self.driver.service.process.poll() is None:
            self.driver.quit()


@pytest.fixture(scope="session")
def start_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Browser]]:
    """A new browser with an empty profile at every call."""
    pytest.importorskip("selenium", reason="selenium drives the browser; pip install 'energylm[dev]'")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here; on Debian: apt-get install chromium chromium-driver")
    chosen = os.environ.get("ENERGYLM_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    started: list[Browser] = []

    def start() -> Browser:
        started.append(Browser(folder))
        return started[-1]

    yield start
    for browser in started:
        browser.close()


@pytest.fixture(scope="session")
def browser(start_browser: Callable[[], Browser]) -> Browser:
    return start_browser()
