import json
import shlex

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kltune.verl.secrets import REDACTED, is_secret_name, redact, redact_values

SECRET = "s3cr3t-Value_0123456789"  # noqa: S105 (the very subject)


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "apiKey",
        "VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "SWANLAB_API_KEY", "DB_PASSWORD",
        "trainer.wandb.api_key", "MLFLOW_TRACKING_PASSWORD", "clientSecret", "--hf-token",
    ],
)  # fmt: skip
def test_names_of_secrets_are_known(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "data.prompt_key", "data.reward_fn_key", "eos_token", "pad_token_id", "max_tokens",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu", "max_num_batched_tokens",
        "TOKENIZERS_PARALLELISM", "loss_agg_mode", "trainer.experiment_name", "PROMPT_KEY",
        "actor_rollout_ref.rollout.max_new_token", "kl_coef",
    ],
)  # fmt: skip
def test_names_of_verl_settings_are_no_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        f"export WANDB_API_KEY={SECRET}",
        f"WANDB_API_KEY='{SECRET}' HF_TOKEN=\"{SECRET} and more\" python3 -m x",
        f"export WANDB_API_KEY=${{WANDB_API_KEY:-{SECRET}}}",
        f"hf auth login --token {SECRET}",
        f"tool --api-key={SECRET}",
        f"wandb login --relogin {SECRET}",
        f"optuna: postgresql://tuner:{SECRET}@db.example.org:5432/kl",
        f"optuna: postgresql://tuner:x/{SECRET}@db.example.org:5432/kl",
        f"curl https://example.org/x?access_token={SECRET}&n=1",
        f"curl -H 'Authorization: Bearer {SECRET}'",
        f"env:\n  HF_TOKEN: {SECRET} with blanks\n  N: 1\n",
        json.dumps({"env_vars": {"WANDB_API_KEY": SECRET}}),
        json.dumps({"runtime_env": json.dumps({"env_vars": {"WANDB_API_KEY": SECRET}})}),
        f"+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY={SECRET}",
        f"ray_kwargs={{env_vars: {{HF_TOKEN: {SECRET}}}, num_cpus: 8}}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text):
    assert SECRET not in redact(text)
    assert REDACTED in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a1" * 17, "sk-proj-" + "b2" * 20, "ghp_" + "c3" * 18, "AKIA" + "D4" * 8,
        "xoxb-123456789012-abcdef", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)  # fmt: skip
def test_known_token_shapes_are_hidden_without_a_name(text):
    assert redact(f"tail {text} end") == f"tail {REDACTED} end"


@pytest.mark.parametrize(
    "text",
    [
        "export WANDB_API_KEY=$WANDB_API_KEY",
        'export HF_TOKEN="${HF_TOKEN:?set it}"',
        "password: ${oc.env:DB_PASSWORD}",
        "api_key: null",
        "data.prompt_key=prompt data.max_response_length=512",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "ssh://git@example.org/x and http://localhost:8265/ask?who=a@b",
        "kl_ctrl.target_kl=0.02 # tokens: 5 per row",
    ],
)
def test_references_and_settings_stay(text):
    assert redact(text) == text


def test_hidden_yaml_and_json_still_parse():
    values = {"env": {"HF_TOKEN": SECRET, "n": 1}, "keys": [{"api_key": SECRET}]}
    assert json.loads(redact(json.dumps(values))) == yaml.safe_load(redact(yaml.dump(values)))
    assert redact_values(values) == json.loads(redact(json.dumps(values)))


def test_values_are_hidden_by_key_and_inside_text():
    values = redact_values(
        {"a.token": SECRET, "storage": f"mysql://u:{SECRET}@h/d", "n": 3, "token_mean": "x"}
    )
    assert values == {
        "a.token": REDACTED,
        "storage": f"mysql://u:{REDACTED}@h/d",
        "n": 3,
        "token_mean": "x",
    }


@given(st.text(min_size=8).filter(lambda s: not s.startswith("$") and "\x00" not in s))
def test_any_quoted_secret_is_hidden(secret):
    line = f"export WANDB_API_KEY={shlex.quote('k' + secret)} N=1"
    assert redact(line) in {f"export WANDB_API_KEY={q}{REDACTED}{q} N=1" for q in ("", "'")}


@given(st.text())
def test_redaction_is_settled_after_one_pass(text):
    assert redact(redact(text)) == redact(text)


def test_long_hostile_text_takes_linear_time():
    redact("a=" * 50_000)
    redact("TOKEN=" + '"' * 50_000)
    redact("http://" + "a:" * 50_000)
