"""Ctrl-C in a fit: networks are kept, the same call resumes, and what is known is a partial result."""

import contextlib
import io
import signal

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor
from bnrank.discovery.estimators import learning, progress
from bnrank.training import trainer

rng = np.random.default_rng(0)
X = rng.normal(size=(110, 3))
Y = np.tanh(2 * X[:, :1] + X[:, 1:2]) ** 2 @ np.array([[1.0, -1.0]]) + 0.05 * rng.normal(size=(110, 2))
QUICK = {"steps": 60, "ridges": [0.01, 0.003], "width": 10, "n_networks": 1}


def quick():
    return BottleneckRegressor(**QUICK)


@pytest.fixture(scope="module")
def evaluations():
    """Count evaluations of all trainings, and press Ctrl-C at one of them."""
    count = {"done": 0, "interrupt": None}
    evaluate = trainer._Trainer._evaluate

    def counted(self):
        count["done"] += 1
        if count["done"] == count["interrupt"]:
            signal.raise_signal(signal.SIGINT)
        evaluate(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer._Trainer, "_evaluate", counted)
        yield count


@pytest.fixture(scope="module")
def whole(evaluations, tmp_path_factory):
    evaluations.update(done=0, interrupt=None)
    found = quick().fit(X, Y, out=tmp_path_factory.mktemp("whole"))
    return found, evaluations["done"]


ONE = 61  # evaluations of a network; where networks are kept, two of depth 12 train on the first fold one by one
FOLDS = 3 * ONE


@pytest.mark.parametrize(
    ("at", "known"),
    [(70, False), (5 * ONE + 20, True), (7 * ONE + 20, True)],
    ids=["first folds", "other depth", "all rows"],
)
def test_an_interrupted_fit_resumes_to_the_same_bits(tmp_path, evaluations, whole, at, known):
    expected, total = whole
    assert (expected.model_, expected.partial_) == ("network", False)
    assert "partial" not in str(expected.summary())
    evaluations.update(done=0, interrupt=at)
    found = quick()
    with pytest.raises(KeyboardInterrupt):
        found.fit(X, Y, out=tmp_path / "kept")
    assert evaluations["done"] <= at + 1
    assert hasattr(found, "summary_") == known
    if known:
        assert (found.partial_, found.undetermined_) == (True, True)
        assert "undetermined: partial result, since the fit was interrupted" in str(found.summary())
        assert found.n_components_ == expected.n_components_ == 1
        assert found.score(X, Y) > 0.8
        again = type(found).load(found.save(tmp_path / "partial.safetensors"))
        np.testing.assert_array_equal(again.predict(X), found.predict(X))
    evaluations.update(done=0, interrupt=None)
    found.fit(X, Y, out=tmp_path / "kept")
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    assert str(found.summary()) == str(expected.summary())
    assert not found.partial_
    assert evaluations["done"] <= total - at + 5


def test_other_arguments_take_no_network_of_others(tmp_path, evaluations, whole):
    expected, total = whole
    evaluations.update(done=0, interrupt=None)
    np.testing.assert_array_equal(quick().fit(X, Y, out=tmp_path).predict(X), expected.predict(X))
    assert evaluations["done"] == total
    quick().fit(X, 2 * Y, out=tmp_path)  # the same in the scale of training
    assert evaluations["done"] == total
    evaluations["interrupt"] = total + 20  # others are trained
    with pytest.raises(KeyboardInterrupt):
        quick().fit(X[:, ::-1], Y, out=tmp_path)


def test_classes_and_columns_in_common_are_interrupted_too(tmp_path, evaluations):
    labels = np.digitize(Y[:, 0], [0.3, 0.7])
    evaluations.update(done=0, interrupt=FOLDS + 70)
    found = BottleneckClassifier(**QUICK)
    with pytest.raises(KeyboardInterrupt):
        found.fit(X, labels)
    assert found.partial_
    assert found.score(X, labels) > 0.5
    evaluations.update(done=0, interrupt=FOLDS + 70)
    columns = BottleneckAutoencoder(**QUICK)
    with pytest.raises(KeyboardInterrupt):
        columns.fit(np.hstack([X, Y, Y @ Y.T[:, :2]]), out=tmp_path)
    assert not hasattr(columns, "summary_")  # one half of the columns only
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", [None, np.random.RandomState(0)], ids=["none", "state"])
def test_a_folder_needs_a_seed_that_is_the_same_in_the_next_call(tmp_path, evaluations, seed):
    evaluations.update(done=0, interrupt=None)
    labels = np.digitize(Y[:, 0], [0.3, 0.7])
    for kind, outputs in ((BottleneckRegressor, Y), (BottleneckClassifier, labels), (BottleneckAutoencoder, None)):
        with pytest.raises(ValueError, match=r"random_state: got (None|RandomState).*, expected an integer"):
            kind(**QUICK, random_state=seed).fit(X, outputs, out=tmp_path / "kept")
    assert not evaluations["done"]
    assert not (tmp_path / "kept").exists()


def test_ctrl_c_in_the_second_cross_validation_gives_a_partial_result(evaluations, monkeypatch):
    """Inputs are repeated with other outputs: the folds are trained again, all rows of an input held out together."""
    x = np.repeat(X[:60], 2, axis=0)
    y = np.repeat(Y[:60], 2, axis=0) + 0.05 * rng.normal(size=(120, 2))
    second, investigate = [], learning.investigate

    def told(*arguments, **options):
        if options.get("by_input"):
            second.append(evaluations["done"])
            evaluations["interrupt"] = evaluations["done"] + FOLDS + 20  # at the other depth
        return investigate(*arguments, **options)

    monkeypatch.setattr(learning, "investigate", told)
    evaluations.update(done=0, interrupt=None)
    found = BottleneckRegressor(**QUICK)
    with pytest.raises(KeyboardInterrupt):
        found.fit(x, y)
    assert len(second) == 1
    assert (found.partial_, found.undetermined_) == (True, True)
    assert "undetermined: partial result" in str(found.summary())
    columns = BottleneckAutoencoder(**QUICK)
    evaluations.update(done=0, interrupt=None)
    z = rng.normal(size=(120, 1)) * [1.5, -1.5, 1.5, 1.5]
    with pytest.raises(KeyboardInterrupt):
        columns.fit(np.round(z + 0.5 * rng.normal(size=(120, 4))))
    assert (len(second), hasattr(columns, "summary_")) == (2, False)


def test_a_folder_that_is_none_is_refused_before_the_work(tmp_path, evaluations):
    evaluations.update(done=0, interrupt=None)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="out: cannot write"):
        quick().fit(X, Y, out=tmp_path / "file")
    with pytest.raises(TypeError, match="out: got 3"):
        quick().fit(X, Y, out=3)
    assert not evaluations["done"]


def test_the_bar_has_the_time_left():
    text, now = io.StringIO(), [0.0]
    console = Console(file=text, force_terminal=True, width=100)
    with Progress(TimeRemainingColumn(), console=console, get_time=lambda: now[0], auto_refresh=False) as bar:
        voice = progress.Voice(bar=bar)
        voice.expect(1000)
        for _ in range(10):
            now[0] += 7
            voice.advance(20)
        bar.refresh()
        assert "0:04:40" in text.getvalue()  # 800 of 1000 are left, at 20 in 7 s
        voice.advance(1800)
        assert (voice.done, voice.total) == (2000, 2000)


def test_the_work_of_a_fit_is_about_what_is_expected(monkeypatch, evaluations):
    evaluations.update(interrupt=None)
    voice = progress.Voice()
    monkeypatch.setattr("bnrank.discovery.estimators.keeping.current", lambda: voice)
    monkeypatch.setattr("bnrank.discovery.estimators.base.voice", lambda shown: contextlib.nullcontext(voice))
    quick().fit(X, Y)
    assert 0.7 < voice.done / voice.total <= 1
