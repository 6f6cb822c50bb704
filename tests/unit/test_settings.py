"""Settings: names, defaults, allowed values, and which value holds for a type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import Enum, IntEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Queue
from holdfast.config import (
    SETTINGS,
    Value,
    default_database_url,
    find_setting,
    home_folder,
    parse_setting,
)
from holdfast.core.backoff import Backoff
from holdfast.core.settings import Depth, Limit, Resolved, Settings
from holdfast.durations import parse_duration
from holdfast.errors import ConfigError
from holdfast.handlers.registry import parse_handler_options

MIB = 1024 * 1024

DEFAULTS = {
    "max_attempts": 3,
    "backoff_strategy": "exponential",
    "backoff_base": 2,
    "backoff_factor": 1,
    "backoff_max": 21_600,
    "backoff_jitter": 0.2,
    "job_timeout": None,
    "lease_seconds": 30,
    "heartbeat_interval": 5,
    "poll_interval": 1,
    "stuck_seconds": 300,
    "concurrency": 10,
    "max_running": None,
    "rate_limit": 0,
    "max_depth": None,
    "max_payload_bytes": MIB,
    "max_result_bytes": MIB,
    "max_log_bytes": 10 * MIB,
    "log_jobs": "all",
    "retention_completed": None,
    "retention_failed": None,
    "shutdown_timeout": 30,
    "transaction_seconds": 5,
    "group_concurrency": None,
    "fair": False,
    "prefetch": None,
}


def test_every_setting_has_its_documented_default() -> None:
    assert {name: setting.default for name, setting in SETTINGS.items()} == DEFAULTS


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_default_is_a_value_that_may_be_set(name: str) -> None:
    assert parse_setting(name, SETTINGS[name].default) == (name, SETTINGS[name].default)


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_default_may_be_set_as_text(name: str) -> None:
    assert parse_setting(name, str(SETTINGS[name].default)) == (name, SETTINGS[name].default)


# Names.


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("max_retries", "max_attempts"),
        ("default_max_tries", "max_attempts"),
        ("max_concurrent_jobs", "concurrency"),
        ("job_retry_delay", "backoff_factor"),
        ("worker_heartbeat_interval", "heartbeat_interval"),
    ],
)
def test_other_names_for_a_setting_are_taken(other: str, name: str) -> None:
    assert find_setting(other).name == name
    assert find_setting(other.replace("_", "-")).name == name


@pytest.mark.parametrize("name", DEFAULTS)
def test_every_name_may_be_written_with_hyphens(name: str) -> None:
    assert find_setting(name.replace("_", "-")).name == name


@pytest.mark.parametrize("key", ["colour", "", "MAX_ATTEMPTS", "max attempts", "max_attempts\n"])
def test_an_unknown_setting_is_an_error_that_lists_them_all(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_setting(key)
    message = str(caught.value)
    assert all(name in message for name in SETTINGS)
    assert message.isprintable()


@pytest.mark.parametrize("name", ["lease_seconds", "heartbeat_interval", "poll_interval", "shutdown_timeout"])
def test_what_holds_for_the_whole_queue_cannot_be_set_for_a_type(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        parse_setting(name, 10, type="crawl")
    assert parse_setting(name, 10) == (name, 10)


# Values.

BAD_VALUES: dict[str, list[object]] = {
    "max_attempts": [0, -1, 1.5, "x", "1.5", None, True, "", [], 2**31, 10**5000],
    "backoff_strategy": ["quadratic", "", None, 1, [], "Exponential"],
    "backoff_base": [-1, "x", None, float("nan"), float("inf"), True, 10**400],
    "backoff_factor": [-0.1, "x", None, float("nan")],
    "backoff_max": [-1, "x", None, "1y", float("inf"), timedelta(seconds=-1)],
    "backoff_jitter": [-0.1, 1.1, "x", None, float("nan")],
    "job_timeout": [0, -1, "x", "5 parsecs", True],
    "lease_seconds": [2.9, 0, -5, "2s", None, "none", float("nan"), 1e12],
    "heartbeat_interval": [0, -1, None, "x"],
    "poll_interval": [0, -1, None, "x"],
    "stuck_seconds": [0, -1, None],
    "concurrency": [0, -1, 10_001, 1.5, "many", None],
    "max_running": [0, -1, "x", 1.5],
    "rate_limit": [-1, "x", None, float("nan"), float("inf"), True],
    "max_depth": [0, -1, "x"],
    "max_payload_bytes": [1, -1, "x", None, 1.5],
    "max_result_bytes": [1, -1, "x", None, "1MiB"],
    "max_log_bytes": [1023, "x", None],
    "log_jobs": ["x", "", None, True, 1],
    "retention_completed": [-1, "x", True],
    "retention_failed": [-1, "x", True],
    "shutdown_timeout": [-1, "x", None],
    "transaction_seconds": [0, -1, "x", None],
    "group_concurrency": [0, -1, "x", 1.5],
    "fair": ["x", 2, None, []],
    "prefetch": [-1, 1001, "x", 1.5],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, id=f"{name}-{number}")  # the values themselves may be too long to show
        for name, values in BAD_VALUES.items()
        for number, value in enumerate(values)
    ],
)
def test_a_bad_value_is_an_error_that_says_what_is_allowed(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_setting(name, value)
    assert f"is not a valid value for {name}; allowed: {SETTINGS[name].allowed}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("lease_seconds", 2.9, "at least 3"),
        ("lease_seconds", "2s", "at least 3"),
        ("poll_interval", 0, "at least 0.01"),
        ("job_timeout", 0, "greater than 0"),
        ("max_attempts", 2**31, "at most 2147483647"),
        ("concurrency", "10001", "at most 10000"),
        ("rate_limit", 1e7, "at most 1000000"),
        ("backoff_jitter", float("nan"), "at least 0"),
        ("retention_failed", timedelta(seconds=-1), "at least 0"),
        ("max_result_bytes", 2**30, "at most 536870912"),
    ],
)
def test_a_value_beyond_a_bound_is_an_error_that_names_the_bound(
    name: str, value: object, bound: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_setting(name, value)
    assert str(caught.value).endswith(f"({name} must be {bound})")


def test_bad_values_are_tried_for_every_setting() -> None:
    assert BAD_VALUES.keys() == SETTINGS.keys()


@pytest.mark.parametrize("word", ["none", "None", "never", "null", ""])
def test_no_limit_is_said_with_a_word(word: str) -> None:
    assert parse_setting("retention_completed", word) == ("retention_completed", None)
    assert parse_setting("max_running", word) == ("max_running", None)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        ("5", 5),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("10s", 10),
        ("10 s", 10),
        (" 2m ", 120),
        ("1.5h", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_a_number_a_timedelta_or_text_with_a_unit(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize("value", ["", "s", "10x", "-5s", "1h30m", "1e3", None, True, [], b"5s", "NaN"])
def test_what_is_no_duration_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(value)


@given(st.floats(0, 1e9))
def test_seconds_are_their_own_duration(seconds: float) -> None:
    assert parse_duration(seconds) == seconds


def test_a_duration_setting_takes_a_unit() -> None:
    assert parse_setting("retention_completed", "7d") == ("retention_completed", 604_800)


def test_options_of_a_decorator_are_checked_like_settings() -> None:
    parsed = parse_handler_options({"timeout": "30s", "max_attempts": 5})
    assert parsed == {"job_timeout": 30, "max_attempts": 5}
    with pytest.raises(ConfigError, match=r"there is no option 'colour'; allowed: backoff_base, .*, timeout"):
        parse_handler_options({"colour": 1})
    with pytest.raises(ConfigError, match="is not a valid value for max_attempts"):
        parse_handler_options({"max_attempts": 0})


# Which value holds.

# From the strongest to the weakest: where it is said, its value, and the level it counts for.
LEVELS = [
    ("stored for the lane", 1, "shell:media"),
    ("declared for the lane", 6, "shell:media"),
    ("stored for the base", 2, "shell"),
    ("declared for the base", 3, "shell"),
    ("stored for all", 4, ""),
    ("queue's default", 5, ""),
]


def settings(present: set[str]) -> Settings:
    stored: dict[tuple[str, str], Value] = {}
    if "stored for the lane" in present:
        stored["max_attempts", "shell:media"] = 1
    if "stored for the base" in present:
        stored["max_attempts", "shell"] = 2
    if "stored for all" in present:
        stored["max_attempts", ""] = 4

    def declared(type: str) -> Mapping[str, Value]:
        said = {"shell:media": ("declared for the lane", 6), "shell": ("declared for the base", 3)}
        where, value = said.get(type, ("", 0))
        return {"max_attempts": value} if where in present else {}

    defaults: Mapping[str, Value] = {"max_attempts": 5} if "queue's default" in present else {}
    return Settings(stored, declared=declared, defaults=defaults)


@given(st.sets(st.sampled_from([name for name, _, _ in LEVELS])))
def test_the_strongest_level_that_says_something_holds(present: set[str]) -> None:
    expected = next(
        (Resolved(value, source) for name, value, source in LEVELS if name in present), Resolved(3, "")
    )
    assert settings(present).resolve("max_attempts", "shell:media") == expected


@pytest.mark.parametrize("index", range(len(LEVELS)))
def test_each_level_holds_over_all_below_it(index: int) -> None:
    present = {name for name, _, _ in LEVELS[index:]}
    assert settings(present).get("max_attempts", "shell:media") == LEVELS[index][1]


def test_what_code_says_for_a_lane_is_its_own_whatever_is_stored_for_its_base() -> None:
    found = Settings(
        {("max_running", "pay"): 9}, declared=lambda name: {"pay:eu": {"max_running": 2}}.get(name, {})
    )
    assert found.limits("pay:eu").max_running == Limit("pay:eu", 2)
    assert found.limits("pay:us").max_running == found.limits("pay").max_running == Limit("pay", 9)


@pytest.mark.parametrize("name", ["max_running", "group_concurrency", "rate_limit", "concurrency"])
def test_a_limit_belongs_to_the_name_it_was_set_for(name: str) -> None:
    field = {"group_concurrency": "group", "rate_limit": "rate", "concurrency": "slots"}.get(name, name)
    found = Settings({(name, ""): 7, (name, "pay"): 3, (name, "pay:eu"): 1})
    owners = {
        type: getattr(found.limits(type), field) for type in ("pay", "pay:us", "pay:eu", "crawl", "a:b")
    }
    assert owners == {
        "pay": Limit("pay", 3),
        "pay:us": Limit("pay", 3),
        "pay:eu": Limit("pay:eu", 1),
        "crawl": Limit("", 7),
        "a:b": Limit("", 7),
    }


@given(
    st.dictionaries(st.sampled_from(["", "pay", "pay:eu", "pay:us", "a"]), st.none() | st.integers(1, 9)),
    st.sampled_from(["pay", "pay:eu", "pay:us", "a", "a:b", "c:d"]),
)
def test_depth_counts_the_types_that_have_it_from_the_same_name(
    stored: dict[str, int | None], type: str
) -> None:
    found = Settings({("max_depth", name): value for name, value in stored.items()})
    depth = found.depth(type, lambda _: ())
    owner = found.resolve("max_depth", type)
    if owner.value is None:
        assert depth is None
    else:
        assert depth is not None
        assert (depth.size, depth.name) == (owner.value, owner.source)
        for other in ("pay", "pay:eu", "pay:us", "pay:x", "a", "a:b", "c:d", "payment"):
            same = owner.source == found.resolve("max_depth", other).source and (owner.source in stored)
            assert depth.counts(other) == same


def test_what_code_declares_is_apart_in_a_depth() -> None:
    found = Settings(
        {("max_depth", "pay"): 5}, declared=lambda name: {"max_depth": 2} if name == "pay:eu" else {}
    )
    depth = found.depth("pay", {"max_depth": {"pay:eu", "crawl"}}.__getitem__)
    assert depth == Depth(5, "pay", ("pay:eu",))
    assert found.depth("pay:eu", lambda _: {"pay:eu"}) == Depth(2, "pay:eu")


def test_pauses_of_a_type_are_those_of_its_names() -> None:
    found = Settings({}, paused=frozenset({"", "pay", "pay:eu"}))
    assert found.limits("pay:eu").paused == ("pay:eu", "pay", "")
    assert found.limits("pay:us").paused == found.limits("pay").paused == ("pay", "")
    assert found.limits("crawl").paused == ("",)


def test_a_type_does_not_see_what_is_stored_for_its_lane() -> None:
    everything = {name for name, _, _ in LEVELS}
    assert settings(everything).get("max_attempts", "shell") == 2


def test_another_type_does_not_see_what_is_said_about_this_one() -> None:
    everything = {name for name, _, _ in LEVELS}
    assert settings(everything).get("max_attempts", "crawl") == 4


def test_the_whole_queue_does_not_see_what_is_said_about_types() -> None:
    everything = {name for name, _, _ in LEVELS}
    assert settings(everything).get("max_attempts") == 4


def test_a_stored_none_is_a_value() -> None:
    found = Settings({("max_running", "shell"): None, ("max_running", ""): 5})
    assert found.resolve("max_running", "shell") == Resolved(None, "shell")


def test_the_jobs_own_limit_comes_before_all() -> None:
    everything = {name for name, _, _ in LEVELS}
    assert settings(everything).policy("shell:media", 7).max_attempts == 7
    assert settings(everything).policy("shell:media", None).max_attempts == 1


def test_the_back_off_of_a_type_is_put_together_from_its_settings() -> None:
    found = Settings(
        {
            ("backoff_strategy", "crawl"): "linear",
            ("backoff_base", ""): 3.0,
            ("backoff_factor", "crawl"): 2.0,
            ("backoff_max", ""): 60.0,
            ("backoff_jitter", "crawl"): 0.0,
        }
    )
    assert found.policy("crawl", None).backoff == Backoff("linear", 3.0, 2.0, 60.0, 0.0)


@pytest.mark.parametrize(
    ("lease", "heartbeat", "used"), [(30.0, 5.0, 5.0), (3.0, 5.0, 1.0), (30.0, 20.0, 10.0)]
)
def test_a_heartbeat_is_at_most_a_third_of_the_lease(lease: float, heartbeat: float, used: float) -> None:
    found = Settings({("lease_seconds", ""): lease, ("heartbeat_interval", ""): heartbeat})
    assert found.heartbeat_seconds == used


@pytest.mark.parametrize(("lease", "seconds", "used"), [(30.0, 5.0, 5.0), (3.0, 5.0, 1.0)])
def test_a_transaction_is_at_most_a_third_of_the_lease(lease: float, seconds: float, used: float) -> None:
    found = Settings({("lease_seconds", ""): lease, ("transaction_seconds", ""): seconds})
    assert found.transaction_seconds == used


# The home folder and the default database.


def test_the_default_database_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    monkeypatch.setenv("QUEUECTL_HOME", "/srv/queue")
    assert home_folder() == "/srv/queue"
    assert default_database_url() == "sqlite:////srv/queue/queue.db"


def test_the_home_folder_is_under_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEUECTL_HOME", raising=False)
    monkeypatch.setenv("HOME", "/srv/ada")
    assert home_folder() == "/srv/ada/.queuectl"


def test_the_environment_names_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUECTL_DATABASE_URL", "sqlite:///other.db")
    assert default_database_url() == "sqlite:///other.db"


@pytest.mark.parametrize("name", ["my queue", "100%", "%41", "what?", "a#b"])
def test_a_home_folder_of_any_name_is_where_the_queue_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / name))
    with Queue() as queue:
        queue.enqueue("crawl")
    assert (tmp_path / name / "queue.db").exists()


class Strategy(str, Enum):  # noqa: UP042 -- prints its name, unlike a StrEnum
    FIXED = "fixed"


class Few(IntEnum):
    TWO = 2


def test_members_of_enums_become_their_plain_values() -> None:
    name, strategy = parse_setting("backoff_strategy", Strategy.FIXED)
    assert (name, strategy, type(strategy)) == ("backoff_strategy", "fixed", str)
    name, attempts = parse_setting("max_attempts", Few.TWO)
    assert (name, attempts, type(attempts)) == ("max_attempts", 2, int)
