"""Checks of arguments: what messages say of a value, and arrays as NumPy may lay them out."""

import numpy as np
import pytest
import torch

from bnrank._core import validation


class Unprintable:
    def __repr__(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Unprintable(), "an object of class Unprintable"),
        ([10**5000], "an object of class list"),
        (10**5000, "an integer of 16,610 bits"),
        (torch.ones(2, 3), "Tensor of shape (2, 3) and dtype torch.float32"),
        ("a" * 90, f"{('a' * 90)!r}"[:77] + "... (str)"),
    ],
    ids=["unprintable", "long integer inside", "long integer", "tensor", "long text"],
)
def test_every_value_can_be_described(value, text):
    assert validation.describe(value) == text


@pytest.mark.parametrize("value", [Unprintable(), 10**5000, ["adam"]], ids=["unprintable", "long integer", "list"])
def test_a_choice_among_texts_names_its_argument(value):
    with pytest.raises(ValueError, match=r"^optimizer: got .*, expected one of 'adam', 'lbfgs'$"):
        validation.choice(value, "optimizer", ["adam", "lbfgs"])
    with pytest.raises(ValueError, match="did you mean 'adam'"):
        validation.choice("Adan", "optimizer", ["adam", "lbfgs"])


@pytest.mark.parametrize("rows", [1, 4])
def test_arrays_of_any_layout(rows):
    plain = np.arange(rows * 6.0).reshape(rows, 6)
    wide = np.zeros((rows, 12))
    wide[:, ::2] = plain
    backwards = plain[::-1, ::-1].copy()[::-1, ::-1]
    layouts = [plain, np.asfortranarray(plain), wide[:, ::2], backwards, plain[::-1].copy()[::-1], plain.astype(">f8")]
    for array in layouts:
        assert validation.from_array(array, "x").tolist() == plain.tolist()
