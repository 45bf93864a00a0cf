"""The benchmark of power products: laws that depend on their groups alone, and verdicts that can be wrong."""

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import power_products as benchmark

from bnrank.discovery import DimensionlessGroups, PowerProduct
from bnrank.discovery.power_products.result import Factor
from bnrank.discovery.power_products.units import in_base_units


@pytest.mark.parametrize("law", benchmark.LAWS.values(), ids=benchmark.LAWS)
def test_laws_depend_on_their_groups_alone_which_have_no_unit(law):
    x, y = benchmark.table_of(law, 0)
    assert y.min() > 0
    null = np.linalg.svd(law.exponents)[2][len(law.groups) :]  # changes of log x that leave the groups as they are
    np.testing.assert_allclose(law.output(x * np.exp(null.sum(axis=0))), law.output(x), rtol=1e-9)
    assert abs(law.output(x * np.exp(law.exponents[0])) / law.output(x) - 1).min() > 0.01
    pytest.importorskip("pint")
    for group in law.groups:
        total = dict[str, float]()
        for name, power in group.items():
            for base, own in in_base_units(np.ones(1), law.inputs[name][2], "units")[1].items():
                total[base] = total.get(base, 0.0) + power * own
        if law.unit == "" or law is benchmark.LAWS["pendulum"] or law is benchmark.LAWS["drag law"]:
            of_y = in_base_units(np.ones(1), law.unit, "units")[1]
            assert {base: own for base, own in total.items() if own} == {base: float(own) for base, own in of_y.items()}


def found(*groups, verdict="power products", left=(), coefficient=None):
    made = tuple(
        PowerProduct(tuple(Factor(n, float(p), *ends, fraction) for n, (p, ends, fraction) in g.items()))
        for g in groups
    )
    return DimensionlessGroups(verdict, "", made, (1, 1), coefficient, (), tuple(left), None, None)


def factor(power, width=0.0, exact=True):
    return float(power), (power - width, power + width), Fraction(power) if exact else None


def test_verdicts_and_covered_exponents():
    law = benchmark.LAWS["hydraulic jump by its Froude number"]
    irrelevant = Factor("rho", 0.1, -0.1, 0.3, None)
    right = found({"v": factor(-2, 0.1), "g": factor(1, 0.1), "h": factor(1)}, left=[irrelevant])
    assert benchmark.judged(right, law) == ("right", 3, 3)
    decimal = found({"v": factor(-2.3, 0.2, exact=False), "g": factor(1, 0.1), "h": factor(1)}, left=[irrelevant])
    assert benchmark.judged(decimal, law) == ("wrong", 2, 3)
    other = found({"v": factor(-1, 0.1), "g": factor(1, 0.1), "h": factor(1)}, left=[irrelevant])
    assert benchmark.judged(other, law) == ("wrong", 2, 3)
    more = found({"v": factor(-2, 0.1), "g": factor(1, 0.1), "h": factor(1), "rho": factor(0.2, 0.1, exact=False)})
    assert benchmark.judged(more, law) == ("wrong", 2, 3)
    assert benchmark.judged(found(verdict="linear combinations"), law)[0] == "wrong"
    assert benchmark.judged(found(verdict="nothing found"), law)[0] == "undetermined"


def test_power_laws_have_absolute_exponents_and_groups_only_a_span():
    pendulum, half = benchmark.LAWS["pendulum"], Fraction(1, 2)
    law = found({"L": factor(half, 0.01), "g": factor(-half, 0.01)}, coefficient=6.28)
    assert benchmark.judged(law, pendulum) == ("right", 2, 2)
    assert benchmark.judged(found({"L": factor(1), "g": factor(-1)}, coefficient=6.28), pendulum)[0] == "wrong"
    pipe = benchmark.LAWS["friction of a rough pipe"]
    reynolds = {"rho": factor(1), "v": factor(1, 0.1), "D": factor(1, 0.1), "mu": factor(-1, 0.1)}
    assert benchmark.judged(found(reynolds, {"eps": factor(1), "D": factor(-1, 0.1)}), pipe) == ("right", 4, 4)
    mixed = {"rho": factor(1), "v": factor(1, 0.1), "mu": factor(-1, 0.1), "eps": factor(1, 0.1)}
    assert benchmark.judged(found(mixed, {"D": factor(1), "eps": factor(-1, 0.1)}), pipe) == ("right", 4, 4)
    assert benchmark.judged(found(reynolds, {"eps": factor(1), "D": factor(-2, 0.1)}), pipe) == ("wrong", 3, 4)
