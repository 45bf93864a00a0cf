"""How often `dimensionless_groups` finds physical laws: ``python -m benchmarks.power_products [--seeds S ...]``.

Tables of 400 rows with 2 percent noise: the inputs of a law beside irrelevant ones, drawn evenly on logarithmic scales.
Right: the verdict is "power products", with the true exponents as fractions (for several groups, which are determined
only up to products of their powers, with the span of the true ones). Wrong: the verdict without the true exponents.
Covered: the exponents whose 99 percent interval contains the true value, of all that were estimated; those of inputs
that were left out count, too. In tables of noise, and of a sum, no power product must be claimed.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.against.trials import markdown, wilson
from bnrank.discovery import DimensionlessGroups, NothingFoundWarning, PowerProduct, dimensionless_groups
from bnrank.discovery.power_products.exponents import normal_form

ROWS, NOISE_ROWS, NOISE = 400, 120, 0.02


@dataclass(frozen=True)
class Law:
    """A law of physics.

    Attributes
    ----------
    inputs : dict
        Name -> smallest value, largest value and unit.
    output : callable
        y without noise, from a table.
    unit : str
        The unit of y.
    groups : tuple of dict
        The exponents of the true groups, name -> power; for a power law, those of y.
    power_law : bool
        Whether y is a constant times one product.
    """

    inputs: dict[str, tuple[float, float, str]]
    output: Callable[[pd.DataFrame], pd.Series]
    unit: str
    groups: tuple[dict[str, float], ...]
    power_law: bool = False

    @property
    def exponents(self) -> np.ndarray:
        """The true exponents, (n, d)."""
        return np.array([[group.get(name, 0.0) for name in self.inputs] for group in self.groups])


def _sphere(x: pd.DataFrame) -> pd.Series:
    reynolds = x.rho * x.v * x.L / x.mu
    return 24 / reynolds + 6 / (1 + np.sqrt(reynolds)) + 0.4


def _friction(x: pd.DataFrame) -> pd.Series:
    """Return the friction factor of a rough pipe (Swamee and Jain 1976)."""
    reynolds = x.rho * x.v * x.D / x.mu
    return 0.25 / np.log10(x.eps / (3.7 * x.D) + 5.74 / reynolds**0.9) ** 2


FLUID = {"rho": (500.0, 1500.0, "kg/m^3"), "v": (0.01, 1.0, "m/s"), "L": (0.01, 0.1, "m"), "mu": (1e-3, 0.1, "Pa*s")}
LAWS = {
    "drag of a sphere by its Reynolds number": Law(
        FLUID | {"T": (280.0, 320.0, "K")}, _sphere, "", ({"rho": 1, "v": 1, "L": 1, "mu": -1},)
    ),
    "pendulum": Law(
        {"L": (0.1, 10.0, "m"), "g": (1.6, 25.0, "m/s^2"), "m": (0.1, 10.0, "kg")},
        lambda x: 2 * np.pi * np.sqrt(x.L / x.g),
        "s",
        ({"L": 0.5, "g": -0.5},),
        power_law=True,
    ),
    "drag law": Law(
        {"rho": (0.5, 1.5, "kg/m^3"), "v": (1.0, 50.0, "m/s"), "A": (0.1, 5.0, "m^2"), "cd": (0.1, 1.5, "")}
        | {"T": (260.0, 320.0, "K")},
        lambda x: 0.5 * x.rho * x.v**2 * x.A * x.cd,
        "N",
        ({"rho": 1, "v": 2, "A": 1, "cd": 1},),
        power_law=True,
    ),
    "ideal gas": Law(
        {"n": (0.1, 10.0, "mol"), "T": (200.0, 600.0, "K"), "V": (0.01, 1.0, "m^3"), "M": (0.01, 0.1, "kg")},
        lambda x: 8.314 * x.n * x["T"] / x.V,
        "Pa",
        ({"n": 1, "T": 1, "V": -1},),
        power_law=True,
    ),
    "Kepler's third law": Law(
        {
            "a": (1e10, 1e12, "m"),
            "M": (1e29, 1e31, "kg"),
            "m": (1e23, 1e27, "kg"),
            "G": (6.674e-11, 6.674e-11, "N*m^2/kg^2"),
        },
        lambda x: 2 * np.pi * np.sqrt(x.a**3 / (6.674e-11 * x.M)),
        "s",
        ({"a": 1.5, "M": -0.5},),
        power_law=True,
    ),
    "hydraulic jump by its Froude number": Law(
        {"v": (2.0, 20.0, "m/s"), "h": (0.05, 0.5, "m"), "g": (3.7, 25.0, "m/s^2"), "rho": (800.0, 1200.0, "kg/m^3")},
        lambda x: (np.sqrt(1 + 8 * x.v**2 / (x.g * x.h)) - 1) / 2,
        "",
        ({"v": 2, "g": -1, "h": -1},),
    ),
    "friction of a rough pipe": Law(
        {"rho": (500.0, 1500.0, "kg/m^3"), "v": (0.1, 10.0, "m/s"), "D": (0.01, 0.1, "m"), "mu": (1e-4, 1e-2, "Pa*s")}
        | {"eps": (1e-5, 1e-3, "m")},
        _friction,
        "",
        ({"rho": 1, "v": 1, "D": 1, "mu": -1}, {"eps": 1, "D": -1}),
    ),
}


def table_of(law: Law, seed: int, rows: int = ROWS) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the inputs and the noisy output of a law."""
    rng = np.random.default_rng(seed)
    ends = {name: np.log([low, high]) for name, (low, high, _) in law.inputs.items()}
    x = pd.DataFrame({name: np.exp(rng.uniform(low, high, rows)) for name, (low, high) in ends.items()})
    return x, law.output(x).to_numpy() * (1 + NOISE * rng.normal(size=rows))


def judged(found: DimensionlessGroups, law: Law) -> tuple[str, int, int]:
    """Return "right", "undetermined" or "wrong", and how many of how many exponents are covered."""
    if found.verdict != "power products":
        return "wrong" if found.verdict == "linear combinations" else "undetermined", 0, 0
    covered = estimated = 0
    if len(found.groups) == len(law.groups):
        for group in found.groups:
            inside = _covered(group, found, law)
            covered, estimated = covered + sum(inside), estimated + len(inside)
    return ("right" if _is_right(found, law) else "wrong"), covered, estimated


def _is_right(found: DimensionlessGroups, law: Law) -> bool:
    exact = all(factor.fraction is not None for group in found.groups for factor in group.factors)
    if not exact or len(found.groups) != len(law.groups) or (found.coefficient is not None) != law.power_law:
        return False
    rows = [{factor.name: factor.exponent for factor in group.factors} for group in found.groups]
    made = np.array([[row.get(name, 0.0) for name in law.inputs] for row in rows])
    if law.power_law:
        return bool(np.allclose(made, law.exponents))
    return bool(np.linalg.matrix_rank(np.vstack([made, law.exponents]), tol=1e-6) == len(law.groups))


def _covered(group: PowerProduct, found: DimensionlessGroups, law: Law) -> list[bool]:
    """Return for every exponent of a group that was estimated whether its interval contains the true value."""
    factors = {factor.name: factor for factor in group.factors}
    fixed = {name: factor for name, factor in factors.items() if factor.low == factor.high}
    if law.power_law:
        truth = dict(zip(law.inputs, law.exponents[0], strict=True))
    else:
        others = [f.name for other in found.groups for f in other.factors if f.low == f.high]
        pivots = tuple(list(law.inputs).index(name) for name in dict.fromkeys(others))
        if len(pivots) != len(law.groups):
            return []
        (pivot,) = fixed
        row = [list(law.inputs)[place] for place in pivots].index(pivot)
        normal = normal_form(law.exponents, pivots)[row] * fixed[pivot].value
        truth = dict(zip(law.inputs, normal, strict=True))
    free = [factor for name, factor in factors.items() if name not in fixed]
    inside = [factor.low <= truth[factor.name] <= factor.high for factor in free]
    left = {factor.name: factor for factor in found.left_out}
    inside += [truth[name] == 0 for name in left]
    return inside


def noise(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return inputs and an output that does not depend on them."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(np.exp(rng.normal(size=(NOISE_ROWS, 4))), columns=list("abcd")), np.exp(
        rng.normal(size=NOISE_ROWS)
    )


def total(seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return inputs and the sum a + 2 b, which is no power product."""
    rng = np.random.default_rng(seed)
    x = pd.DataFrame(rng.uniform(1, 2, (NOISE_ROWS, 3)), columns=list("abc"))
    return x, (x.a + 2 * x.b).to_numpy() + NOISE * rng.normal(size=NOISE_ROWS)


WITHOUT = {"noise": noise, "sum of two inputs": total}


def main(words: Sequence[str] | None = None) -> None:
    """Print a line for every table, and a row for every law."""
    parser = argparse.ArgumentParser("python -m benchmarks.power_products", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of the tables")
    parser.add_argument("--laws", nargs="+", default=[*LAWS, *WITHOUT], metavar="LAW", help="some of the laws")
    parser.add_argument("--units", action="store_true", help="with the units of inputs and output")
    given = parser.parse_args(words)
    if unknown := [name for name in given.laws if name not in LAWS and name not in WITHOUT]:
        parser.error(f"unknown law {unknown[0]!r}, expected some of: {'; '.join([*LAWS, *WITHOUT])}")
    warnings.simplefilter("ignore", NothingFoundWarning)
    rows, covered, estimated = [], 0, 0
    for name in given.laws:
        if given.units and name in WITHOUT:
            continue
        verdicts, hits, count, began = [], 0, 0, time.process_time()
        for seed in given.seeds:
            if name in WITHOUT:
                found = dimensionless_groups(*WITHOUT[name](seed))
                verdict = "wrong" if found.verdict == "power products" else "right"
                if name == "noise" and found.verdict != "nothing found":
                    verdict = "undetermined" if verdict == "right" else verdict
            else:
                law = LAWS[name]
                units = {name: unit for name, (_, _, unit) in law.inputs.items()}
                options = {"units": units, "y_unit": law.unit} if given.units else {}
                found = dimensionless_groups(*table_of(law, seed), **options)
                verdict, inside, of = judged(found, law)
                hits, count = hits + inside, count + of
            verdicts.append(verdict)
            print(f"{name}, seed {seed}: {verdict}: {'; '.join(map(str, found.groups)) or found.verdict}", flush=True)
        numbers = [str(verdicts.count(verdict)) for verdict in ("right", "undetermined", "wrong")]
        seconds = (time.process_time() - began) / len(given.seeds)
        rows.append([name, str(len(verdicts)), *numbers, f"{hits} of {count}" if count else "-", f"{seconds:.1f}"])
        covered, estimated = covered + hits, estimated + count
    headings = ["law", "tables", "right", "undetermined", "wrong", "exponents covered", "CPU seconds per table"]
    print("\n" + markdown(headings, rows))
    if estimated:
        share = f"{covered} of {estimated}, share {wilson(covered, estimated):.3f}"
        print(f"\n99 percent intervals of exponents that contain the true value: {share}.")


if __name__ == "__main__":
    main()
