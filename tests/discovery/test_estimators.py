import pickle

import numpy as np
import pytest
import scipy.special
import torch

from bnrank.discovery import BottleneckAutoencoder, BottleneckClassifier, BottleneckRegressor, NothingFoundWarning
from bnrank.discovery.estimators.linear_maps import best_linear, linear_map
from bnrank.discovery.estimators.splits import Splits
from bnrank.tasks import low_rank_map
from bnrank.training import train

from .tables import QUICK, linear_table


@pytest.fixture(scope="module")
def fitted(bent):
    return BottleneckRegressor(2, **QUICK).fit(*bent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "noise", "n", "d"), [(1, 0.1, 190, 12), (2, 0.3, 190, 12), (3, 0.0, 190, 12), (4, 0.1, 300, 20)]
)
def test_a_planted_count_is_found(rank, noise, n, d):
    task = low_rank_map(n=n, d_in=d, d_out=d, rank=rank, noise=noise * 2 / np.sqrt(d), seed=40 + rank)
    found = BottleneckRegressor().fit(task.x.numpy(), task.y.numpy())
    low, high = found.n_components_interval_
    assert found.n_components_ == rank
    assert low <= rank <= high <= rank + 1
    assert not found.undetermined_
    error = np.square(found.predict(task.x_test.numpy()) - task.y_test.numpy()).sum(axis=1).mean()
    assert error < 0.15 * 4.0  # of the spread of y


@pytest.mark.slow
def test_the_coordinates_are_the_latents_in_other_coordinates():
    task = low_rank_map(n=300, d_in=20, d_out=20, rank=1, seed=5120)
    found = BottleneckRegressor(1, ridges=[0.01]).fit(task.x.numpy(), task.y.numpy())
    z, truth = found.transform(task.x_test.numpy())[:, 0], task.truth.latents_test[:, 0].numpy()
    order = np.argsort(np.argsort(z))
    assert abs(np.corrcoef(order, np.argsort(np.argsort(truth)))[0, 1]) > 0.9


def test_linear_data_give_the_linear_rank():
    for rank in (1, 3, 5):
        x, y = linear_table(rank)
        found = BottleneckRegressor().fit(x, y)
        assert (found.n_components_, found.n_components_interval_, found.model_) == (rank, (rank, rank), "linear")
        assert np.allclose(found.predict(x), y, atol=1e-5 * np.abs(y).max())


def test_linear_data_with_noise_give_the_linear_rank_although_a_network_is_tried():
    found = BottleneckRegressor(**QUICK).fit(*linear_table(2, noise=0.3))
    assert (found.n_components_, found.model_) == (2, "linear")
    assert len(found.stability_) == 3


def test_the_interval_of_a_linear_rank_goes_below_it_too():
    generator = np.random.default_rng(2)
    x = generator.normal(size=(29, 4))
    y = x[:, :2] @ np.diag([2.0, 0.2]) + 0.3 * generator.normal(size=(29, 2))
    found = BottleneckRegressor().fit(x, y)
    assert (found.n_components_, found.n_components_interval_) == (2, (1, 2))


def test_a_linear_rank_may_be_larger_than_what_networks_are_cut_to():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 40))
    found = BottleneckRegressor().fit(x, x @ generator.normal(size=(40, 31)) @ generator.normal(size=(31, 40)))
    assert (found.n_components_, found.model_) == (31, "linear")


def test_noise_gives_nothing_and_says_so():
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(120, 5)), generator.normal(size=(120, 4))
    with pytest.warns(NothingFoundWarning, match="nothing was found"):
        found = BottleneckRegressor(**QUICK).fit(x, y)
    assert (found.n_components_, found.model_) == (0, "constant")
    assert found.transform(x).shape == (120, 0)
    assert np.allclose(found.predict(x), y.mean(axis=0), atol=1e-6)
    assert np.allclose(found.inverse_transform(np.zeros((3, 0))), y.mean(axis=0), atol=1e-6)
    with pytest.warns(NothingFoundWarning):
        assert BottleneckClassifier(**QUICK).fit(x, generator.integers(3, size=120)).n_components_ == 0
    with pytest.warns(NothingFoundWarning):
        assert BottleneckAutoencoder(**QUICK).fit(x).n_components_ == 0


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
def test_two_standard_errors_keep_noise_out():
    counts = []
    for seed in range(30):  # less than two lets 4 of the 30 in
        generator = np.random.default_rng(seed)
        counts.append(BottleneckRegressor().fit(generator.normal(size=(29, 4)), generator.normal(size=(29, 3))))
    assert [found.n_components_ for found in counts].count(0) == 30


def test_a_network_that_collapses_is_not_taken_for_nothing_found(bent):
    found = BottleneckRegressor(ridges=[30.0], depth=6, width=16, steps=60, n_networks=1).fit(
        *linear_table(2, noise=0.5)
    )
    assert {trial.count for trial in found.stability_} == {0}  # every network is constant
    assert (found.n_components_, found.model_) == (2, "linear")


def test_prediction_is_decoder_after_encoder(fitted, bent):
    x, y = bent
    z = fitted.transform(x)
    assert z.shape == (160, 2)
    assert np.allclose(fitted.inverse_transform(z), fitted.predict(x), atol=1e-9)
    assert np.allclose(z.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(z.T @ z / len(z), np.eye(2), atol=1e-9)
    assert fitted.score(x, y) > 0.6


def test_coordinates_are_in_order_of_influence_with_a_fixed_sign(fitted, bent):
    x, _ = bent
    z = fitted.transform(x)
    assert fitted.influence_[0] >= fitted.influence_[1] > 0
    for j in range(2):
        correlations = [np.corrcoef(z[:, j], x[:, i])[0, 1] for i in range(6)]
        assert correlations[np.argmax(np.abs(correlations))] > 0


def test_sensitivity_is_the_derivative_in_units_of_the_inputs(fitted, bent):
    x, _ = bent
    step = 1e-6
    slow = np.zeros((2, 6))
    for i in range(6):
        moved = x.copy()
        moved[:, i] += step
        slow[:, i] = np.sqrt(np.square((fitted.transform(moved) - fitted.transform(x)) / step).mean(axis=0))
    assert np.allclose(fitted.sensitivity_, slow * x.std(axis=0), rtol=1e-3, atol=1e-4)
    assert fitted.sensitivity_[:, :2].sum() > 3 * fitted.sensitivity_[:, 2:].sum()


def test_the_module_gives_the_predictions_in_original_units(fitted, bent):
    x, _ = bent
    module = fitted.as_module(torch.float64)
    assert np.allclose(module(torch.from_numpy(x)).detach().numpy(), fitted.predict(x), atol=1e-9)
    rank = torch.linalg.matrix_rank(module.weights[fitted.bottleneck_layer_ - 1].detach(), rtol=1e-9)
    assert int(rank) <= 2
    scaled = fitted.network_(torch.from_numpy((x - x.mean(0)) * fitted.input_scale_)).detach().numpy()
    assert np.allclose(scaled / fitted.output_scale_ + bent[1].mean(0), fitted.predict(x), atol=1e-9)


def test_one_output_has_one_component_and_the_inputs_directions_are_told():
    generator = np.random.default_rng(2)
    x = generator.normal(size=(150, 5))
    found = BottleneckRegressor(ridges=[0.003]).fit(x, np.abs(x[:, 0]) + np.abs(x[:, 1]))
    assert found.n_components_ == 1
    assert found.n_input_directions_ == 2
    assert "y depends on 2 linear combinations of the inputs" in str(found.summary())
    assert found.predict(x).shape == (150,)


@pytest.mark.parametrize("mixing", [0.0, 1.5])
def test_directions_are_counted_although_there_is_noise_and_inputs_are_alike(mixing):
    generator = np.random.default_rng(2)
    x = generator.normal(size=(300, 6)) @ (np.eye(6) + mixing)  # at 1.5 correlations of 0.9 and more
    first, second = x[:, 0], x[:, 1] - x[:, 2]
    y = np.abs(first / first.std()) + 0.5 * np.abs(second / second.std()) + 0.1 * generator.normal(size=300)
    assert BottleneckRegressor(ridges=[0.003]).fit(x, y).n_input_directions_ == 2


def test_three_classes():
    generator = np.random.default_rng(0)
    centers = np.array([[2.0, 0, 0, 0], [-2, 0, 0, 0], [0, 3, 0, 0]])
    labels = generator.integers(3, size=150)
    x = centers[labels] + 0.5 * generator.normal(size=(150, 4))
    names = np.array(["red", "green", "blue"])[labels]
    found = BottleneckClassifier(**QUICK).fit(x, names)
    assert found.n_components_ <= 2
    assert found.score(x, names) > 0.95
    probabilities = found.predict_proba(x)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert np.allclose(np.log(probabilities), found.predict_log_proba(x))
    assert np.array_equal(found.classes_[probabilities.argmax(axis=1)], found.predict(x))
    module = found.as_module(torch.float64)
    assert np.allclose(module(torch.from_numpy(x)).softmax(1).detach().numpy(), probabilities)


def test_the_loss_of_no_components_is_that_of_the_frequencies_of_the_classes():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(240, 4))
    labels = np.digitize(np.abs(x[:, 0]), [0.3, 1.5])
    found = BottleneckClassifier(**QUICK).fit(x, labels)
    share = np.bincount(labels) / 240
    assert found.model_ == "network"
    assert found.held_out_[0] == pytest.approx(-np.sum(share * np.log(share)), rel=0.01)


def test_no_components_have_the_loss_of_the_frequencies_where_classes_lie_apart():
    generator = np.random.default_rng(0)
    labels = (generator.random(300) < 0.1).astype(int)
    x = generator.normal(size=(300, 3)) + 4 * labels[:, None] * [1, 0, 0]
    folds = np.arange(300) % 3
    fit = best_linear(x, labels, Splits.of(folds), 1, classes=2)
    for fold in range(3):
        known, out = labels[folds != fold], labels[folds == fold]
        assert np.allclose(fit.errors[0][folds == fold], -np.log(np.bincount(known) / len(known))[out])
    values = fit.map.network(0)(torch.from_numpy(x)).softmax(1).detach().numpy()
    assert np.allclose(values, np.bincount(labels) / 300)


def test_a_class_that_was_not_seen_counts_as_seen_once_with_and_without_components():
    constant = linear_map(np.zeros((4, 1)), np.array([0, 0, 0, 2]), 1.0, classes=3).constant
    assert np.allclose(np.exp(constant), [0.6, 0.2, 0.2])
    x, y = np.arange(8.0)[:, None] - 3.5, np.array([0, 2, 0, 0, 2, 0, 2, 2])
    for labels, unseen in ((y, [1, 3]), (np.zeros(8, dtype=int), [1, 2, 3])):
        map_ = linear_map(x, labels, 1.0, classes=4)
        at_center = scipy.special.softmax(map_.level)
        assert np.allclose(at_center[unseen], 1 / (8 + len(unseen)))
        assert np.allclose(at_center, np.exp(map_.constant), atol=0.01)


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
def test_classes_of_one_row_do_not_turn_noise_into_a_component():
    for seed in range(3):
        generator = np.random.default_rng(seed)
        x, y = generator.normal(size=(90, 4)), generator.integers(0, 3, 90)
        y[:6] = np.arange(3, 9)
        assert BottleneckClassifier().fit(x, y).n_components_ == 0


def test_classes_that_lie_along_one_direction_have_one_component():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(240, 5))
    labels = np.digitize(x[:, 0] + 0.1 * generator.normal(size=240), [-0.5, 0.5])
    assert BottleneckClassifier(**QUICK).fit(x, labels).n_components_ == 1


def test_an_autoencoder_counts_what_columns_have_in_common_and_takes_noise_away():
    generator = np.random.default_rng(4)
    clean = generator.normal(size=(200, 2)) @ generator.normal(size=(2, 10))
    x = clean + 0.3 * generator.normal(size=clean.shape)
    found = BottleneckAutoencoder(**QUICK).fit(x)
    assert found.n_components_ == 2
    rebuilt = found.inverse_transform(found.transform(x))
    assert np.allclose(rebuilt, found.predict(x), atol=1e-9)
    assert np.square(rebuilt - clean).mean() < 0.5 * np.square(x - clean).mean()
    assert found.score(x) > 0.8


@pytest.mark.filterwarnings("ignore::bnrank.discovery.NothingFoundWarning")
@pytest.mark.parametrize("kind", [BottleneckRegressor, BottleneckClassifier, BottleneckAutoencoder])
def test_one_that_found_nothing_is_saved_and_read_again(kind, tmp_path):
    generator = np.random.default_rng(0)
    x, classes = generator.normal(size=(25, 3)), np.arange(25) % 3
    fitted = kind().fit(x, classes if kind is BottleneckClassifier else generator.normal(size=(25, 2)))
    assert fitted.n_components_ == 0
    again = kind.load(fitted.save(tmp_path / "fitted.safetensors"))
    assert np.array_equal(again.predict(x), fitted.predict(x))
    assert again.transform(x).shape == (25, 0)
    assert str(again.summary()) == str(fitted.summary())


def test_saved_and_read_again(fitted, bent, tmp_path):
    x, _ = bent
    path = fitted.set_output(transform="default").save(tmp_path / "fitted.safetensors")
    again = BottleneckRegressor.load(path)
    assert np.array_equal(again.predict(x), fitted.predict(x))
    assert np.array_equal(again.transform(x), fitted.transform(x))
    assert str(again.summary()) == str(fitted.summary())
    assert again.get_params() == fitted.get_params()
    assert again.stability_ == fitted.stability_ or str(again.stability_) == str(fitted.stability_)
    assert np.array_equal(pickle.loads(pickle.dumps(again)).predict(x), fitted.predict(x))


def test_only_the_right_file_is_read(fitted, tmp_path):
    with pytest.raises(ValueError, match=r"expected a name ending in \.safetensors"):
        fitted.save(tmp_path / "fitted.pkl")
    path = fitted.save(tmp_path / "fitted.safetensors")
    with pytest.raises(ValueError, match="holds a BottleneckRegressor, expected a BottleneckClassifier"):
        BottleneckClassifier.load(path)
    with pytest.raises(ValueError, match="expected a file that exists"):
        BottleneckRegressor.load(tmp_path / "none.safetensors")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="damaged"):
        BottleneckRegressor.load(path)


def test_the_summary_has_the_data_of_the_page(fitted, bent):
    summary = fitted.summary()
    x, y = bent
    assert summary.coordinates.shape == (160, 2)
    assert np.array_equal(summary.observed, y)
    assert np.allclose(summary.predicted, fitted.predict(x))
    assert summary.sensitivity.shape == (2, 6)
    assert summary.gap == pytest.approx(summary.spectrum[1] / summary.spectrum[2])
    text = str(summary)
    assert "components: 2" in text
    assert "2 component(s) were requested" in text
    assert "x0" in text


def test_many_rows_are_explored_in_part_and_then_all_trained_on(monkeypatch):
    from bnrank.discovery.estimators import learning

    monkeypatch.setattr(learning, "MAX_ROWS", 100)
    seen = []
    monkeypatch.setattr(learning, "train", lambda net, task, **how: seen.append(task.n) or train(net, task, **how))
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1000, 4))
    y = np.stack([np.abs(x[:, 0]), -2 * np.abs(x[:, 0]), np.abs(x[:, 0])], axis=1)
    found = BottleneckRegressor(1, **QUICK).fit(x, y)
    assert found.model_ == "network"
    assert seen == [1000]
    assert found.score(x, y) > 0.7
    assert np.isclose(found.transform(x).std(), 1)  # over all rows, not those of the path


def test_a_linear_map_is_fitted_to_all_rows_too(monkeypatch):
    from bnrank.discovery.estimators import learning

    monkeypatch.setattr(learning, "MAX_ROWS", 29)
    x, y = linear_table(6, noise=1.0, n=1000)
    found = BottleneckRegressor(6, ridges=[30.0], depth=4, width=16, steps=1, n_networks=1).fit(x, y)
    slow = (x - x.mean(0)) @ np.linalg.lstsq(x - x.mean(0), y - y.mean(0), rcond=None)[0] + y.mean(0)
    assert found.model_ == "linear"
    assert np.square(found.predict(x) - slow).mean() < 1e-2 * np.square(y - slow).mean()


def test_an_autoencoder_of_few_columns_says_that_it_cannot_count():
    generator = np.random.default_rng(4)
    x = generator.normal(size=(100, 2)) @ generator.normal(size=(2, 4))
    found = BottleneckAutoencoder(**QUICK).fit(x)
    assert found.undetermined_
    assert "no more than 2 can be detected" in found.reason_
