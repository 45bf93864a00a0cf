"""The words of a summary and of its page, each in one sentence."""

import re
from collections.abc import Sequence

TERMS = {
    "component": "a variable computed from all inputs; the outputs are predicted from the components alone",
    "state dimension": "in how many directions the components of the rows vary near each row: 1 on a closed curve,"
    " though two components are needed to tell its points apart",
    "combination": "a weighted sum of the inputs",
    "interval": "the smallest and the largest number found with other networks and with resampled rows",
    "undetermined": "the rows do not decide the number; more rows, other inputs or less noise can",
    "held-out loss": "the error on rows that were not used for training, after scaling; the smaller the better",
    "standard error": "how much a mean loss would vary between tables of this size",
    "influence": "how strongly the outputs change with the component",
    "sensitivity": "how much the component changes if the input changes by its standard deviation",
    "spread": "how much each direction inside the network varies over the rows; those kept come first",
    "gap": "the spread of the last direction kept divided by that of the next",
    "model": "network: curved; linear: weighted sums of the inputs; constant: the mean",
    "ridge": "the strength of the penalty on the weights of a network; the larger, the simpler the function",
    "depth": "the number of layers of weights of a network",
    "fold": "a part of the rows that is held out while a network is trained on the others",
    "seed": "a number that fixes the random initial weights of a network",
    "count": "number of components (or combinations) one network needs",
}


def explained(text: str, also: Sequence[str] = ()) -> dict[str, str]:
    """Return the terms that occur in a text as whole words, in the singular or the plural, with their meaning.

    Parameters
    ----------
    text : str
        The text, without names of columns, which may be such words.
    also : sequence of str
        Terms to explain in any case.

    Examples
    --------
    >>> list(explained("held-out loss by number of components"))
    ['component', 'held-out loss']
    >>> list(explained("models of discounts, countries and a seedling"))
    ['model']
    """
    return {term: means for term, means in TERMS.items() if term in also or re.search(rf"\b{term}(e?s)?\b", text)}
