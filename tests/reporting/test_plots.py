import matplotlib.colors
import numpy as np
import pytest
from matplotlib import _pylab_helpers
from matplotlib.figure import Figure

from bnrank.reporting import plots


def labeled(axes):
    return all(ax.get_xlabel() and ax.get_ylabel() for ax in np.ravel(axes))


def lines(ax):
    return np.array([line.get_ydata() for line in ax.lines])


def test_f1_draws_the_profile(profile):
    axes = plots.bottleneck_spectra(profile, top=10)
    assert labeled(axes)
    np.testing.assert_array_equal(lines(axes[0]).T, profile["activation_singular_values"].values[:, :10])
    np.testing.assert_array_equal(lines(axes[1]).T, profile["weight_singular_values"].values[:, :10])
    np.testing.assert_array_equal(lines(axes[2])[0], profile["nonlinearity"].values)
    np.testing.assert_array_equal(axes[0].lines[0].get_xdata(), profile["layer"].values)
    assert [patch.get_label() for patch in axes[1].patches] == ["bottleneck"]
    for name in ("rank", "start", "end"):
        del profile.attrs[f"bottleneck_{name}"]
    assert not plots.bottleneck_spectra(profile)[0].patches


def test_f4a_fits_each_rank_through_its_dots_only():
    depths = np.array([4, 6, 8, 10, 12, 14, 16, 9])
    norms = np.array([14.0, 20.0, 26.0, 21.0, 25.0, 29.0, 33.0, 500.0])
    ranks = np.array([3, 3, 3, 2, 2, 2, 2, 2])
    costs = np.array([0.01] * 7 + [0.5])
    ax = plots.norm_versus_depth(depths, norms, ranks, costs)
    assert labeled(ax)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == [
        "rank 2: slope 2.00 (5 runs)",
        "rank 3: slope 3.00 (3 runs)",
        "training cost < 0.1",
        "training cost ≥ 0.1",
    ]
    points = {tuple(point) for group in ax.collections for point in group.get_offsets().data}
    assert points == set(zip(depths.astype(float), norms, strict=True))
    crosses = ax.collections[1]
    np.testing.assert_array_equal(crosses.get_offsets().data, [[9.0, 500.0]])
    assert matplotlib.colors.to_hex(ax.collections[0].get_facecolor()[0]) == plots.OKABE_ITO[1].lower()
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [21.0, 33.0])


def test_f4a_one_depth_has_no_slope_and_the_threshold_moves():
    ax = plots.norm_versus_depth([4, 4], [8.0, 8.1], [2, 2], [0.2, 0.2], cost_threshold=0.3)
    assert not ax.lines
    assert ax.get_legend().get_texts()[0].get_text() == "rank 2 (2 runs)"
    assert ax.get_legend().get_texts()[1].get_text() == "training cost < 0.3"


def test_norms_that_are_not_finite_are_neither_drawn_nor_counted():
    inf, nan = float("inf"), float("nan")
    ax = plots.norm_versus_depth([4, 6, 8, 9], [8.0, 12.0, inf, nan], [2, 2, 2, 2], [0.0] * 4)
    assert ax.get_legend().get_texts()[0].get_text() == "rank 2: slope 2.00 (2 runs)"
    for name, values in (("norms", {"norms": [inf, nan]}), ("depths", {"depths": [4, inf]})):
        given = {"depths": [4, 6], "norms": [8.0, 12.0], "ranks": [2, 2], "costs": [0.0, 0.0]} | values
        with pytest.raises(ValueError, match=f"^{name}: got"):
            plots.norm_versus_depth(**given)


@pytest.mark.parametrize("bad", [{"norms": [1.0]}, {"depths": []}, {"ranks": [[1, 2]]}])
def test_f4a_names_the_bad_argument(bad):
    good = {"depths": [1, 2], "norms": [1, 2], "ranks": [1, 1], "costs": [0, 0]}
    with pytest.raises(ValueError, match=next(iter(bad))):
        plots.norm_versus_depth(**(good | bad))


def test_f4b_panels_share_the_scale(profile):
    raw = profile["weight_singular_values"].values
    axes = plots.weight_spectra({"a": profile, "b": 2 * raw}, top=5)
    assert labeled(axes[:1])
    assert [ax.get_title() for ax in axes] == ["a", "b"]
    np.testing.assert_array_equal(lines(axes[0]).T, raw[:, :5])
    np.testing.assert_array_equal(lines(axes[1]).T, 2 * raw[:, :5])
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert axes[0].get_ylim()[1] > 2 * raw.max()
    assert len(plots.weight_spectra([raw] * 6)) == 6
    with pytest.raises(ValueError, match="trials"):
        plots.weight_spectra([])
    with pytest.raises(ValueError, match="layer, index"):
        plots.weight_spectra([np.ones(3)])


def test_f9_loss_above_spectra_over_time(history):
    axes = plots.plateaus(history, member=1, layers=[1, 3])
    assert labeled(axes[[0, 1]])
    np.testing.assert_array_equal(lines(axes[0])[0], history["loss"].values[1])
    assert axes[0].get_yscale() == "log"
    expected = history["weight_singular_values"].sel(layer=3).values[1, :, :10]
    np.testing.assert_array_equal(lines(axes[2]).T, expected)
    assert axes[1].get_ylim() == axes[2].get_ylim()
    assert len(plots.plateaus(history)) == 1 + history.sizes["layer"]
    assert axes[0].get_position().y0 > axes[1].get_position().y1


def test_spectra_stop_where_the_member_stopped(history):
    ax = plots.spectra_over_steps(history, layer=2, member=2)
    assert labeled(ax)
    recorded = np.isfinite(history["loss"].values[2])
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), history["step"].values[recorded])


def test_training_curves_one_line_per_member(history):
    axes = plots.training_curves(history, ("cost", "gradient_norm"))
    assert labeled(axes)
    np.testing.assert_array_equal(lines(axes[0]), history["cost"].values)
    np.testing.assert_array_equal(lines(axes[1]), history["gradient_norm"].values)
    texts = [text.get_text() for text in axes[-1].get_legend().get_texts()]
    assert texts == ["member 0", "member 1", "member 2 (diverged)", "member 3 (interrupted)"]


def test_all_nan_is_drawn_empty(history):
    nothing = history * np.nan
    assert len(plots.plateaus(nothing)) == 7
    assert plots.training_curves(nothing)[0].get_yscale() == "linear"


def test_draws_into_given_axes_and_leaves_pyplot_alone(history, profile):
    axes = Figure().subplots(1, 3)
    assert list(plots.bottleneck_spectra(profile, axes)) == list(axes)
    one = Figure().subplots()
    assert plots.spectra_over_steps(history, 1, ax=one) is one
    assert not _pylab_helpers.Gcf.figs
    with pytest.raises(ValueError, match=r"axes: got .* expected 3 matplotlib axes"):
        plots.bottleneck_spectra(profile, axes[:2])


def test_errors_name_what_is_missing(history, profile):
    with pytest.raises(ValueError, match="nonlinearity: not in the Dataset, which holds"):
        plots.bottleneck_spectra(profile.drop_vars("nonlinearity"))
    with pytest.raises(ValueError, match="loss: got dimensions"):
        plots.plateaus(history.assign(loss=history["loss"].isel(member=0)))
    with pytest.raises(ValueError, match="layer: got 9, expected one of"):
        plots.spectra_over_steps(history, 9)
    with pytest.raises(ValueError, match="member: got 4, expected a position below 4"):
        plots.plateaus(history, member=4)
