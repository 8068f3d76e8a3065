"""Configuration: a wrong key or value is an error that names the right ones; what `init` writes loads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import pytest

from sentinel.config import Config, load_config, template
from sentinel.config.removed_keys import REMOVED
from sentinel.plan.choose.ladder import DEFAULT_LADDER, Rung
from sentinel.plan.choose.policy import Policy
from sentinel.vocabulary.errors import ConfigError
from sentinel.vocabulary.numbers import ranges_of

RUN = '[run]\nname = "a"\ncheckpoints = "c"\n'

SCRAPED = "[source]\nkind = 'prometheus'\nurl = 'http://p:9090'\n"
HOOK = RUN + "[[paging.webhook]]\n"
MAIL = RUN + "[[paging.mail]]\nhost = 'h'\nsender = 'a@a'\nto = ['b@b']\n"


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "a.toml"
    path.write_text(text)
    return load_config(path)


def test_observe_is_the_default_and_paths_count_from_the_file(tmp_path: Path) -> None:
    config = load(tmp_path, RUN)
    assert config.policy == Policy()
    assert config.policy.mode == "observe"
    assert config.run.checkpoints == tmp_path / "c"
    assert config.launcher.log == Path.cwd() / ".sentinel" / "a" / "job.log"
    assert config.source.kind == "journal"
    assert load(tmp_path, RUN + "[source]\nkind = 'log'\npath = 'logs/x.txt'\n").source.path == tmp_path / "logs/x.txt"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RUN + "[polcy]\n", "no key 'polcy'; the right ones are run, launcher, commands, source, watch, judge, policy"),
        (RUN + "[source]\nkind = 'logs'\n", "source.kind should be one of 'journal', 'log'"),
        (RUN + "[source]\nkind = 'prometheus'\n", "url should look like http://prometheus:9090"),
        (RUN + "[source]\nkind = 'prometheus'\nurl = 'http://me:hush@p:9090'\n", "url contains a user or a password"),
        (RUN + SCRAPED + "user = 'me'\n", "set both user and password_file, or neither"),
        (RUN + SCRAPED + "user = 'me'\npassword_file = 'p'\ntoken_file = 't'\n", "user and password_file, not both"),
        (RUN + SCRAPED + "lookback_s = 5\n", "source.lookback_s should be at least 60, not 5.0"),
        (RUN + SCRAPED + "[policy]\nmode = 'act'\n", "mode should be 'observe', not 'act': .*nothing can be proved"),
        (RUN + "[source]\nformat = 'megatorn'\n", "no log format is called 'megatorn'; there are .*megatron"),
        (RUN + "[policy]\nmode = 'always'\n", "policy.mode should be one of 'observe', 'approve', 'act'"),
        (RUN + "[policy]\nrollback_budget = 2.5\n", "policy.rollback_budget should be a whole number"),
        (RUN + "[policy]\nrestart_on_crash = 1\n", "true or false"),
        (RUN + "[judge]\npatience = 3\n", "no key 'patience'; the right ones are .*patience_samples"),
        (RUN + "[launcher]\ncommand = 'python train.py'\n", "launcher.command should be a list"),
        (RUN + "[launcher]\ncommand = ['']\n", "command"),
        (RUN + "[launcher]\nkind = 'elsewhere'\n[policy]\nmode = 'act'\n", "mode should be 'observe', not 'act'"),
        (RUN + "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\n", "'x' changes nothing"),
        (RUN + "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\nlr_factor = -1.0\n", "lr_factor should be above 0"),
        (
            RUN + "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\nskip_samples = 'all'\n",
            r"policy.ladder\[0\].skip_samples should be a whole number or one of 'past_onset', not 'all'",
        ),
        (RUN + "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\nbeta2 = 0.95\n", "no key 'beta2'; .*adam_beta2"),
        (
            RUN + "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\nadam_beta2 = 95.0\n",
            "adam_beta2 should be at least 0 and be",
        ),
        (RUN + "[[policy.ladder]]\nname = 'x'\nreseed = true\n", "needs the key 'hypothesis'"),
        ('[run]\nname = "a"\n', "needs the key 'checkpoints'"),
        (
            HOOK + "uri = 'x'\n",
            r"\[paging.webhook\[0\]\] has no key 'uri'; the right ones are name, severity, token_env, ",
        ),
        (HOOK, "needs one of the keys 'url', 'url_env' and 'url_file'"),
        (HOOK + "url = 'https://u:pw@example.com/'\n", "url has a user or a password in it: .*token_env or token_file"),
        (HOOK + "url = 'ftp://example.com/'\n", "begins with https:// or http://"),
        (HOOK + "url = 'https://example.com:port/'\n", "url is no address"),
        (HOOK + "url = 'https://example.com/a b'\n", "url has a space"),
        (HOOK + "url = 'https://hooks.slack.com/services/T/B/X'\n", "is a password: use url_env or url_file"),
        (HOOK + "url = 'https://a.example'\nurl_env = 'A'\n", "url and url_env say the same thing twice"),
        (HOOK + "url = 'https://a.example'\ntoken_env = 'xoxb-1'\n", "token_env should be the name of an environment"),
        (HOOK + "url_env = 'A'\nname = '../x'\n", "name should be of letters"),
        (HOOK + "url_env = 'A'\ntimeout_s = 0\n", "timeout_s should be above 0"),
        (HOOK + "url_env = 'A'\n[[paging.webhook]]\nurl_env = 'B'\n", "two channels are called 'webhook'"),
        (HOOK + "url_env = 'A'\nseverity = 'info'\n", "should be one of 'warning', 'critical'"),
        (RUN + "[paging.webhook]\nurl = 'https://u:pw@example.com/'\n", r"write \[\[paging.webhook\]\]"),
        (RUN + "[paging]\nretry_up_to_s = 0\n", "retry_up_to_s should be above 0"),
        (RUN + "[[paging.command]]\ncommand = []\n", "its first element should name a program"),
        (MAIL + "user = 'me'\n", "a user and a password go together"),
        (MAIL + "user = 'me'\npassword_env = 'P'\nsecurity = 'none'\n", "in the clear"),
        (MAIL.replace("'b@b'", ""), "to: should name at least one address"),
        ("", "needs the key 'run'"),
        ("[run\n", "a.toml"),
        (RUN.replace('"c"', "3"), "run.checkpoints should be a path"),
    ],
)
def test_a_wrong_configuration_is_named_with_what_would_be_right(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(tmp_path, text)
    assert "a.toml" in str(caught.value)
    assert "pw" not in str(caught.value)
    assert "xoxb" not in str(caught.value)


def test_a_key_is_read_under_its_old_name_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tr8.toml"
    old = '[run]\nname = "tr8"\ncheckpoints = "ckpts"\n[paging]\nlast_words_s = 7\n'
    path.write_text(old)
    assert load_config(path).paging.deliver_within_s == 7
    assert "[paging] last_words_s is called deliver_within_s now" in caplog.text
    path.write_text(f"{old}deliver_within_s = 8\n")
    with pytest.raises(ConfigError, match=r"\[paging\] has last_words_s and deliver_within_s, which are one key"):
        load_config(path)


def test_a_removed_key_is_a_warning_that_names_the_release_and_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, keys = tmp_path / "tr8.toml", {"race": "3", "race_steps": "60", "wait": '"priced"', "restart_s": "600"}
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    path.write_text(f'[run]\nname = "tr8"\ncheckpoints = "ckpts"\n[policy]\n{lines}hold_steps = 7\n')
    assert load_config(path).policy == Policy(hold_steps=7)
    warnings = [record.getMessage() for record in caplog.records]
    assert [w.partition(" was removed in 0.1.0 and is ignored: delete the line. ")[0] for w in warnings] == [
        f"{path}: [policy] {key}" for key in keys
    ]
    assert all(w.endswith(".") for w in warnings)
    path.write_text('[run]\nname = "tr8"\ncheckpoints = "ckpts"\npolicy = 3\n')
    with pytest.raises(ConfigError, match="policy"):
        load_config(path)


def test_a_removed_key_is_no_key_any_more() -> None:
    tables = get_type_hints(Config)
    for name, keys in REMOVED.items():
        assert not keys.keys() & {f.name for f in dataclasses.fields(tables[name])}


def test_a_file_that_is_not_there_is_said_with_the_way_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sentinel init"):
        load_config(tmp_path / "none.toml")


def test_a_rung_takes_all_that_it_may_hold(tmp_path: Path) -> None:
    table = "[[policy.ladder]]\nname = 'x'\nhypothesis = 'y'\n"
    config = load(
        tmp_path,
        f"{RUN}{table}skip_samples = 'past_onset'\nadam_beta2 = 0.95\nclip_grad_factor = 1\nreset_moments = true\n"
        f"options = ['--eps=1e-6']\n{table}skip_samples = 4096\n{table}wait_steps = 200\n{table}page = true\n",
    )
    first, second, third, fourth = config.policy.ladder
    assert (first.skip_samples, first.adam_beta2, first.clip_grad_factor) == ("past_onset", 0.95, 1.0)
    assert (first.reset_moments, first.options) == (True, ("--eps=1e-6",))
    assert (second.skip_samples, third.wait_steps, fourth.page) == (4096, 200, True)


def test_init_explains_every_key_of_a_rung(tmp_path: Path) -> None:
    text = template("a", checkpoints="c")
    for field in dataclasses.fields(Rung):
        assert f"#   {field.name}: " in text or field.name == "name"
    assert max(map(len, text.splitlines())) <= 120


def test_what_init_writes_loads_and_is_the_default(tmp_path: Path) -> None:
    config = load(tmp_path, template("a", checkpoints="c", command=("python", 'train "it".py')))
    assert config.launcher.command == ("python", 'train "it".py')
    assert dataclasses.replace(config.policy) == Policy()


def test_every_key_that_init_shows_can_be_switched_on_as_it_stands(tmp_path: Path) -> None:
    lines = template("a", checkpoints="c").splitlines()
    switched = [line.removeprefix("# ") if " = " in line or line.startswith("# [[") else line for line in lines]
    kept = [s for s in switched if not s.endswith('= ""')]
    text = "\n".join(s for s in kept if not s[:1].isupper())
    config = load(tmp_path, text)
    assert config.policy.ladder == DEFAULT_LADDER
    assert config.policy == Policy()
    assert [channel.name for channel in config.paging.channels] == ["chat", "mail", "command", "alertmanager"]


def test_files_that_hold_secrets_count_from_the_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, HOOK + "url_file = 'secrets/chat'\nca_file = '/etc/ca.pem'\n")
    (chat,) = config.paging.webhook
    assert (chat.url_file, chat.ca_file, chat.token_file) == (tmp_path / "secrets/chat", Path("/etc/ca.pem"), None)
    assert load(tmp_path, RUN).paging.channels == ()


def _numbers(cls: type[Any], where: str = "") -> Iterator[tuple[str, bool]]:
    """(key as errors name it, whether it has a range) of all keys that hold a number."""
    for name, hint in get_type_hints(cls).items():
        item = get_args(hint)[0] if get_origin(hint) is tuple else hint
        key = f"{where}.{name}" if where else name
        if dataclasses.is_dataclass(item):
            yield from _numbers(cast("type[Any]", item), key)
        elif {int, float} & {item, *get_args(item)} and bool not in (item, *get_args(item)):
            yield key, name in ranges_of(cls)


def test_every_number_of_the_configuration_has_a_range() -> None:
    numbers = list(_numbers(Config))
    assert len(numbers) > 70
    assert [key for key, has_range in numbers if not has_range] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[watch]\npoll_interval_s = 0\n", "watch.poll_interval_s should be above 0, not 0.0"),
        ("[watch]\npoll_interval_s = -5\n", "watch.poll_interval_s should be above 0, not -5.0"),
        ("[watch]\npoll_interval_s = inf\n", "watch.poll_interval_s should be a finite number above 0, not inf"),
        ("[watch]\npoll_interval_s = nan\n", "watch.poll_interval_s should be a finite number above 0, not nan"),
        ("[policy]\nmargin_steps = -1\n", "policy.margin_steps should be at least 0, not -1"),
        ("[policy]\nstart_budget = 0\n", "policy.start_budget should be at least 1"),
        ("[policy]\nhold_steps = 0\n", "policy.hold_steps should be at least 1"),
        ("[policy]\ngpu_hours_budget = -0.5\n", "policy.gpu_hours_budget should be at least 0, not -0.5"),
        ("[judge]\npatience_steps = -100\n", "judge.patience_steps should be at least 1"),
        (
            "[judge]\nhealed_window_samples = 9\n",
            "judge.healed_window_samples should be at least 1 and at most 8",
        ),
        ("[judge]\nstalled_after_s = 0\n", "judge.stalled_after_s should be above 0, not 0.0"),
        ("[launcher]\nslurm_timeout_s = 0\n", "launcher.slurm_timeout_s should be above 0"),
        ("[tune]\nstarts = [8, 0]\n", r"tune.starts\[1\] should be at least 1, not 0"),
        ("[metrics]\nport = 70000\n", "metrics.port should be at least 0 and at most 65535, not 70000"),
        ("[wandb]\ntimeout_s = 601\n", "wandb.timeout_s should be above 0 and at most 600"),
    ],
)
def test_a_number_out_of_its_range_is_named_with_the_range(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"a\.toml: {says}"):
        load(tmp_path, RUN + text)


def test_infinity_turns_off_what_says_so(tmp_path: Path) -> None:
    config = load(tmp_path, RUN + "[judge]\nband_sigmas = inf\nstalled_after_s = inf\n")
    assert config.judge.band_sigmas == config.judge.stalled_after_s == math.inf
