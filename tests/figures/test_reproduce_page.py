"""`bnrank reproduce`: the page, and what the command says."""

import json
import re
import signal
import time

import numpy as np
import pytest

import bnrank
from bnrank import figures
from bnrank.figures.harness import gallery, requirements
from bnrank.figures.harness.claims import Claim
from bnrank.figures.harness.figure import Figure, Outcome
from bnrank.reporting.packing import unpacked

from .reproduce_common import (
    FAILED,
    PASSED,
    Settings,
    change,
    drawn,
    page_of,
    part_of,
    planted,
    raises,
    rich_outcome,
    row_of,
    words,
)

pytestmark = pytest.mark.usefixtures("small_pictures")


def test_the_page_has_every_figure_and_a_subset_loses_none(tmp_path, plant):
    a = planted("a", lambda *_, **__: rich_outcome())
    plant(a, planted("b"), planted("c", raises), planted("d"))
    for names in (["a"], ["b"], ["c"]):
        figures.reproduce(names, tmp_path, progress=False)
    page = page_of(tmp_path)
    assert "1 fails 2 of 3" in row_of(page, "a")
    assert "all pass 1 of 1 under 1 s" in row_of(page, "b")
    assert "failed –" in row_of(page, "c")
    assert "not run yet – –" in row_of(page, "d")
    assert all(f'href="#{id}"' in page and f'id="{id}" ' in page for id in "ABCD")
    part = part_of(page, "a")
    for text in (
        "A paper",
        "What a shows.",
        "not a number",
        "bnrank reproduce A",
        "width",
        "data",
        "Rows",
        f"bnrank {bnrank.__version__}",
    ):
        assert text in words(part), text
    places = [part.index(text) for text in ("<img", "Result in the source", "Claims: ", "To run this figure")]
    assert places == sorted(places)
    assert part.count("data:image/svg+xml") == 1
    assert part.count("data:image/png") == 2
    assert all(len(alt) > 10 for alt in re.findall(r'<img[^>]*alt="([^"]*)"', part.split("<details>")[0]))
    assert "no such luck" in part_of(page, "c")
    assert "Not run yet." in part_of(page, "d")
    assert [int(level) for level in re.findall("<h([1-6])", page[: page.index('id="bnrank-data"')])][:3] == [1, 2, 2]
    ids = re.findall(r"\bid=\"?([\w-]+)", page[: page.index('id="bnrank-data"')])
    assert len(ids) == len(set(ids))
    data = json.loads(unpacked(re.search(r'id="bnrank-data">(.*?)</script>', page, re.S)[1]))
    assert set(data["views"]) == {"A-2-history", "A-2-profile", "A-3-figure-2"}
    assert all(f'id="{key}"' in part for key in data["views"])


def test_the_header_adds_up_what_is_of_this_version_only(tmp_path, plant):
    def taking(seconds, *claims):
        return lambda *_, **__: (time.sleep(seconds), Outcome("", claims))[1]

    old = planted("a", taking(1.2, PASSED, PASSED, FAILED, PASSED))
    undecided = Claim("who knows", None, 1.0, "1")
    plant(old, planted("b", taking(0, PASSED, FAILED, undecided)), planted("c"), planted("d", raises), planted("e"))
    figures.reproduce(["a", "b", "c", "d"], tmp_path, progress=False)
    page = words(page_of(tmp_path))
    assert "3 of 5 figures have run, in 1 s together; 5 of 8 claims reproduced. Small networks" in page
    change(old[0], width=4)
    figures.reproduce("b", tmp_path, progress=False)
    page = words(page_of(tmp_path))
    assert (
        "2 of 5 figures have run, in under 1 s together; 2 of 4 claims reproduced. Not counted: 1 of other settings"
        in page
    )
    assert "1 fails, 1 not decided 1 of 3" in row_of(page_of(tmp_path), "b")


def test_a_figure_without_claims_does_not_pass(tmp_path, plant, command):
    plant(planted("a", lambda *_, **__: Outcome("A")))
    code, out, _ = command("--quiet")
    assert code == 1
    assert re.search(r"A +a-name +no claims +–", out)
    page = page_of(tmp_path / "reproduction")
    assert "no claims – under 1 s" in row_of(page, "a")
    assert "mark good" not in page[page.index("<tbody>") :]


def test_claims_are_shown_whole_and_what_is_not_a_number_as_such(tmp_path, plant):
    plant(planted("a", lambda *_, **__: rich_outcome()))
    figures.reproduce("all", tmp_path, progress=False)
    part = part_of(page_of(tmp_path), "a")
    for caption in ("Claims: 2 of 3 pass", "Claims: 0 of 1 pass"):
        assert f'<div class="scroll whole" tabindex="0" role="region" aria-label="{caption}">' in part
    assert "not a number NaN &lt; 1" in words(part)
    assert "<figcaption>L</figcaption>" in part
    assert 'alt="A, a in words: L"' in part


def test_the_page_says_how_to_run_a_figure_alone_and_what_paper_scale_has(tmp_path, plant, command):
    made = planted("a")
    for scale in figures.SCALES:
        change(made[0], scale, depths=(1, 2), end=np.inf)
    plant(made, planted("b", printed=False))
    command("--quiet")
    page = page_of(tmp_path / "reproduction")
    assert "<code>bnrank reproduce A</code>" in page
    assert f"bnrank {bnrank.__version__}" in page
    assert "Result in the source" in part_of(page, "a")
    assert "Expected result" in part_of(page, "b")
    assert re.search(
        r"setting value paper scale +scale quick – width 3 100 depths 1, 2 – end ∞ –", words(part_of(page, "a"))
    )
    command("--quiet", "--out", "my folder", "--scale", "paper")
    page = (tmp_path / "my folder" / "paper" / "index.html").read_text()
    assert "<code>bnrank reproduce A --scale paper --out &#39;my folder&#39;</code>" in page
    assert "paper scale</th>" not in page


def test_the_page_is_there_from_the_start_and_written_after_every_figure(tmp_path, plant):
    seen = []

    def reads(*_, **__):
        seen.append(row_of(page_of(tmp_path), "a"))
        return Outcome("B", (PASSED,))

    def reads_first(*_, **__):
        seen.append(row_of(page_of(tmp_path), "b"))
        return Outcome("A", (PASSED,))

    plant(planted("a", reads_first), planted("b", reads))
    figures.reproduce("all", tmp_path, progress=False)
    assert "not run yet" in seen[0]
    assert "all pass" in seen[1]


def test_text_of_figures_is_escaped(tmp_path, plant):
    evil = "<script>alert(1)</script>"
    made = Figure(
        "X",
        "x",
        evil,
        evil,
        evil,
        {"quick": Settings(), "paper": Settings()},
        lambda *_, **__: Outcome("", (), (), {"p": drawn()}, captions={"p": evil}),
    )
    plant((made, []), planted("y", lambda *_, **__: raises_text(evil)))
    figures.reproduce("all", tmp_path, progress=False)
    assert evil not in page_of(tmp_path)


def raises_text(text):
    raise RuntimeError(text)


def test_pictures_of_png_files_have_the_size_they_were_drawn_at(tmp_path):
    from bnrank.reporting import blocks

    (tmp_path / "a.png").write_bytes(blocks.drawn(drawn(), "a", "png", dpi=150))
    assert blocks.picture(tmp_path / "a.png", "a").width == 384
    with pytest.raises(TypeError, match="figures"):
        blocks.picture(tmp_path / "a.pdf", "a")


def test_the_command_says_what_runs_and_what_came_out_as_it_goes(command, plant, tmp_path):
    plant(planted("a"), planted("b", lambda *_, **__: Outcome("B", (FAILED,))), planted("c", raises))
    code, out, _ = command("--quiet")
    assert code == 1
    order = ["A a in words ...", "A a-name, quick scale, under 1 s", "one is one", "B b in words ...", "one is two"]
    order += ["C c in words ...", "RuntimeError: no such luck", "Summary", "The page: reproduction/quick/index.html"]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    summary = out[out.index("Summary") :]
    assert re.search(r"A +a-name +pass +1 of 1", summary)
    assert re.search(r"B +b-name +fail +0 of 1", summary)
    assert re.search(r"C +c-name +fail +–", summary)
    code, out, _ = command("a", "--quiet")
    assert (code, "stored before" in out, "a in words" in out) == (0, True, False)
    code, out, _ = command("a", "--fresh", "--quiet")
    assert (code, "stored before" in out, "a in words" in out) == (0, False, True)


def test_list_shows_all_figures_and_what_they_need_and_runs_none(command, plant, tmp_path, monkeypatch):
    a, b = planted("a", gigabytes={"quick": 3.0}, data={"quick": ("mnist",)}), planted("b")
    plant(a, b)
    monkeypatch.setattr(requirements, "DATA", {"mnist": lambda: None})
    code, out, _ = command("--list")
    assert (code, a[1], list(tmp_path.iterdir())) == (0, [], [])
    assert re.search(r"A +a-name +– +not run yet +– +3 GB", out)
    assert re.search(r"a in words +mnist", out)
    assert "b in words" in out
    assert "b in words" not in command("--list", "a-name")[1]
    code, _, error = command("--list", "a-nam")
    assert code == 2
    assert "did you mean 'a-name'" in " ".join(error.split())
    command("a", "--quiet")
    code, out, _ = command("--list")
    assert re.search(r"A +a-name +1 of 1 +all pass +under 1 s", out)
    assert "b in words" in out
    assert (len(a[1]), len(b[1])) == (1, 0)


def test_the_command_ends_with_130_at_ctrl_c(command, plant):
    def make(*_, **__):
        signal.raise_signal(signal.SIGINT)

    plant(planted("a", make))
    code, out, error = command("--fresh", "--quiet")
    assert code == 130
    assert "rerun without --fresh to resume" in out
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "under 1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (9000, "2 h 30 min")],
)
def test_durations(seconds, text):
    assert gallery.duration(seconds) == text
