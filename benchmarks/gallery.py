"""What the gallery of the documentation shows of figures: claims, times and small pictures, kept in docs/results.

``python -m benchmarks.pages --store reproduction/quick`` keeps finished figures of ``bnrank reproduce``; the machine is
that of this call, the version that of the run.
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.about import machine
from bnrank.figures import FIGURES, Outcome

WIDTH = 1200  # pixels of a picture
COLORS = 96


def store(folder: Path, results: Path) -> list[Path]:
    """Keep the finished figures in a folder of ``bnrank reproduce``; return the files, a JSON file per figure."""
    written = []
    results.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        place = folder / figure.name
        if not (place / "claims.json").exists():
            continue
        outcome = Outcome.open(place)
        if outcome.error:
            continue
        for old in results.glob(f"{figure.id}-*.png"):
            old.unlink()
        day = datetime.datetime.fromtimestamp((place / "claims.json").stat().st_mtime, datetime.UTC).date()
        kept: dict[str, Any] = {
            "figure": figure.label,
            "command": f"bnrank reproduce {figure.id}",
            "scale": folder.name,
            "date": str(day),
            "machine": re.sub(r"bnrank [^,]+", f"bnrank {outcome.version}", machine()),
            "seconds": round(outcome.seconds, 1),
            "claims": [
                {"name": c.name, "passed": c.passed, "measured": _shown(c.measured), "expected": c.expected}
                for c in outcome.claims
            ],
            "pictures": {
                _small(Path(picture), results / f"{figure.id}-{name}.png").name: outcome.captions.get(name, name)
                for name, picture in outcome.pictures.items()
            },
        }
        written.append(results / f"{figure.id}.json")
        written[-1].write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return written


def _shown(measured: Any) -> str:
    return f"{measured:.4g}" if isinstance(measured, float) else str(measured)


def _small(picture: Path, target: Path) -> Path:
    """Write a picture with fewer pixels and colors."""
    image = Image.open(picture).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
    image.quantize(COLORS, dither=Image.Dither.NONE).save(target, optimize=True)
    return target
