"""What the pages of docs/theory/ contain, and what an entry must have. Messages say what to add, and where."""

import ast
import functools
import importlib
import re
from pathlib import Path

from bnrank.theory import STATEMENTS

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "theory.md"
PAGES = sorted((ROOT / "docs" / "theory").glob("*.md"))
TEXT = "\n\n".join(page.read_text(encoding="utf-8") for page in PAGES)
HEADING = re.compile(r"^### ([TFE]\d+[bL]?)\. (.*)$", flags=re.MULTILINE)
ID = re.compile(r"\b[TFE][1-9]\d?[bL]?\b")
ROW = re.compile(r"^\| \[([TFE]\d+[bL]?)\]\((\S+)\) \| (.*?) \| (.*?) \|(?: (\w+) \|)?$", flags=re.MULTILINE)
KEYS = set(re.findall(r"^## (\w+20\d\d\w?)$", (ROOT / "docs" / "references.md").read_text("utf-8"), flags=re.MULTILINE))
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def entries(text=TEXT):
    """Return {id: text} of the sections headed ### T1., ### T2., ..."""
    parts = HEADING.split(re.sub(r"^##? .*$", "", text, flags=re.MULTILINE))
    return dict(zip(parts[1::3], parts[3::3], strict=True))


ENTRIES = entries()


def field(text, name):
    """Return the paragraph of an entry after "- name: "."""
    found = re.search(rf"^- {name}: (.*?)(?=^- |\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def names(text):
    """Return what stands in backticks."""
    return [re.sub(r"\s+", " ", name) for name in re.findall(r"`([^`]+)`", text)]


def slug(heading):
    """Return the anchor of a heading, as GitHub and MyST write it."""
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-")


@functools.cache
def anchors(page):
    """Return the anchors of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


def resolve(name):
    """Return the object of a dotted public name, the longest importable part of it as a module."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], start=2):
        if not hasattr(found, part):
            importlib.import_module(".".join(parts[:i]))
        found = getattr(found, part)
    return found


@functools.cache
def functions_in(path):
    """Return the names of the functions of a file."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def ids_in(text):
    """Return the ids of a list such as "T1 to T4, T17b"."""
    found = []
    for first, last in re.findall(r"([TFE]\d+[bL]?)(?: to [TFE](\d+))?", text):
        found += [f"{first[0]}{n}" for n in range(int(first[1:]), int(last) + 1)] if last else [first]
    return found


# What an entry must have -------------------------------------------------------------------------------------------


def check_fields(key, text):
    """An entry has a statement, a source of docs/references.md, code and tests."""
    assert text.partition("\n- Source:")[0].strip(), f"{key}: write the statement before '- Source:'"
    source, known = field(text, "Source"), ", ".join(sorted(KEYS))
    asked = f"{key}: '- Source: ...' must name a key of docs/references.md, also for a result of your own"
    assert any(k in source for k in KEYS), f"{asked}; the keys are {known}"
    unknown = set(re.findall(r"\b[A-Z]\w+20\d\d\w?\b", source)) - KEYS
    assert not unknown, f"{key}: {unknown} is no key of docs/references.md: add the paper there; the keys are {known}"
    assert names(field(text, "Code")), f"{key}: add '- Code: `bnrank.check`.', the public functions that compute it"
    assert names(field(text, "Tests")), f"{key}: add '- Tests: `tests/...`.', the files that test it"
    linked = not key.startswith("E") or f"errata.md#{key.lower()}-" in text
    assert linked, f"{key}: link to its section of docs/errata.md"


def check_code_and_tests(key, text, planned=()):
    """The code and the tests of an entry exist, or are among the planned files."""
    for name in names(field(text, "Code")):
        resolve(name)
    for name in names(field(text, "Tests")):
        path, _, function = name.partition("::")
        assert path in planned or (ROOT / path).is_file(), f"{key}: '- Tests:' names {name}, which does not exist"
        defined = not function or function in functions_in(ROOT / path)
        assert defined, f"{key}: '- Tests:' names {function}, which is not in {path}"


def check_verdict(key, text, registered):
    """The verdict of an entry quotes the names of the registered statements, and nothing else."""
    verdict = field(text, "Verdict")
    quoted = names(verdict)
    for name in (name for name in quoted if name.startswith("bnrank.")):
        resolve(name)
    if registered:
        asked = "- Verdict: " + " and ".join(f"`{name}`" for name in sorted(registered)) + "."
    else:
        asked = "- Verdict: Not part of `bnrank.check`, since ..."
    found = {name for name in quoted if not name.startswith("bnrank.")}
    assert found == set(registered), f"{key}: quotes {sorted(found)}; write '{asked}', the names that are registered"
    assert verdict.startswith("Not part of `bnrank.check`") == (not registered), f"{key}: write '{asked}'"


def check_links(page, text):
    """Links, ids and keys of a text on a page exist."""
    for _, target in LINK.findall(text):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), f"{page.name}: no file for the link {target}"
        assert not anchor or anchor in anchors(found), f"{page.name}: no heading for the link {target}"
    plain = LINK.sub(r"\1", re.sub(r"`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", "", text, flags=re.DOTALL))
    missing = set(ID.findall(plain)) - set(ENTRIES)
    assert not missing, f"{page.name}: {missing} have no entry in docs/theory/"
    unknown = set(re.findall(r"\b[A-Z][a-z]\w+20\d\d\w?\b", plain)) - KEYS
    assert not unknown, f"{page.name}: {unknown} are no keys of docs/references.md"


def check_formulas(text):
    """Formulas are closed, and GitHub and MyST read them alike, also in tables."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"\$\$(.*?)\$\$|\$([^$\n]*)\$", text, re.DOTALL)
    assert "$" not in re.sub(r"\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)
    for formula in ("".join(pair) for pair in formulas):
        assert formula.count("{") == formula.count("}"), formula
        assert formula.count(r"\left") - formula.count(r"\leftarrow") == formula.count(r"\right"), formula
        assert r"\|" not in formula, rf"\lVert and \rVert, since GitHub reads \| as |: {formula}"
        assert r"\\" not in formula, rf"\cr, since GitHub reads \\ as \: {formula}"
        assert not re.search(r"\\[^A-Za-z]|[*|`~]|[^\w\s]_", formula), f"Markdown has a use for this: {formula}"
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    for before, after in re.findall(r"(.?)\$[^$\n]+\$(.?)", text):
        assert not re.search(r"[\w-]", before), "GitHub reads a formula only after a space or a parenthesis"
        assert not re.search(r"\w", after), "GitHub reads a formula only before a space or punctuation"


def link_of(page, key, name):
    """Return the link from docs/theory.md to an entry."""
    return f"theory/{page.name}#{slug(f'{key}. {name}')}"


def check_rows(rows, listed, evaluated):
    """The rows of tables of docs/theory.md are those of the entries, given as {id: (link, name)}."""
    found = {key: (target, name) for key, target, name, _, _ in rows}
    for key, (target, name) in listed.items():
        check = f" {'yes' if key in evaluated else 'no'} |" if key.startswith("T") else ""
        row = f"| [{key}]({target}) | {name} | its content in a few words |{check}"
        assert found.get(key) == (target, name), f"add to the table of docs/theory.md, or correct: {row}"
    assert set(found) <= set(listed), f"docs/theory.md has rows without an entry: {set(found) - set(listed)}"
    assert len(rows) == len(listed), "docs/theory.md has two rows of one id"
    for key, _, _, content, check in rows:
        assert content, f"{key}: its row of docs/theory.md has no content"
        expected = ("yes" if key in evaluated else "no") if key.startswith("T") else ""
        assert check == expected, f"{key}: the last column of its row of docs/theory.md must be {expected!r}"


def registered(key):
    """Return the names of the statements of an id."""
    return {statement.name for statement in STATEMENTS if statement.id == key}
