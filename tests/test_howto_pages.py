"""The pages of docs/how-to run as written, in order, and what they say is so."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import xarray as xr

import bnrank
from bnrank import cli
from bnrank.theory import STATEMENTS
from bnrank.theory.registry import TOPICS
from pages import DOCS, blocks_of, run_page, shell, text_of
from theory_entries import (
    HEADING,
    ROW,
    check_code_and_tests,
    check_fields,
    check_formulas,
    check_links,
    check_rows,
    check_verdict,
    entries,
    ids_in,
    link_of,
)

ROOT = DOCS.parent
PAGES = sorted(path.name for path in (DOCS / "how-to").glob("*.md"))
KINDS = {"article", "inproceedings", "misc", "software"}


def changes(name):
    """Return {file: its removed and added lines}, as the diffs of a page show them, and the files that are new."""
    found, new, lines = {}, set(), []
    for line in "".join(blocks_of(f"how-to/{name}.md", "diff")).splitlines():
        if line.startswith(("--- ", "+++ ")):
            lines = found.setdefault(line[4:], [])
            new |= {line[4:]} if line.startswith("+++ ") else set()
        else:
            lines.append(line)
    return found, new


def added(lines):
    return "\n".join(line[1:] for line in lines if line.startswith("+"))


def check_entry(name, page, registered):
    """The entry that a page adds passes the checks of the entries that there are, as do its row and its lines."""
    found, new = changes(name)
    path = DOCS / "theory" / page
    text = added(found[f"docs/theory/{page}"]) + "\n"
    (key, title), (entry,) = HEADING.findall(text)[0], entries(text).values()
    check_fields(key, entry)
    check_code_and_tests(key, entry, planned=new)
    if key.startswith("T"):
        check_verdict(key, entry, registered)
    check_links(path, entry)
    check_formulas(entry)
    index = added(found["docs/theory.md"])
    check_rows(ROW.findall(index), {key: (link_of(path, key, title), title)}, {key} if registered else ())
    assert f"({key[0]}1 to {key})" in index
    (line,) = (line for line in index.splitlines() if line.startswith("- ["))
    assert key in ids_in(line.partition(": ")[2])
    for file, lines in found.items():
        assert (ROOT / file).is_file() != (file in new), file
        for old in (line[1:] for line in lines if line.startswith("-")):
            begin = re.split(r"\d", old)[0]  # what follows is a list of ids or a count, which grows
            assert begin in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no line {begin}..."


def ran(name, tmp_path_factory, others=None):
    return run_page(f"how-to/{name}.md", tmp_path_factory.mktemp(name), others)


# Statements --------------------------------------------------------------------------------------------------------


def test_the_statement_is_contributed_as_the_theory_asks():
    check_entry("add-a-statement", "cost.md", {"Frobenius bound"})
    found, _ = changes("add-a-statement")
    pattern = r'"Frobenius bound",\s+"(.*)",\s+source="(.*)"'
    own, code = (
        re.search(pattern, text).groups()
        for text in (
            text_of("how-to/add-a-statement.md"),
            added(found["src/bnrank/theory/statements/representation.py"]),
        )
    )
    assert own == code
    formula = code[0].replace("|", r"\|")
    assert added(found["docs/verdicts.md"]) == f"| T99 | Frobenius bound | `{formula}` | {code[1]} |"
    assert "T99" in ids_in(added(found["src/bnrank/theory/statements/representation.py"]).partition("\n")[0])
    assert "T1 to T99" in added(found["docs/theory/notation.md"])
    assert len(found) + len({"CHANGELOG.md"}) == 7  # "change seven files"


def test_the_table_of_topics_has_every_topic_with_its_tests_and_pages():
    row = re.compile(r"^\| `(\w+)`(?: \(tests: `(\w+\.py)`\))? \| [^|]+ \| (.*\.md`) \|$", re.M)
    rows = row.findall(text_of("how-to/add-a-statement.md"))
    assert sorted(topic for topic, _, _ in rows) == sorted(topic.__name__.rpartition(".")[2] for topic in TOPICS)
    for topic, tests, pages in rows:
        assert (ROOT / "tests" / "theory" / (tests or f"test_statements_{topic}.py")).is_file()
        found = re.findall(r"`(\w+\.md)`", pages)
        assert found, topic
        for page in found:
            assert (DOCS / "theory" / page).is_file(), page


@pytest.fixture(scope="module")
def statement(tmp_path_factory):
    return ran("add-a-statement", tmp_path_factory)  # its blocks hold the tests of the statement


@pytest.mark.slow
def test_the_example_is_a_new_statement_that_holds_as_the_page_says(statement):
    bound = statement["frobenius_bound"]
    assert bound.formula not in {s.formula for s in STATEMENTS}
    before, after = statement["before"][0], statement["after"][0]
    assert (before.status, after.status) == ("holds", "holds")
    assert (round(before.left, 1), round(before.right, -1)) == (6.4, 1820)
    assert 1 < after.left < after.right < 0.1 * before.right  # training amplifies rounding: 4 to 8 and 42 to 52
    assert [v.id for v in statement["every"]] == ["T4", "U1"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e160, 1e-160])
def test_the_example_takes_weights_of_any_size(statement, size):
    eye = torch.eye(2, dtype=torch.float64)
    for weights, left in (([size * eye, eye / size], 2**0.5), ([size * eye], 2**0.5 * size)):
        facts = bnrank.theory.Facts(bnrank.networks.from_layers(weights), torch.ones(3, 2))
        verdict = statement["frobenius_bound"](facts)
        assert (verdict.status, verdict.left) == ("holds", pytest.approx(left)), verdict


# Figures -----------------------------------------------------------------------------------------------------------


def test_the_figure_is_contributed_as_the_theory_asks():
    check_entry("add-a-figure", "figures.md", set())


@pytest.mark.slow
def test_the_example_of_a_figure_passes_at_both_scales(tmp_path_factory):
    after = ran("add-a-figure", tmp_path_factory)
    for outcome in (after["outcome"], after["large"], after["again"]):
        assert outcome.passed, outcome.error or outcome.claims
    assert len(after["again"].sections[0].rows) == 4
    assert {"reproduction", "runs", "tiny"} <= after["files"]


# Architectures -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_architecture_is_read_as_the_page_says(tmp_path_factory):
    after = ran("your-own-architecture", tmp_path_factory)
    reading, net = after["reading"], after["net"]
    assert (len(reading.weights), len(reading.skipped)) == (9, 3)
    measured = reading.listing.measured
    others = {name.split(".")[2] for name, _ in net.named_parameters() if name not in measured}
    assert others == {"norm", "up"}  # of up, the weight that its two parameters give is measured
    assert {v.id: v.status for v in after["verdicts"]} == {"T4": "not applicable", "T44": "holds"}
    assert after["chain"][0].status == "holds"
    assert after["values"].shape == (40, 3)
    assert {part.name.split(".")[-1] for part in after["smaller"].skipped} == {"mix", "norm"}
    assert any("parametrized" in part.reason for part in after["small"].skipped)
    batch = after["batch"]
    with pytest.raises(
        TypeError, match=r"^example: got .* mapping of tensors, expected one tensor \(N, ...\): wrap net"
    ):
        bnrank.graph.trace(after["net"], batch)
    with pytest.raises(ValueError, match=r"missing 1 required positional argument: 'mask'; wrap it in a module"):
        bnrank.train(after["net"], bnrank.Task(after["x"], after["y"]), steps=1, progress=False)
    with pytest.raises(TypeError, match=r"expected one tensor \(N, ...\): wrap net"):
        bnrank.compress(after["net"], batch)


# Clusters ----------------------------------------------------------------------------------------------------------


def command(line, patch):
    """Run a command of bnrank in this process, which saves the imports."""
    patch.setattr(sys, "argv", shlex.split(line, comments=True))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code, line


@pytest.mark.slow
def test_the_commands_for_a_cluster_train_every_network(tmp_path_factory, monkeypatch):
    lines, left = [], []

    def write(block):
        name, _, text = block.partition("\n")
        Path(name.removeprefix("# ")).write_text(text, encoding="utf-8")

    def run(block):
        for line in block.splitlines():
            lines.append(line)
            if line.startswith("bnrank"):
                command(line, monkeypatch)
                left.append(sum(bnrank.Sweep.open("sweep").to_frame().status != "finished"))

    after = ran("cluster", tmp_path_factory, {"toml": write, "sh": run})
    assert left == [8, 0, 0, 0]  # nothing is trained by --prepare, and everything by the worker
    assert len(after["table"]) == 8
    assert pd.read_csv(after["folder"] / "results.csv").loss.notna().all()
    assert {"sweep.html", "grid.toml"} <= after["files"]
    assert "#SBATCH --array=0-15" in lines


# Stored results ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("read-results")
    return folder, run_page("how-to/read-results.md", folder)


@pytest.mark.slow
def test_plain_python_reads_what_bnrank_stored(results):
    folder, after = results
    stored = bnrank.Sweep.open(folder / "sweep").to_frame()
    both = after["results"].merge(stored, on=["depth", "width", "ridge", "seed"], suffixes=("", "_stored"))
    assert len(both) == 4
    pd.testing.assert_series_equal(both.loss, both.loss_stored, check_names=False)
    xr.testing.assert_equal(after["history"].loss, after["run"].history.loss.drop_vars("layer_name", errors="ignore"))
    weight = after["weights"]["layers.0.weight"]
    assert torch.equal(torch.from_numpy(weight), after["run"].network(0).layers[0].weight.detach())
    assert after["claims"].passed.all()
    assert after["settings"]["steps"] == 60


@pytest.mark.slow
def test_the_table_of_files_names_files_that_are_there(results):
    folder, _ = results
    names = re.findall(
        r"`([\w./*-]+)`", "\n".join(re.findall(r"^\| (`.*?) \|", text_of("how-to/read-results.md"), re.M))
    )
    assert len(names) > 10
    for name in names:
        name = name.replace("FIGURE", "one-neuron")
        assert list(folder.glob(name)) or name == "sections/*.nc", name


@pytest.mark.slow
def test_the_shell_reads_what_bnrank_stored(results, monkeypatch):
    folder, _ = results
    monkeypatch.chdir(folder)
    run = 0
    for block in blocks_of("how-to/read-results.md", "sh"):
        needed = set(re.findall(r"\b(ncdump|h5dump|jq|sha256sum)\b", block))
        if all(map(shutil.which, needed)):
            lines = shell(block)
            run += 1
            if "sha256sum" in needed:
                assert [line for line in lines if line.endswith(": OK")]
                assert lines[-1] == "complete"
            if ".claims[]" in block:
                assert sum("\ttrue\t" in line for line in lines) == 3
                assert sum('"finished"' in line for line in lines) == 4
                assert sum('"ridge":0.01' in line for line in lines) == 4
            if "head -c 8" in block:
                header = json.loads("\n".join(lines[: lines.index("}") + 1]))
                assert header["layers.0.weight"]["shape"] == [8, 4]
                assert '"MLP"' in "\n".join(lines)
    assert run or not shutil.which("sha256sum")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("Rscript"), reason="R is not installed")
def test_r_reads_what_bnrank_stored(results):
    folder, _ = results
    known = subprocess.run(["Rscript", "-e", "library(ncdf4); library(jsonlite)"], capture_output=True, check=False)
    if known.returncode:
        pytest.skip("ncdf4 and jsonlite are not installed")
    (block,) = blocks_of("how-to/read-results.md", "r")
    done = subprocess.run(["Rscript", "-e", block], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 4
    assert done.stdout.count("TRUE") == 3


# Citation, links, index --------------------------------------------------------------------------------------------


def test_every_source_can_be_cited():
    entries = re.findall(r"^@(\w+)\{(\w+),(.*?)^\}", text_of("how-to/cite.md"), re.M | re.S)
    references = text_of("references.md")
    keys = re.findall(r"^## (\w+20\d\d\w?)$", references, re.M)
    assert [key for _, key, _ in entries] == ["bnrank", *keys]
    flat = " ".join(references.split())
    for kind, key, text in entries:
        assert kind in KINDS
        assert text.count("{") == text.count("}")
        title = re.search(r"title\s+= \{(.*)\}", text).group(1)
        if key != "bnrank":
            assert title in flat, key
            for number in re.findall(r"arXiv:[\d.]+\d", text):
                assert number in flat
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {bnrank.__version__}" in citation


def test_the_index_lists_every_page_once():
    text = text_of("how-to/index.md")
    tree = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", text, re.S).group(1).split()
    own = [name for name in tree if not name.startswith("../")]
    assert sorted(f"{name}.md" for name in own) == [name for name in PAGES if name != "index.md"]
    assert [name for name in tree if not (DOCS / "how-to" / f"{name}.md").is_file()] == []
    linked = re.findall(r"\]\(([^)]+)\.md\)", re.sub(r"```.*?```", "", text, flags=re.S))
    assert sorted(linked) == sorted(tree), "each page is linked once and is in the toctree once"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_files_lead_somewhere(page):
    text = text_of(f"how-to/{page}")
    prose = re.sub(r"```diff\n.*?```", "", text, flags=re.S)  # links of entries are relative to docs/theory/
    for target, anchor in re.findall(r"\]\(((?!http)[^)#]+)(?:#([\w-]+))?\)", prose):
        path = DOCS / "how-to" / target
        assert path.is_file(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M) if anchor else []
        anchors = {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"
    new = re.findall(r"^\+\+\+ (\S+)$", text, re.M)  # of the example
    for path in re.findall(r"(?:^--- |`|pytest -q )((?:src|tests|docs)/[\w/.-]+)", text, re.M):
        assert path in new or (ROOT / path).exists(), path
