"""Table rows of profiles, histories, claims and verdicts, and formulas in mathematical symbols."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from bnrank._core import remarks, validation
from bnrank.reporting.by_layer import headline, layer_rows
from bnrank.theory import listing
from bnrank.theory.verdicts import Verdict, Verdicts

__all__ = [
    "about_rows",
    "applicability",
    "claim_rows",
    "headline",
    "layer_rows",
    "member_rows",
    "noted_rows",
    "summary",
    "typeset",
    "unmet_rows",
    "verdict_rows",
]

_SIGNS = {"<=": "≤", "->": "→", "||": "‖", "sum_": "Σ_", "^2": "²", "Theta": "Θ", "theta": "θ", "lambda": "λ"}
_SIGNS |= {"Omega": "Ω", "sigma": "σ", " o ": " ∘ ", "a~": "ã"}
_CURVE_COLUMNS = {"loss": "loss", "cost": "cost", "parameter_norm": "‖θ‖²", "gradient_norm": "gradient norm"}


def member_rows(history: xr.Dataset) -> list[dict[str, object]]:
    """Return one row per member of a history: seed, ridge, step size, status, and its last recorded values.

    Examples
    --------
    >>> import bnrank
    >>> task, net = bnrank.tasks.low_rank_map(n=40, seed=0), bnrank.MLP([20, 8, 20])
    >>> run = bnrank.train(net, task, ridge=[1e-3, 1e-2], steps=3, seed=0, progress=False)
    >>> rows = bnrank.reporting.tables.member_rows(run.history)
    >>> [(row["member"], float(row["ridge"]), str(row["status"])) for row in rows]
    [(0, 0.001, 'finished'), (1, 0.01, 'finished')]
    """
    _check_dimension(history, "history", "member")
    rows: list[dict[str, object]] = []
    for i, member in enumerate(history["member"].values.tolist()):
        row: dict[str, object] = {"member": member}
        for name in ("seed", "ridge", "lr", "status"):
            if name in history.coords and history.coords[name].dims == ("member",):
                row[name] = history.coords[name].values[i]
        for name, heading in _CURVE_COLUMNS.items():
            if name in history and history[name].dims == ("member", "step"):
                curve = history[name][i]
                recorded = curve[np.isfinite(curve.values)]
                if recorded.size:
                    row.setdefault("last step", recorded["step"].values[-1])
                row[heading] = float(recorded[-1]) if recorded.size else None
        rows.append(row)
    return rows


def noted_rows(profile: xr.Dataset, name: str) -> list[dict[str, object]]:
    """Return the rows of a profile along ``skipped`` (layers with reasons) or ``note``.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 2))
    >>> profile = bnrank.profile(net, torch.randn(20, 3))
    >>> [row["name"] for row in bnrank.reporting.tables.noted_rows(profile, "skipped")]
    ['1']
    """
    validation.kind(profile, "profile", xr.Dataset, "an")
    return [dict(row) for row in remarks.rows(profile, validation.choice(name, "name", ["skipped", "note"]))]


def claim_rows(claims: Iterable[Any]) -> list[dict[str, object]]:
    """Return one row per claim (anything with ``name``, ``passed``, ``measured`` and ``expected``).

    Examples
    --------
    >>> import bnrank
    >>> claim = bnrank.figures.claims.at_most("relative error", 0.02, 0.1)
    >>> bnrank.reporting.tables.claim_rows([claim])
    [{'result': 'pass', 'claim': 'relative error', 'measured': 0.02, 'expected': '<= 0.1'}]
    """
    words = {True: "pass", False: "fail", None: "not decided"}
    rows: list[dict[str, object]] = []
    for i, claim in enumerate(validation.sequence(claims, "claims", "a sequence of claims")):
        check_claim(claim, f"claims[{i}]")
        result = words[None if claim.passed is None else bool(claim.passed)]
        measured = claim.measured
        if isinstance(measured, float | np.floating) and math.isnan(measured):
            measured = "NaN"
        rows.append({"result": result, "claim": claim.name, "measured": measured, "expected": claim.expected})
    return rows


def verdict_rows(verdicts: Sequence[Verdict]) -> list[dict[str, object]]:
    """Return one row per verdict: statement, formula, status, both sides, slack, remarks, source.

    The status of a statement that cannot fail where it is applied is "holds (vacuous)".

    Examples
    --------
    >>> import torch, bnrank
    >>> rows = verdict_rows(bnrank.check(bnrank.MLP([3, 8, 2]), torch.randn(20, 3), only="T4"))
    >>> rows[0]["id"], rows[0]["status"]
    ('T4', 'holds')
    """
    rows: list[dict[str, object]] = []
    for verdict in listed(verdicts):
        relation = None if math.isnan(verdict.left) else verdict.relation
        remarks = "; ".join(filter(None, (verdict.reason, verdict.vacuous, verdict.note)))
        stated = {"id": verdict.id, "statement": verdict.name, "formula": verdict.formula, "status": verdict.label}
        sides = {"left": verdict.left, "relation": relation, "right": verdict.right, "slack": verdict.slack}
        rows.append({**stated, **sides, "remarks": remarks, "source": verdict.source})
    return rows


def listed(verdicts: object) -> list[Verdict]:
    """Return verdicts as a list."""
    found = validation.sequence(verdicts, "verdicts", "what bnrank.check returns")
    return [validation.kind(verdict, f"verdicts[{i}]", Verdict) for i, verdict in enumerate(found)]


def check_claim(claim: object, name: str) -> None:
    """Raise TypeError unless a claim has all that a table shows of it."""
    complete = all(hasattr(claim, part) for part in ("name", "passed", "measured", "expected"))
    validation.expect(complete, name, claim, ".name, .passed, .measured and .expected", TypeError)
    check_passed(claim.passed, f"{name}.passed")  # type: ignore[attr-defined]


def check_passed(passed: object, name: str) -> None:
    """Raise TypeError unless a value is True, False, a tensor or array of one of them, or None."""
    single = isinstance(passed, Tensor | np.ndarray) and passed.ndim == 0 and str(passed.dtype).endswith("bool")
    validation.expect(
        single or isinstance(passed, bool | np.bool_ | None), name, passed, "True, False or None", TypeError
    )


def _check_dimension(dataset: object, name: str, dimension: str) -> None:
    found = validation.kind(dataset, name, xr.Dataset, "an")
    got = f"dimensions {sorted(map(str, found.dims))}"
    validation.expect(dimension in found.dims and dimension in found.coords, name, got, f"{dimension} among them")


def about_rows(verdicts: Verdicts) -> list[dict[str, object]]:
    """Return one row per fact about the network and the data of the verdicts.

    Examples
    --------
    >>> import torch, bnrank
    >>> verdicts = bnrank.check(bnrank.MLP([3, 8, 2], seed=0), torch.ones(20, 3), only="T4")
    >>> rows = bnrank.reporting.tables.about_rows(verdicts)
    >>> [row["value"] for row in rows if row["of the network and the data"] == "depth"]
    [2]
    """
    validation.kind(verdicts, "verdicts", Verdicts)
    return [
        {"of the network and the data": key, "value": str(value) if isinstance(value, list) else value}
        for key, value in verdicts.about.items()
    ]


def summary(verdicts: Verdicts) -> str:
    """Return the number of verdicts of each status, in words.

    Examples
    --------
    >>> summary(Verdicts((), {}))
    '0 hold, 0 violated, 0 inconclusive, 0 not applicable'
    """
    return listing.numbers(validation.kind(verdicts, "verdicts", Verdicts))


def applicability(verdicts: Verdicts) -> str:
    """Return how many statements apply, and the reason why most do not, if there is one.

    Examples
    --------
    >>> applicability(Verdicts((), {}))
    'No statement was checked.'
    """
    applied = validation.kind(verdicts, "verdicts", Verdicts).applied
    if not verdicts:
        return "No statement was checked."
    said = f"{len(applied)} of {len(verdicts)} statements apply: {summary(verdicts).rsplit(', ', 1)[0]}."
    for reason, others in verdicts.unmet().items():
        if 2 * len(others) > len(verdicts):
            said += f" {len(others)} assume more: {typeset(reason)}."
            said += " Ranks and spectra of any network are measured by bnrank.profile."
    return said


def unmet_rows(verdicts: Verdicts) -> list[dict[str, object]]:
    """Return one row per reason why statements do not apply: how many, which, and the reason.

    Examples
    --------
    >>> import torch, bnrank
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    >>> rows = unmet_rows(bnrank.check(net, torch.randn(20, 3), only=["T1", "T4"]))
    >>> rows[0]["statements"], rows[0]["not applicable"]
    (2, 'T1, T4')
    """
    rows: list[dict[str, object]] = []
    for reason, own in validation.kind(verdicts, "verdicts", Verdicts).unmet().items():
        partly = {v.id for v in verdicts if v not in own}  # of these ids other statements apply, or fail otherwise
        names = dict.fromkeys(f"{v.id} ({v.name})" if v.id in partly else v.id for v in own)
        rows.append({"statements": len(own), "not applicable": ", ".join(names), "reason": typeset(reason)})
    return rows


def typeset(text: str) -> str:
    """Return a plain-text formula with mathematical symbols.

    Examples
    --------
    >>> typeset("L sum_k s_k^{2/L} <= ||theta||^2")
    'L Σ_k s_k^{2/L} ≤ ‖θ‖²'
    """
    text = validation.text(text, "text")
    for plain, sign in _SIGNS.items():
        text = text.replace(plain, sign)
    return text
