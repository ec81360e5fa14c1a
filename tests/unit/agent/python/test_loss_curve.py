"""The definition of an explosion."""

import math

import pytest
from trimtab import loss_curve


def ramp(steps, start, end):
    return [start + (end - start) * i / steps for i in range(steps)]


def test_a_healthy_curve_has_none():
    assert loss_curve.explosion_step(ramp(2000, 5.0, 1.6)) is None


def test_the_first_step_of_the_rise_is_reported():
    losses = [2.0] * 500 + [3.0] * 300
    # After step 500 the mean of 20 passes 2.5 with its 11th new loss.
    assert loss_curve.explosion_step(losses) == 511


def test_a_rise_must_hold_for_100_steps():
    # 90 high losses keep the mean above for 90 - 10 + 9 = 89 steps.
    assert loss_curve.explosion_step([2.0] * 100 + [3.0] * 90 + [2.0] * 300) is None
    assert loss_curve.explosion_step([2.0] * 100 + [3.0] * 101 + [2.0] * 300) == 111


def test_exactly_half_above_is_not_above():
    assert loss_curve.explosion_step([2.0] * 100 + [2.5] * 500) is None


def test_spikes_of_single_steps_are_none():
    losses = [2.0] * 2000
    losses[700] = 50.0
    assert loss_curve.explosion_step(losses) is None


def test_not_finite_counts_as_above():
    assert loss_curve.explosion_step([2.0] * 100 + [math.nan] * 200) == 101
    assert loss_curve.explosion_step([2.0] * 100 + [math.inf] * 200) == 101


def test_too_short_for_a_mean():
    assert loss_curve.explosion_step([9.0] * 19) is None


def test_final_loss_is_a_mean():
    assert loss_curve.final_loss([9.0] * 10 + [1.0, 3.0] * 100) == 2.0


def test_reading(tmp_path):
    path = tmp_path / "loss.csv"
    path.write_text("step,loss\n1,2.5\n2,nan\n")
    losses = loss_curve.read_csv(path)
    assert losses[0] == 2.5 and math.isnan(losses[1])


@pytest.mark.parametrize("text", ["step,loss\n2,1\n", "step,loss\n1,x\n", "a,b\n1,2\n", "step,loss\n1\n"])
def test_bad_files_name_the_line(tmp_path, text):
    path = tmp_path / "loss.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"loss\.csv:2"):
        loss_curve.read_csv(path)
