"""Settings: limits, messages and the way through the environment."""

import pytest
from trimtab._settings import Settings, SettingsError, default_run_name


def test_defaults_are_safe():
    settings = Settings()
    assert settings.mode == "observe"
    assert settings.act is False
    assert settings.emulate_storage == ""
    assert settings.overhead_budget == 0.01


def test_environment_round_trip():
    settings = Settings(
        server="[::1]:7070",
        run="a run/with 'all' kinds",
        act=True,
        mode="paper",
        sample_every=3,
        emulate_storage="e5m2",
        overhead_budget=0.5,
        ring_dir="/x",
        log_file="/y",
    )
    assert Settings.from_environment(settings.to_environment()) == settings


def test_empty_environment_gives_defaults():
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("server", "localhost", "HOST:PORT"),
        ("server", "h:0", "HOST:PORT"),
        ("server", "h:65536", "HOST:PORT"),
        ("server", "a b:1", "HOST:PORT"),
        ("run", "", "0 bytes"),
        ("run", "x" * 256, "256 bytes"),
        ("run", "é" * 128, "256 bytes"),
        ("run", "a\nb", "cannot be printed"),
        ("run", "a\0b", "cannot be printed"),
        ("run", "\ud800", "UTF-8"),
        ("mode", "stabilised", "observe, stabilized"),
        ("emulate_storage", "e3m4", "e4m3, e5m2"),
        ("sample_every", 0, "sample-every"),
        ("sample_every", 1_000_001, "sample-every"),
        ("overhead_budget", 0.0, "overhead-budget"),
        ("overhead_budget", 1.1, "overhead-budget"),
        ("overhead_budget", float("nan"), "overhead-budget"),
    ],
)
def test_refusals_say_what_and_how(field, value, words):
    with pytest.raises(SettingsError) as refusal:
        Settings(**{field: value})
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["x" * 255, "a/b", 'it\'s "quoted"', "日本"])
def test_odd_run_names_are_allowed(name):
    assert Settings(run=name).run == name


def test_number_in_environment_is_checked():
    with pytest.raises(SettingsError, match="TRIMTAB_SAMPLE_EVERY"):
        Settings.from_environment({"TRIMTAB_SAMPLE_EVERY": "often"})


def test_nodes_of_one_scheduler_job_share_the_default_name(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert default_run_name("train") == default_run_name("train") == "train-4711"


def test_default_names_differ_without_scheduler(monkeypatch):
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "LSB_JOBID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    assert default_run_name("train") != default_run_name("train")


def test_default_names_are_always_allowed():
    assert default_run_name("two\nlines" + "\u65e5" * 300)
