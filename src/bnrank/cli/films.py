"""Films in `bnrank discover`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import bnrank
from bnrank._core import files, validation
from bnrank.cli.arguments import write_page
from bnrank.cli.naming import naming
from bnrank.cli.terminal import say
from bnrank.tasks.archives import read_films

if TYPE_CHECKING:
    from bnrank.discovery import StateVariables


def is_film(data: str, kind: str | None) -> bool:
    """Return whether a file is read as films: with --kind films, or a .npy file."""
    return kind == "films" or (kind is None and Path(data).suffix.lower() == ".npy")


def refuse(**given: Any) -> None:
    """Raise ValueError, naming the first option that was given and says nothing of films."""
    for name, value in given.items():
        got = "it" if value is True else repr(value)
        validation.expect(value is None or value is False, name, f"{got} with films", "it only with a table")


def discover_films(
    data: str, settings: dict[str, Any], keep: Path | None, save: Path | None, coordinates: Path | None, out: Path
) -> None:
    """Find the state variables of the films in a file, and write a page."""
    with naming({"path": "DATA"}):
        frames = read_films(data)
    found = bnrank.discovery.StateVariables(out=keep, **settings)
    with naming({"frames": f"DATA {Path(data).name}", "out": "--keep"}):
        found.fit(frames)
    say(str(found.summary()))
    if save is not None:
        with naming({"path": "--save"}):
            say(f"The estimator: {found.save(save)}")
        say(f"  in Python: bnrank.load({str(save)!r})")
    if coordinates is not None:
        _write(found, frames, coordinates)
    write_page({"State variables of the films": found}, out, f"bnrank discover: {Path(data).name}")


def _write(found: StateVariables, frames: Any, path: Path) -> None:
    z = found.transform(frames)
    if not z.shape[1]:
        say("The coordinates: none; no file is written")
        return
    import pandas as pd

    table = pd.DataFrame(z, columns=[f"z{j + 1}" for j in range(z.shape[1])])
    with files.writing("coordinates", path):
        files.write_atomically(path, table.to_csv(index_label="pair"))
    say(f"The coordinates at every pair of frames {found.stride_} apart, film after film: {path}")


def settings_of(search: Any, components: int | str, quiet: bool) -> dict[str, Any]:
    """Return the parameters of StateVariables that the options of a search set."""
    given = {"steps": search.steps, "n_networks": search.members, "width": search.width}
    options = {name: value for name, value in given.items() if value is not None}
    return {
        "n_coordinates": components,
        "random_state": search.seed,
        "progress": False if quiet else "auto",
        **options,
    }
