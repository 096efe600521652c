"""The page in a real browser: Debian's Chromium, if it is installed."""

import json
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from report_runs import LINE, ROOMS, SMALL, add_episode, begin, serving

from mufield.io import sealed as files
from mufield.report.data import RunReader, collect
from mufield.report.page import build_page

pytestmark = pytest.mark.slow

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
PICTURE = "return document.getElementById('field').toDataURL()"
TEXT = "return document.getElementById(arguments[0]).textContent"
DARK, LIGHT = "rgb(15, 19, 24)", "rgb(244, 245, 247)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        pytest.skip("chromium or chromedriver is not installed")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def chromium(browser):
    """A browser with an empty profile; JavaScript runs in it by `execute_script`."""
    # A page that watched a run of the last test complains that its server is gone.
    browser.get("about:blank")
    browser.get_log("browser")
    return browser


@pytest.fixture(scope="module")
def report(tmp_path_factory, rooms, corridor):
    """A file with thirty episodes of the four rooms, and a short run on a line."""
    place = tmp_path_factory.mktemp("report")
    first, second = begin(place / "rooms", ROOMS), begin(place / "line", LINE)
    for number in range(1, 31):
        add_episode(first, rooms, number, notes=("a note <i>of</i> the episode",))
    add_episode(second, corridor, 1)
    page = place / "page.html"
    page.write_text(build_page(collect([RunReader(first), RunReader(second)])), encoding="utf-8")
    return page


@pytest.fixture
def page(chromium, report):
    chromium.get(report.as_uri())
    until(lambda: chromium.execute_script(TEXT, "step-text"))
    return chromium


def until(check, seconds=20.0):
    """Waits until a check holds; returns what it gave."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def press(driver, *keys, on="body"):
    from selenium.webdriver.common.keys import Keys

    element = driver.find_element("css selector", on)
    for key in keys:
        element.send_keys(getattr(Keys, key, key))


def errors(driver):
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_file_opens_quickly_and_without_errors(page):
    timing = "const n = performance.getEntriesByType('navigation')[0]; return n.loadEventEnd"
    times = [page.execute_script(timing)]
    for _ in range(2):  # several, as other tests may keep the computer busy
        page.refresh()
        times.append(page.execute_script(timing))
    assert 0 < min(times) < 2000
    assert errors(page) == []
    assert page.title == "rooms, line – mufield"
    charts = page.find_elements("css selector", ".chart svg[role=img]")
    charts = [chart for chart in charts if chart.is_displayed()]
    assert len(charts) == 9
    assert all("no value" not in chart.get_attribute("aria-label") for chart in charts)
    assert "a note <i>of</i> the episode" in page.execute_script(TEXT, "notes-list")


@pytest.mark.parametrize("judged", [True, False])
def test_a_judged_run_has_a_second_curve(chromium, tmp_path, rooms, judged):
    run = begin(tmp_path / "run", ROOMS)
    add_episode(run, rooms, 1)
    for number in (2, 3):
        figures = {"greedy": 79.0, "greedy_expected": 79.5} if judged else {}
        add_episode(run, rooms, number, **figures)
    page = tmp_path / "page.html"
    page.write_text(build_page(collect([RunReader(run)])), encoding="utf-8")
    chromium.get(page.as_uri())
    until(lambda: chromium.execute_script(TEXT, "step-text"))
    legend = chromium.execute_script("return document.body.innerText")
    assert ("realised without optimism" in legend) == judged
    boxes = chromium.find_elements("css selector", "#quantities input")
    assert len(boxes) == (4 if judged else 3)
    heads = chromium.execute_script(TEXT, "rows")
    assert ("greedy expected" in heads) == judged
    assert errors(chromium) == []


def test_hostile_names_are_shown_and_do_nothing(chromium, tmp_path, small_rooms):
    """In the directory's name, the label, versions, notes and names of constraints."""
    evil = "<img src=x onerror=window.owned=1>"
    worse = f"</script><script>window.owned=2</script>{evil}\u2028${{window.owned=3}}'\"`<!--"
    run = begin(tmp_path / evil, replace(SMALL, label=worse))
    files.write_json(run / "versions.json", {worse: worse, "jax": worse})
    for number in (1, 2):
        margins = {"margins": {worse: [0.5, 0.25, None]}, "margin": 0.25, "assured": 0.2}
        add_episode(run, small_rooms, number, notes=(worse,), **margins)
    page = tmp_path / "page.html"
    page.write_text(build_page(collect([RunReader(run)])), encoding="utf-8")
    with serving(run) as server:
        for address in (page.as_uri(), server.url):
            chromium.get(address)
            until(lambda: chromium.execute_script(TEXT, "step-text"))
            assert worse.split("\u2028")[0] in chromium.execute_script(TEXT, "notes-list")
            assert chromium.title.startswith(evil)
            assert chromium.execute_script("return window.owned") is None
            assert chromium.find_elements("css selector", "img") == []
            assert errors(chromium) == []


def test_a_run_with_limits_shows_its_margins_by_move(chromium, run, small_rooms, tmp_path):
    for number, margins in ((3, [0.5, None, 0.25]), (4, [0.5, 0.25, -0.1])):
        figures = {"margin": min(m for m in margins if m is not None), "assured": 0.2}
        add_episode(run, small_rooms, number, margins={"a <b>door</b>": margins}, **figures)
    page = tmp_path / "page.html"
    page.write_text(build_page(collect([RunReader(run)])), encoding="utf-8")
    chromium.get(page.as_uri())
    until(lambda: chromium.execute_script(TEXT, "step-text"))

    def described():
        return chromium.find_element("css selector", "#limits-chart svg").get_attribute(
            "aria-label"
        )

    assert described() == "Margins by move: a <b>door</b> −10 % in move 3"
    assert "every move of episode 4." in chromium.execute_script(TEXT, "limits")
    press(chromium, "HOME", on="#limits-chart svg")
    tip = chromium.execute_script("return document.querySelector('#limits-chart .tip').textContent")
    assert tip == "move 1a <b>door</b>50 %the limit0 %"
    press(chromium, "p")
    until(lambda: described().endswith("25 % in move 3"))
    titles = chromium.find_elements("css selector", "#diagnostics-charts h3")
    assert "Constraints" in [title.text for title in titles]
    assert "assured" in chromium.execute_script(TEXT, "rows")
    press(chromium, "p")  # an episode without limits
    until(lambda: not chromium.find_element("id", "limits").is_displayed())
    assert errors(chromium) == []


def test_slider_keys_and_selectors_move_the_picture(page):
    def step():
        return page.execute_script(TEXT, "step-text")

    assert step() == "step 20 of 20"  # where there is something to see
    pictures = [page.execute_script(PICTURE)]
    press(page, "ARROW_LEFT", "ARROW_LEFT")
    assert step() == "step 18 of 20"
    pictures.append(page.execute_script(PICTURE))
    press(page, "ARROW_LEFT", "HOME", on="#step")  # the slider's own keys
    assert step() == "step 0 of 20"
    pictures.append(page.execute_script(PICTURE))
    press(page, "p")
    until(lambda: page.execute_script(PICTURE) != pictures[-1])
    episode = "return document.getElementById('episode').value"
    assert page.execute_script(episode) == "29"
    press(page, "n")
    assert page.execute_script(episode) == "30"
    press(page, "r")
    until(lambda: step().endswith("of 4"))
    pictures.append(page.execute_script(PICTURE))
    assert len(set(pictures)) == len(pictures)
    assert errors(page) == []


def test_space_plays_and_pauses(page):
    playing = "return document.getElementById('play').getAttribute('aria-pressed')"
    press(page, "SPACE")
    assert page.execute_script(playing) == "true"
    ends = ("step 0 of 20", "step 20 of 20")
    until(lambda: page.execute_script(TEXT, "step-text") not in ends)
    press(page, "SPACE")
    assert page.execute_script(playing) == "false"
    stopped = page.execute_script(TEXT, "step-text")
    time.sleep(0.5)
    assert page.execute_script(TEXT, "step-text") == stopped
    assert page.execute_script("return window.scrollY") == 0  # the key did not scroll


def test_curves_tell_the_nearest_episode_and_choose_it(page):
    tip = "return document.querySelector('#learning-chart .tip').textContent"
    press(page, "HOME", "ARROW_RIGHT", "ARROW_RIGHT", on="#learning-chart svg")
    assert page.execute_script(tip).startswith("episode 3")
    assert "66.67" in page.execute_script(tip)  # 80 - 40 / 3
    press(page, "ENTER", on="#learning-chart svg")
    assert page.execute_script("return document.getElementById('episode').value") == "3"
    from selenium.webdriver import ActionChains

    chart = page.find_element("css selector", "#learning-chart svg")
    ActionChains(page).move_to_element_with_offset(
        chart, chart.size["width"] // 2 - 20, 0
    ).perform()
    assert page.execute_script(tip).startswith("episode 30")


def test_a_flow_that_cannot_be_drawn_says_why(chromium, run, tmp_path):
    config = json.loads((run / "config.json").read_text()) | {"imports": "gone.py"}
    (run / "config.json").write_text(json.dumps(config))
    file = tmp_path / "page.html"
    file.write_text(build_page(collect([RunReader(run)])), encoding="utf-8")
    chromium.get(file.as_uri())
    until(lambda: "cannot import" in chromium.execute_script(TEXT, "flow-message"))
    assert tiles(chromium).startswith("2 of 5")


def test_focus_can_be_seen(page):
    press(page, "TAB", "TAB")
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert page.execute_script("return document.activeElement.id") == "theme"
    assert page.execute_script(outline) == "solid"


def test_light_and_dark_follow_the_system_and_the_button(page):
    ground = "return getComputedStyle(document.body).backgroundColor"

    def prefer(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    prefer("dark")
    assert page.execute_script(ground) == DARK
    prefer("light")
    assert page.execute_script(ground) == LIGHT
    button = page.find_element("id", "theme")
    seen = []
    for _ in range(3):
        button.click()
        seen.append((button.text, page.execute_script(ground)))
    assert seen == [("Theme: light", LIGHT), ("Theme: dark", DARK), ("Theme: auto", LIGHT)]


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_wider_than_the_window(page, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    until(lambda: page.execute_script("return innerWidth") == width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def opened(driver, *directories, port=0):
    with serving(*directories, port=port) as server:
        driver.get("about:blank")
        driver.get_log("browser")  # what an earlier page complained of
        driver.get(server.url)
        until(lambda: driver.execute_script(TEXT, "status") == "live")
        yield server


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (599.4, "9 min 59 s"),
        (1619, "27 min"),
        (3584, "1 h 0 min"),
        (35_939, "9 h 59 min"),
        (36_000, "10 h"),
    ],
)
def test_times_fit_into_their_tile(chromium, run, seconds, text):
    (run / "timings.jsonl").write_text(f'{{"episode": 1, "fit": {seconds}}}\n')
    with opened(chromium, run):
        until(lambda: f"{text}time" in tiles(chromium))
        assert chromium.execute_script(
            "const tile = [...document.querySelectorAll('.tile b')].at(-1);"
            "tile.parentElement.style.width = '156px';"
            "return tile.scrollWidth <= tile.clientWidth"
        )


def tiles(driver):
    return driver.execute_script(TEXT, "summary")


def test_new_episodes_appear_within_two_seconds(chromium, run, small_rooms):
    with opened(chromium, run):
        until(lambda: chromium.execute_script(TEXT, "step-text") == "step 3 of 3")
        delays = []
        for number in (3, 4, 5):
            picture = chromium.execute_script(PICTURE)
            add_episode(run, small_rooms, number)
            began = time.monotonic()
            until(lambda wanted=f"{number} of 5": tiles(chromium).startswith(wanted))
            until(lambda old=picture: chromium.execute_script(PICTURE) != old)
            delays.append(time.monotonic() - began)
        assert min(delays) < 2.0  # of several, as other tests may keep the computer busy
        assert errors(chromium) == []


def test_the_page_outlives_its_server(chromium, run, small_rooms):
    with opened(chromium, run) as server:
        port = server.server_address[1]
    until(lambda: "waiting" in chromium.execute_script(TEXT, "status"))
    add_episode(run, small_rooms, 3)
    with serving(run, port=port):
        until(lambda: chromium.execute_script(TEXT, "status") == "live")
        until(lambda: tiles(chromium).startswith("3 of 5"))
        until(lambda: chromium.execute_script(TEXT, "step-text") == "step 3 of 3")
        add_episode(run, small_rooms, 4)
        until(lambda: tiles(chromium).startswith("4 of 5"))


def test_the_page_waits_for_a_run_and_follows_one_that_begins_anew(chromium, tmp_path, small_rooms):
    run = tmp_path / "run"
    with opened(chromium, run):
        assert "no run here yet" in chromium.execute_script(TEXT, "messages")
        begin(run, SMALL)
        until(lambda: "no episode yet" in chromium.execute_script(TEXT, "messages"))
        add_episode(run, small_rooms, 1)
        until(lambda: tiles(chromium).startswith("1 of 5"))
        assert chromium.execute_script(TEXT, "messages") == ""
        shutil.rmtree(run)
        until(lambda: tiles(chromium).startswith("0 of ?"))
        until(lambda: not chromium.find_element("id", "field").is_displayed())
        assert errors(chromium) == []
