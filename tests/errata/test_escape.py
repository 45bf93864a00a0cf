"""E19, continued: what the proof of Theorem 3.1 of Bantzis2025 has room for."""

import numpy as np


def test_e19_the_printed_exponent_holds_for_signed_inputs():
    """With l - 1 layers to choose from the proof still gives the printed l^{-1/2}, wherever that says something."""
    tightest = 0.0
    for layer in np.unique(np.geomspace(2, 1e8, 2000).astype(int)):
        k = np.geomspace(1e-12, 1 / 9, 2000)[:-1]  # c l^{-1/2}, below 1/9
        c = k * np.sqrt(layer)
        printed = 8 * k / (1 - k)
        fewer = c / np.sqrt(layer - 1)
        q = np.where(fewer < 1, fewer / (1 - np.minimum(fewer, 0.999)), 1.0)  # ||G|| eps / (||G v|| ||u||) at most
        proof = np.where(4 * q <= 1, 1 - (1 - 4 * q) ** 2, 1.0)  # before its last step, 1 - (1 - y)^2 <= 2 y
        plain = np.minimum(c**2, 1.0)  # 1 - (s / (||X|| ||G||))^2 <= 2 log(||X|| ||G|| / s) <= c^2, of any network
        tightest = max(tightest, float((np.minimum(proof, plain) / printed).max()))
    assert 0.99 < tightest < 1
    size = np.linspace(1, 3, 1000)  # ||X|| ||G|| / s
    assert (1 - size**-2 <= 2 * np.log(size) + 1e-15).all()
    assert (2 * np.log(size) <= size**2 * 2 * np.log(size)).all()
    # and layer 1, which has no layer before it: c < 1/9
    c = np.geomspace(1e-12, 1 / 9, 1000)
    assert (c**2 < 8 * c / (1 - c)).all()


def test_e19_the_last_step_alone_does_not_give_it():
    """The bound as the proof ends, 8 q, is above the printed one when a layer is missing."""
    layer, k = 100, 0.05
    fewer = k * np.sqrt(layer / (layer - 1))
    assert 8 * fewer / (1 - fewer) > 8 * k / (1 - k)
