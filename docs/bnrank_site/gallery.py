"""Pages of the gallery, a page per figure of the sources, written from stored results before each build."""

import inspect
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from bnrank.figures import FIGURES, Figure

HERE = Path(__file__).parents[1]
ROOT = HERE.parent
AGAINST = ROOT / "benchmarks" / "against"
PICTURES = (  # pictures of other pages: title, file, page, command, code
    (
        "Latent variables of physical systems, from films",
        "comparisons-physics.png",
        "../comparisons.md",
        "python -m benchmarks.against physics",
        ("benchmarks/against/physics_picture.py", "benchmarks/against/physics_systems.py"),
    ),
    (
        "Minima of 20 seeds: losses in bands by rank",
        "minima-landscape.png",
        "../minima.md",
        "python -m benchmarks.minima --landscape --seeds 200 220 --picture landscape.png",
        ("benchmarks/landscape.py",),
    ),
    (
        "A minimum followed from depth 8 to 24",
        "minima-depth.png",
        "../minima.md",
        "python -m benchmarks.minima --expansion --seeds 6 9 --picture minima-depth.png",
        ("benchmarks/continuation.py",),
    ),
)


def write(folder: Path) -> None:
    """Write the pages and their index."""
    shutil.rmtree(folder / "pictures", ignore_errors=True)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    texts = {f"{figure.id}.md": _page(figure, _stored(figure), folder) for figure in FIGURES}
    texts["compression.md"] = _compression(folder)
    for i, (title, picture, page, command, code) in enumerate(PICTURES):
        shutil.copy(HERE / picture, folder / "pictures" / picture)
        texts[f"picture-{i}.md"] = (
            f"# {title}\n\n![{title}](pictures/{picture})\n\nFrom [this page]({page}), which has the numbers. "
            f"Measured by:\n\n```sh\n{command}\n```\n\n{_listings(folder, [ROOT / name for name in code])}"
        )
    texts["index.md"] = _index(texts)
    for old in folder.glob("*.md"):
        old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _stored(figure: Figure) -> dict[str, Any] | None:
    path = HERE / "results" / "figures" / f"{figure.id}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _page(figure: Figure, stored: dict[str, Any] | None, folder: Path) -> str:
    text = [f"# {figure.id}. {figure.title}", ""]
    if stored:
        for picture, caption in stored["pictures"].items():
            shutil.copy(HERE / "results" / "figures" / picture, folder / "pictures" / picture)
            text += [f"![{caption}](pictures/{picture})", "", f"*{caption}.*".replace("..", "."), ""]
    shown = "What the source shows" if figure.printed else "What is expected"
    text += [f"**Source.** {_sentence(figure.source)}", ""]
    text += [f"**{shown}.** {_sentence(figure.expected)}", ""]
    if stored:
        good = sum(bool(claim["passed"]) for claim in stored["claims"])
        text += [f"## Reproduced: {good} of {len(stored['claims'])} claims", ""]
        text += ["| claim | measured | expected | |", "| --- | --- | --- | --- |"]
        for claim in stored["claims"]:
            mark = {True: "reproduced", False: "**not reproduced**", None: "not decided"}[claim["passed"]]
            text.append(f"| {' | '.join(_cell(claim[key]) for key in ('name', 'measured', 'expected'))} | {mark} |")
        text += ["", f"```sh\n{stored['command']}\n```", ""]
        text += [
            f"Scale `{stored['scale']}`, {stored['date']}, {stored['seconds']:,.0f} s (wall time, which other work on "
            f"the machine lengthens). {stored['machine']}.",
            "",
        ]
    else:
        text += [
            "## Not run with this version",
            "",
            f"No result of this version is stored. The figure is run by\n\n```sh\nbnrank reproduce {figure.id}\n```",
            "",
        ]
    link = f"[Agreement and differences](../figures.md#{_anchor(figure)})"
    text += [f"{link} in words, with other settings that were tried.", ""]
    place = Path(inspect.getfile(figure.make)).parent
    text.append(_listings(folder, [p for p in sorted(place.glob("*.py")) if p.name != "__init__.py"]))
    return "\n".join(text)


def _anchor(figure: Figure) -> str:
    """Return the anchor of the figure's section in docs/figures.md, as MyST makes it."""
    headings = re.findall(r"^## (.+)$", (HERE / "figures.md").read_text(encoding="utf-8"), re.MULTILINE)
    known = figure.id.rstrip("L")  # F9L is described with F9
    heading = next((heading for heading in headings if re.match(rf"{known}\b", heading)), None)
    if heading is None:
        raise ValueError(f"docs/figures.md: no heading '## {known}. ...', expected one for every figure")
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _listings(folder: Path, paths: list[Path]) -> str:
    parts = ["## Code", ""]
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        inside = os.path.relpath(path, folder)
        parts += [f":::{{dropdown}} `{name}`", f"```{{literalinclude}} {inside}", ":language: python", "```", ":::", ""]
    return "\n".join(parts)


def _cell(text: Any) -> str:
    return _plain(str(text)).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return text in which Markdown sees no markup."""
    return re.sub(r"([*_<>`$\[\]])", r"\\\1", text)


def _sentence(text: str) -> str:
    return f"{_plain(text[0].upper() + text[1:].rstrip('.'))}."


def _compression(folder: Path) -> str:
    """Return the page of the comparison of compressions, and draw it."""
    from matplotlib.figure import Figure as Picture

    title = "Parameters left after compression"
    picture = Picture(figsize=(6, 4), layout="constrained")
    axes = picture.subplots()
    lines = (HERE / "results" / "compression_cut.jsonl").read_text(encoding="utf-8").splitlines()
    stored = [json.loads(line) for line in lines]
    rows = [row for row in stored if "network" in row]
    about = [f"{run['date']}, {run['machine']}" for run in stored if "command" in run]
    networks = list(dict.fromkeys(row["network"] for row in rows))
    for i, network in enumerate(networks):
        for j, target in enumerate(("0.01", "0.02", "0.05")):
            some = [row for row in rows if (row["network"], row["target"]) == (network, target)]
            ratios = [row["bnrank"] / row["other"] for row in some]
            label = f"change of {100 * float(target):g} %" if i == 0 else None
            axes.plot([i + 0.2 * (j - 1)] * len(ratios), ratios, "o", color=f"C{j}", alpha=0.5, ms=4, label=label)
    axes.axhline(1, color="0.5", lw=1)
    axes.set(ylim=(0, None))
    axes.set_xticks(range(len(networks)), networks, rotation=20, ha="right")
    axes.set_ylabel("parameters: bnrank / best other method")
    axes.legend(frameon=False, fontsize="small", loc="lower left")
    picture.savefig(folder / "pictures" / "compression.png", dpi=110)
    return (
        f"# {title}\n\n![Ratio to the best other method, network by network](pictures/compression.png)\n\n"
        "Each dot is a seed: parameters that `compress` keeps, over those of the best of seven other methods at the "
        f"same change of the outputs. Below the line bnrank keeps fewer. {'; '.join(dict.fromkeys(about))}. "
        "[Comparison with other methods](../comparisons.md) has the tables.\n\n"
        "```sh\npython -m benchmarks.against compression_cut\n```\n\n"
        + _listings(folder, [AGAINST / f"compression_{name}.py" for name in ("cut", "peers")])
    )


def _index(texts: dict[str, str]) -> str:
    cards, table = [], []
    for figure in FIGURES:
        stored = _stored(figure)
        good, count, image = "Not run with this version.", "–", ""
        if stored:
            passed = sum(bool(claim["passed"]) for claim in stored["claims"])
            good = f"{passed} of {len(stored['claims'])} claims reproduced."
            count = f"{passed} of {len(stored['claims'])}"
            image = f":img-top: pictures/{next(iter(stored['pictures']))}\n" if stored["pictures"] else ""
        cards.append(
            f"::::{{grid-item-card}} {figure.id}\n:link: {figure.id}\n:link-type: doc\n{image}\n"
            f"{_plain(figure.title)}\n\n*{_plain(figure.source)}.* {good}\n::::\n"
        )
        when = f"{stored['seconds']:,.0f} | {stored['date']}" if stored else "– | –"
        table.append(f"| [{figure.id}]({figure.id}.md) | {_plain(figure.title)} | {count} | {when} |")
    others = [("compression", "Parameters left after compression", "compression.png")]
    others += [(f"picture-{i}", title, picture) for i, (title, picture, *_) in enumerate(PICTURES)]
    more = [
        f"::::{{grid-item-card}} {title}\n:link: {name}\n:link-type: doc\n:img-top: pictures/{picture}\n::::\n"
        for name, title, picture in others
    ]
    listed = "\n".join(name.removesuffix(".md") for name in texts)
    return "\n".join(
        [
            "# Gallery",
            "",
            "Every figure of the sources, run by `bnrank reproduce`: the picture, what the source shows, the claims "
            "with their measured values, and the code. [Agreement and differences](../figures.md) in words.",
            "",
            ":::::{grid} 1 2 2 2\n:gutter: 3\n",
            *cards,
            ":::::\n",
            "## Measured by benchmarks",
            "",
            ":::::{grid} 1 2 2 2\n:gutter: 3\n",
            *more,
            ":::::\n",
            "## All figures",
            "",
            "| figure | | claims reproduced | seconds | date |",
            "| --- | --- | --- | ---: | --- |",
            *table,
            "",
            f"```{{toctree}}\n:hidden:\n\n{listed}\n```",
            "",
        ]
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before the build."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir) / "gallery"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
