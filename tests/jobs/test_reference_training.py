from pathlib import Path

import pytest

from ebbtide.jobs.reference_training import FEATURES, load, loss, main, train_step


def test_training_learns() -> None:
    weights = [0.0] * FEATURES
    before = loss(weights)
    for step in range(2000):
        weights = train_step(step, weights)
    assert loss(weights) < 0.5 * before


def test_a_run_in_parts_ends_with_the_weights_of_one_run(tmp_path: Path) -> None:
    for step in (137, 500, 1000):
        main(["--steps", str(step), "--checkpoint", str(tmp_path / "parts.json")])
    main(["--steps", "1000", "--checkpoint", str(tmp_path / "whole.json")])
    assert load(tmp_path / "parts.json") == load(tmp_path / "whole.json")


@pytest.mark.parametrize(
    "damage", [lambda text: text[:40], lambda text: text.replace("1000", "9000"), lambda _text: ""]
)
def test_a_damaged_checkpoint_is_no_checkpoint(tmp_path: Path, damage) -> None:
    path = tmp_path / "state.json"
    main(["--steps", "1000", "--checkpoint", str(path)])
    assert load(path)[0] == 1000
    path.write_text(damage(path.read_text()))
    assert load(path) == (0, [0.0] * FEATURES)
