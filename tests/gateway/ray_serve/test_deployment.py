"""From arguments to what Serve is told of replicas, and to the replica's command line; without a cluster."""

from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from gateway.config.command_line import parse
from gateway.config.options import Options
from gateway.processes.http_process import request_limit
from gateway.ray_serve import build
from gateway.ray_serve.deployment import STOP_SECONDS, Scale, argv, deployment, target


@pytest.mark.parametrize("write", [lambda name: name, lambda name: name.replace("_", "-")], ids=["_", "-"])
def test_arguments_are_the_launchers_options_as_yaml_or_a_command_line_has_them(write: Any) -> None:
    given = {
        "model_id": "org/model",
        "max_total_tokens": 512,
        "served_model_name": ["a", "b"],
        "resume_requests": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "log_level": "debug",
    }
    written = argv({write(name): value for name, value in given.items()})
    assert parse(written, {}) == Options(
        **{
            **given,
            "served_model_name": ("a", "b"),
            "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
        }
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max-totl-tokens": 5}, "--max-totl-tokens is unknown (did you mean --max-total-tokens?)"),
        ({"max-best-of": 0}, "--max-best-of '0' must be between 1 and 128"),
        ({"max-input-tokens": 8, "max-total-tokens": 8}, "--max-input-tokens must be less than --max-total-tokens"),
        ({"reasoning-parser": "x"}, "--reasoning-parser 'x' must be none or one of"),
        ({"sharded": True}, "--num-shard says how many a replica has"),
        ({"port": 8000}, "--port is not a replica's: Ray Serve's proxy listens"),
        ({"api_workers": 2}, "--api-workers is not a replica's"),
        ({"nnodes": 2}, "--nnodes is not a replica's: under Ray Serve, each is on one machine"),
        ({"ngrok-edge": "a.example"}, "--ngrok-edge is not a replica's"),
        ({"num_gpus": "all"}, "--num-gpus 'all' must be"),
        ({"max-replicas": 0}, "--max-replicas '0' must be between 1 and 10000"),
    ],
)
def test_a_wrong_argument_is_refused_before_there_is_a_replica(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RayServeException) as refused:
        build({"model-id": "org/model", **arguments})
    assert message in str(refused.value)


def test_a_file_need_only_be_where_the_replica_is(tmp_path: Path) -> None:
    build({"api-key-file": f"{tmp_path}/keys", "tokenizer_config_path": f"{tmp_path}/tokenizer_config.json"})


@pytest.mark.parametrize(
    ("options", "scale", "gpus"),
    [
        (Options(), Scale(), 1),
        (Options(num_shard=2), Scale(), 2),
        (Options(num_shard=2, replicas=3), Scale(), 6),
        (Options(num_shard=2), Scale(num_gpus=0), 0),
    ],
)
def test_a_replica_has_as_many_gpus_as_its_engines_take(options: Options, scale: Scale, gpus: int) -> None:
    assert deployment(options, scale).ray_actor_options["num_gpus"] == gpus


@pytest.mark.parametrize("permits", [1, 128, 5000])
def test_serve_lets_a_replica_refuse_requests_itself(permits: int) -> None:
    options = Options(max_concurrent_requests=permits)
    assert deployment(options, Scale()).max_ongoing_requests > request_limit(options) > permits


def test_serve_waits_for_running_requests_and_the_end_of_the_engine() -> None:
    made = deployment(Options(graceful_termination_timeout=300.0), Scale())
    assert made._deployment_config.graceful_shutdown_timeout_s == 300 + STOP_SECONDS


def test_the_number_of_replicas_follows_requests_only_if_that_is_asked() -> None:
    assert deployment(Options(), Scale())._deployment_config.autoscaling_config is None
    scaling = deployment(Options(), Scale(min_replicas=0, max_replicas=8))._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (0, 8)
    assert scaling.target_ongoing_requests == target(Options())


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (Options(max_concurrent_requests=128), 64),
        (Options(max_concurrent_requests=1), 1),
        (Options(max_batch_size=16), 16),
        (Options(max_batch_size=16, replicas=2), 32),
        (Options(max_batch_size=512, max_concurrent_requests=128), 64),
    ],
)
def test_another_replica_comes_once_steps_are_full_and_before_permits_run_out(options: Options, requests: int) -> None:
    assert target(options) == requests
