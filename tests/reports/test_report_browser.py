"""The html page in a real browser: it works, complains of nothing, and no name runs."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from recording_builders import recording, recording_hostile
from report_builders import HOSTILE, hostile, mixed
from run_builders import run_different, run_hostile

from nndiff.reports import ReportOptions, get_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium here")


def opened(page: str, folder: Path) -> tuple[str, list[str]]:
    """Return the document after its scripts ran, and what the console said."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    command = [
        str(BROWSER),
        *flags,
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=2000",
        "--dump-dom",
    ]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def title(document: str) -> str:
    found = re.search("<title>(.*?)</title>", document, re.DOTALL)
    return html.unescape(found[1]) if found else ""


def test_the_script_runs_and_the_console_is_silent(tmp_path: Path) -> None:
    document, console = opened(get_report("html").render(mixed(), ReportOptions()), tmp_path)
    assert console == []
    assert "9 of 9 shown" in document
    assert document.count("<button") == 10


def test_no_hostile_name_runs(tmp_path: Path) -> None:
    document, console = opened(get_report("html").render(hostile(), ReportOptions()), tmp_path)
    assert console == []
    assert title(document).startswith("nndiff: different: <script>document.title='pwned'</script>")
    assert f"{len(HOSTILE)} of {len(HOSTILE)} shown" in document
    assert "<img" not in document


def test_sorting_and_filtering(tmp_path: Path) -> None:
    page = get_report("html").render(mixed(), ReportOptions())
    drive = """<script>
      document.querySelectorAll("th button")[1].click();
      const search = document.querySelector("input[type=search]");
      search.value = "LAYERS."; search.dispatchEvent(new Event("input"));
    </script></body>"""
    # the policy would stop this script of ours too, and rightly so
    page = re.sub("<meta http-equiv.*?>", "", page).replace("</body>", drive)
    document, console = opened(page, tmp_path)
    assert console == []
    assert "4 of 9 shown" in document
    rows = re.findall(r'<tr data-verdict="[^"]*" data-search="([^" ]*)', document)
    assert rows.index("encoder.layers.9.linear.weight") < rows.index("encoder.layers.10.linear.weight")
    assert rows[0] == "decoder.embed.weight"


@pytest.mark.parametrize("candidates", [1, len(HOSTILE)])
def test_the_page_of_a_recording(candidates: int, tmp_path: Path) -> None:
    result = recording() if candidates == 1 else recording_hostile()
    document, console = opened(get_report("html").render(result, ReportOptions()), tmp_path)
    assert console == []
    assert "pwned" not in title(document).partition("<script>")[0]
    assert document.count('class="plot"') == (1 if candidates == 1 else 0)  # one layer is no plot
    assert document.count('class="tools"') == 1 + 2 * candidates
    assert "<img" not in document


@pytest.mark.parametrize("candidates", [1, len(HOSTILE)])
def test_the_page_of_training_runs(candidates: int, tmp_path: Path) -> None:
    result = run_different() if candidates == 1 else run_hostile()
    document, console = opened(get_report("html").render(result, ReportOptions()), tmp_path)
    assert console == []
    assert "pwned" not in title(document).partition("<script>")[0]
    plots = 6 if candidates == 1 else 4 * candidates  # without an accuracy two panels have no data
    assert document.count('class="plot"') == plots
    assert document.count('class="tools"') == candidates
    assert "<img" not in document
    if candidates == 1:
        assert "40 of 40 shown" in document


def test_only_mismatches(tmp_path: Path) -> None:
    page = get_report("html").render(recording(), ReportOptions())
    drive = """<script>
      const only = document.querySelector("input.only");
      only.checked = true; only.dispatchEvent(new Event("change"));
    </script></body>"""
    page = re.sub("<meta http-equiv.*?>", "", page).replace("</body>", drive)
    document, console = opened(page, tmp_path)
    assert console == []
    assert "9 of 14 shown" in document
    assert "4 of 4 shown" in document
    assert "28 of 28 shown" in document


def test_the_policy_stops_what_escaping_might_miss(tmp_path: Path) -> None:
    page = get_report("html").render(mixed(), ReportOptions())
    attack = "<script>document.title='pwned'</script>"
    document, console = opened(page.replace("<h1", attack + "<h1"), tmp_path)
    assert title(document) != "pwned"
    assert console, "a stopped script is said on the console"


def test_the_checks_can_fail(tmp_path: Path) -> None:
    document, console = opened("<title>a</title><script>document.title='pwned'; no_such()</script>", tmp_path)
    assert title(document) == "pwned"
    assert console
