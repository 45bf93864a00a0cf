"""Files of `bnrank sweep`: settings and samples that are trained, and one message for every mistake."""

import re

import pandas as pd
import pytest

import bnrank
from bnrank.cli.grids import EXAMPLE

TASK = '[task]\nmake = "low_rank_map"\nn = 40\nd_in = 5\nd_out = 4\nlatent = 3\nrank = 2\nseed = 1\n'
QUICK = "[train]\nsteps = 3\nrecord = 3\n"
GRID = "[grid]\ndepth = [2]\nwidth = 4\n"


@pytest.fixture
def sweep(tmp_path, command):
    def run(text, *options):
        (tmp_path / "grid.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return command("sweep", "grid.toml", "--out", "swept", *options, "--quiet")

    return run


def alone(depth=2, ridge=1e-3, seed=0, rank=2, optimizer="auto"):
    task = bnrank.tasks.low_rank_map(n=40, d_in=5, d_out=4, latent=3, rank=rank, seed=1)
    options = {"steps": 3, "record": 3, "optimizer": optimizer, "progress": False}
    run = bnrank.train(bnrank.MLP([5, *[4] * (depth - 1), 4]), task, ridge=ridge, seed=seed, **options)
    return float(run.summary.loss[0])


# what is trained -----------------------------------------------------------------------------------------------------


def test_a_grid_is_trained_and_its_table_written(tmp_path, sweep):
    axes = '[grid]\ndepth = [2, 3]\nwidth = 4\n"task.rank" = [1, 2]\nseed = [0, 7]\n'
    done = sweep(TASK + axes + QUICK, "--processes", 1, "--table", "table.csv")
    assert (done.code, "8 networks: 8 finished" in done.out) == (0, True)
    table = pd.read_csv(tmp_path / "table.csv", float_precision="round_trip")
    assert len(table) == 8
    for row in table.to_dict("records"):
        assert row["loss"] == alone(row["depth"], seed=row["seed"], rank=row["task.rank"])


def test_numbers_in_train_are_the_same_for_all_networks(sweep, tmp_path):
    done = sweep(TASK + "[train]\ndepth = 3\nwidth = 4\nseed = 5\nsteps = 3\nrecord = 3\n", "--table", "t.csv")
    assert done.code == 0, done.error
    assert pd.read_csv(tmp_path / "t.csv", float_precision="round_trip").loss.tolist() == [alone(3, seed=5)]


def test_a_list_of_settings_is_trained_with_every_point_of_the_grid(tmp_path, sweep):
    settings = "[[settings]]\ndepth = 2\nridge = 0.1\n[[settings]]\ndepth = 3\ntask.rank = 1\n"
    done = sweep(TASK + "[grid]\nwidth = 4\nseed = [0, 7]\n" + QUICK + settings, "--processes", 1, "--table", "t.csv")
    assert done.code == 0, done.error
    table = pd.read_csv(tmp_path / "t.csv", float_precision="round_trip")
    expected = [alone(2, 0.1, 0), alone(2, 0.1, 7), alone(3, seed=0, rank=1), alone(3, seed=7, rank=1)]
    assert table.loss.tolist() == expected


@pytest.mark.parametrize("method", ["latin-hypercube", "random"])
def test_samples_of_ranges_are_trained(tmp_path, sweep, method):
    ranges = (
        "[ranges]\nridge = { low = 1e-5, high = 1e-1, log = true }\nseed = [3, 4]\ntask.rank = { low = 1, high = 3 }\n"
    )
    samples = f'[samples]\nn = 4\nmethod = "{method}"\nseed = 2\n'
    done = sweep(TASK + GRID + QUICK + samples + ranges, "--processes", 1, "--table", "t.csv")
    assert done.code == 0, done.error
    drawn = {
        "ridge": bnrank.training.Range(1e-5, 1e-1, log=True),
        "seed": [3, 4],
        "task.rank": bnrank.training.Range(1, 3),
    }
    expected = bnrank.training.sample_settings(drawn, 4, method=method, seed=2)
    table = pd.read_csv(tmp_path / "t.csv", float_precision="round_trip")
    assert table[list(drawn)].to_dict("records") == expected
    assert table.loss.tolist() == [alone(2, s["ridge"], s["seed"], s["task.rank"]) for s in expected]


def test_the_example_is_a_grid_and_so_is_what_its_comments_say(tmp_path, sweep):
    assert "24 networks: 24 waiting" in sweep(EXAMPLE, "--prepare").out
    start = EXAMPLE.index("# [samples]")
    whole = EXAMPLE[:start] + EXAMPLE[start:].replace("# [", "[").replace("# n =", "n =").replace("# lr", "lr")
    whole = whole.replace("[train]", '[train]\noptimizer = "adam"')
    done = sweep(whole[: whole.index("[[settings]]")], "--prepare")
    assert (done.code, "408 networks: 408 waiting" in done.out) == (0, True), done  # and 16 for each of 24


# mistakes ------------------------------------------------------------------------------------------------------------

SAMPLED = "[samples]\nn = 4\n[ranges]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[task]\nmake = \n", "Invalid value (at line 2"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (GRID, "no table [task]"),
        (TASK + GRID + "[gird]\n", "line 12: got 'gird' .*did you mean 'grid'"),
        (
            TASK + "[grid]\ndepht = [2]\n",
            "line 10: grid: got 'depht' .*'depth', 'width', 'size', .*'lr', .*'task.rank'",
        ),
        (TASK + GRID + "task.rnk = [2]\n", "line 12: grid: got 'task.rnk' .*did you mean 'task.rank'"),
        (TASK + "rnk = 2\n" + GRID, "line 9: task.rnk: got 'rnk' .*did you mean 'rank'"),
        (TASK + "[grid]\nwidth = 4\n", "toml: depth: got none, expected .* in [grid]"),
        (TASK + "[grid]\nwidth = 4\n[[settings]]\nseed = 1\n", "depth: got none, expected .* in all [[settings]]"),
        (TASK + "[[settings]]\ndepth = 1\n[[settings]]\nseed = 1\n", "depth: got none, expected .*[[settings]]"),
        (TASK + "[grid]\ndepth = [2,\n  0]\n", "line 10: depth[1]: got 0, expected an integer"),
        (TASK + '[grid]\ndepth = ["two"]\n', "line 10: depth[0]: got 'two'"),
        (TASK + "[grid]\ndepth = 2\nridge = [nan]\n", "line 11: ridge[0]: got nan"),
        (TASK + "[grid]\ndepth = 2\nseed = [-1]\n", "line 11: seed[0]: got -1"),  # not the seed of the task
        (TASK + "[grid]\ndepth = []\n", "line 10: depth: got []"),
        (TASK + GRID + "seed = []\n[[settings]]\nridge = 1\n", "line 12: seed: got []"),
        (TASK + GRID + "task.rank = [9]\n", "line 12: task.rank: got 9"),
        (TASK + GRID + "task.rank = [2020-01-01]\n", "line 12: task.rank[0]: got datetime.date"),
        (TASK + GRID + '[train]\nsteps = "many"\n', "line 13: steps: got 'many'"),
        (TASK + GRID + '[train]\noptimizer = "adm"\n', "line 13: optimizer: got 'adm' .*did you mean 'adam'"),
        (TASK + GRID + '[train]\ndevice = "foo"\n', "line 13: device: got 'foo'"),
        (TASK + GRID + "ridge = 1\n[train]\nridge = 2\n", "line 12: ridge: got a value in [train] and one in [grid]"),
        (TASK + GRID + "[[settings]]\nridge = -1\n", "line 13: ridge: got -1"),
        (TASK + GRID + "seed = [0, 1]\n[[settings]]\nridge = 1\n[[settings]]\nridge = -1\n", "line 16: ridge: got -1"),
        (TASK + GRID + "[[settings]]\ndepth = 3\n", "line 10: depth: got a value of its own and one in [grid]"),
        (TASK + GRID + "[settings]\nridge = 1\n", "line 12: got {.*expected tables [[settings]]"),
        ("settings = []\n" + TASK + GRID, "line 1: settings: got []"),
        (TASK + GRID + "[ranges]\nridge = [1]\n", "line 12: ranges: got [ranges] alone"),
        (TASK + GRID + SAMPLED.replace("4", "0") + "ridge = [1]\n", "line 13: samples.n: got 0"),  # not n of the task
        (TASK + GRID + SAMPLED.replace("n = 4", "k = 4") + "ridge = [1]\n", "samples: got 'k'"),
        (TASK + GRID + SAMPLED + "ridge = { low = nan, high = 1 }\n", "line 15: ridge: low: got nan"),
        (TASK + GRID + SAMPLED + "ridge = { low = 0.1 }\n", "line 15: ridge: got {'low': 0.1}"),
        (TASK + GRID + SAMPLED + "ridge = { low = 0, high = 1, log = true }\n", "line 15: ridge: low: got 0"),
        (TASK.replace("low_rank_map", "low_rank") + GRID, "line 2: make: got 'low_rank' .*mean 'low_rank_map'"),
        (
            TASK.replace("low_rank_map", "none.py:f") + GRID,
            "line 2: make: got 'none.py:f', expected a file that exists",
        ),
        ('[task]\nfile = "none.csv"\n' + GRID, "line 1: task: load_table(): path: got 'none.csv'"),
        ("[task]\nn = 4\n" + GRID, "line 1: task: got neither make nor file"),
    ],
)
def test_a_mistake_is_one_message_with_its_line_and_leaves_no_folder(tmp_path, sweep, text, message):
    done = sweep(text)
    said = re.sub(r"\s+", " ", done.error)
    assert done.code == 2
    assert re.search(re.escape(message).replace(r"\.\*", ".*").replace(r"\ ", " "), said), said
    assert said.startswith("error GRID grid.toml")
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.toml"]
