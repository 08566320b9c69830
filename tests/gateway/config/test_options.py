"""The table of options: every row from the command line and the environment, and every wrong value in one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.command_line import parse, variable_of
from gateway.config.compatibility import MISSING
from gateway.config.options import Options, rows
from jaxengine.options.adapters import NamedAdapter
from jaxengine.options.option import UsageError
from tests.processes import PATIENCE, ROOT

ROWS = {row.name: row for row in rows()}
TOKEN_FILE = str(Path(__file__).with_name("ngrok_token.txt"))
# A valid value other than the default, for each option.
EXAMPLES = {
    "model_id": "org/model", "revision": "main", "validation_workers": "3", "sharded": "true", "num_shard": "2",
    "dtype": "bfloat16", "max_concurrent_requests": "7", "max_queued_tokens": "99",
    "max_best_of": "5", "max_stop_sequences": "9", "max_top_n_tokens": "8", "max_input_tokens": "100",
    "max_input_length": "100", "max_total_tokens": "200", "waiting_served_ratio": "1.2", "max_waiting_tokens": "5",
    "max_batch_prefill_tokens": "512", "max_batch_total_tokens": "4096", "max_batch_size": "16",
    "hostname": "127.0.0.1", "port": "8080", "shard_uds_path": "/run/engine", "huggingface_hub_cache": "/data",
    "cuda_memory_fraction": "0.5", "json_output": "true", "cors_allow_origin": "https://a.example", "api_key": "secret",
    "tokenizer_config_path": __file__, "max_client_batch_size": "2", "payload_limit": "1000",
    "enable_prefill_logprobs": "true", "graceful_termination_timeout": "5", "usage_stats": "on",
    "max_engine_restarts": "3", "engine_restart_window": "60",
    "replicas": "3", "resume_requests": "false",
    "engine_hang_timeout": "9", "startup_timeout": "60", "api_key_file": str(ROOT / "LICENSE"),
    "share_prefix_cache": "true", "request_timeout": "5", "queue_timeout": "5", "ssl_certfile": __file__,
    "enable_per_request_metrics": "true", "max_stored_responses": "9", "max_stored_response_bytes": "1000000",
    "ssl_keyfile": __file__, "weights_cache_override": "/tmp", "cuda_graphs": "1,2,4", "env": "true",
    "disable_custom_kernels": "true", "disable_grammar_support": "true", "master_addr": "a", "master_port": "1",
    "nnodes": "2", "node_rank": "1", "group_key_file": __file__,
    "api_workers": "2", "aip_http_port": "8080", "aip_predict_route": "/v1/p:predict",
    "aip_health_route": "/v1/p", "watermark_gamma": "0.25", "watermark_delta": "4",
    "language_model_only": "true", "merge_adapter": "org/adapter@v1",
    "rope_scaling": "dynamic", "rope_factor": "2", "attention": "reference",
    "quantize": "eetq", "kv_cache_dtype": "fp8", "lora_adapters": "sql=org/sql@v1", "enable_lora": "true",
    "lora_modules": "code=/data/code", "allow_runtime_lora_updating": "true",
    "max_loras": "4", "max_lora_rank": "64", "max_cpu_loras": "9", "lora_dtype": "float32",
    "pooling": "mean",
    "speculate": "3", "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}',
    "prometheus_port": "9001", "otlp_endpoint": "http://c:4317", "otlp_service_name": "mine",
    "log_level": "DEBUG", "compute_type": "1-h200", "served_model_name": "mine", "root_path": "/llm",
    "disable_ui": "true",
    "max_logprobs": "50", "return_tokens_as_token_ids": "true", "enable_force_include_usage": "true",
    "tool_call_parser": "hermes", "reasoning_parser": "none", "tool_strict_level": "function",
    "enable_auto_tool_choice": "true",
    "ngrok": "true", "ngrok_authtoken": "2b7token", "ngrok_authtoken_file": TOKEN_FILE, "ngrok_edge": "me.ngrok.app",
    "max_images": "2", "max_image_size": "1000", "max_image_pixels": "1000", "image_payload_limit": "1000",
    "max_image_memory": "1000",
    "allowed_media_domains": "*.example.com", "image_fetch_timeout": "2",
    "max_image_patches": "4096", "image_cache_tokens": "65536", "state_snapshots": "24",
    "admin_port": "9002", "grpc_port": "8001", "admin_hostname": "0.0.0.0", "admin_exclusive": "true",
}  # fmt: skip


def variable(name: str) -> str:
    return variable_of(ROWS[name])


FLAG_ONLY = {"env", "master_port"}  # TGI reads no variable of the one name; others mean something else by the other
TOGETHER = {
    "ssl_keyfile": ("ssl_certfile", "ssl_keyfile"),
    "admin_exclusive": ("admin_port", "admin_exclusive"),
    "nnodes": ("master_addr", "nnodes"),
    "ngrok": ("api_key", "ngrok_authtoken", "ngrok"),
}
# TGI 3's launcher, as its reference lists it.
TGI = """
model-id revision validation-workers sharded num-shard quantize speculate dtype kv-cache-dtype trust-remote-code
max-concurrent-requests max-best-of max-stop-sequences max-top-n-tokens max-input-tokens max-input-length
max-total-tokens waiting-served-ratio max-batch-prefill-tokens max-batch-total-tokens max-waiting-tokens
max-batch-size cuda-graphs hostname port prometheus-port shard-uds-path huggingface-hub-cache weights-cache-override
disable-custom-kernels cuda-memory-fraction rope-scaling rope-factor json-output otlp-endpoint otlp-service-name
cors-allow-origin api-key watermark-gamma watermark-delta ngrok ngrok-authtoken ngrok-edge tokenizer-config-path
disable-grammar-support max-client-batch-size lora-adapters usage-stats payload-limit enable-prefill-logprobs
graceful-termination-timeout master-addr master-port env
"""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_every_row_has_an_example() -> None:
    assert EXAMPLES.keys() == ROWS.keys()


def flags(name: str) -> list[str]:
    """`name` with its example, and the options that it requires."""
    return [f"{flag(each)}={EXAMPLES[each]}" for each in TOGETHER.get(name, (name,))]


@pytest.mark.parametrize("name", ROWS)
def test_the_command_line_and_the_environment_say_the_same(name: str) -> None:
    by_variable = parse([], {variable(each): EXAMPLES[each] for each in TOGETHER.get(name, (name,))})
    assert (parse(flags(name), {}) == by_variable) is (name not in FLAG_ONLY)
    assert getattr(parse(flags(name), {}), name) != ROWS[name].default


@pytest.mark.parametrize("name", ROWS)
def test_the_command_line_wins_and_an_empty_variable_is_not_set(name: str) -> None:
    assert parse(flags(name), {variable(name): "nonsense" * 50}) == parse(flags(name), {})
    assert parse([], {variable(name): ""}) == Options()


@pytest.mark.parametrize("name", TGI.split())
def test_every_option_of_tgi_is_known_or_refused_by_name(name: str) -> None:
    row = name.replace("-", "_")
    assert (row in ROWS) != (row in MISSING)


@pytest.mark.parametrize("name", MISSING)
def test_an_option_that_is_not_implemented_is_refused_from_both_sides(name: str) -> None:
    with pytest.raises(UsageError, match=f"{flag(name)} 'something' is not supported"):
        parse([flag(name), "something"], {})
    with pytest.raises(UsageError, match=f"{name.upper()} 'something' is not supported"):
        parse([], {name.upper(): "something"})
    for harmless in MISSING[name]:
        assert parse([flag(name), harmless], {}) == Options()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("port", "65536", "must be between 0 and 65535"),
        ("port", "http", "must be a whole number"),
        ("max_concurrent_requests", "0", "must be between 1 and 1000000"),
        ("validation_workers", "-1", "must be between 1 and 64"),
        ("cuda_memory_fraction", "nan", "must be between 0.01 and 1"),
        ("cuda_memory_fraction", "1.5", "must be between 0.01 and 1"),
        ("graceful_termination_timeout", "inf", "must be between 0 and 86400"),
        ("dtype", "int8", "must be one of auto, float32, float16, bfloat16"),
        ("quantize", "exl2", "must be one of int8, fp8, int4, nf4, fp4, none, eetq, bitsandbytes,"),
        ("kv_cache_dtype", "int8", "must be one of auto, fp8, fp8_e4m3fn, fp8_e5m2"),
        ("dtype", "bf16", "must be one of auto, float32, float16, bfloat16 (did you mean bfloat16?)"),
        ("log_level", "infos", "must be one of debug, info, warn, error (did you mean info?)"),
        ("json_output", "maybe", "must be true or false"),
        ("cors_allow_origin", "example.com", "must be '*' or start with http"),
        ("tokenizer_config_path", "/nowhere.json", "must be an existing file"),
        ("model_id", " ", "must not be empty"),
        ("compute_type", "a\nb", "must be printable ASCII"),
        ("max_logprobs", "-2", "must be between -1 and 1000"),
        ("root_path", "llm", "must be a path that begins with /"),
        ("log_level", "loud", "must be one of debug, info, warn, error"),
        ("allowed_media_domains", "https://a.example", "must be a host such as images.example.com"),
        ("allowed_media_domains", "a.example:0", "must be a host such as images.example.com"),
        ("allowed_media_domains", "10.1.2.3/8", "must be an address, or a network such as 10.1.0.0/16"),
        ("allowed_media_domains", "169.254.169.254", "must not be link-local"),
        ("max_images", "65", "must be between 0 and 64"),
        ("ngrok_edge", "https://me.ngrok.app", "must be a domain such as name.ngrok.app, without https://, or an edge"),
        ("ngrok_edge", "edgtcp_2b7", "must be a domain such as name.ngrok.app, without https://, or an edge"),
        ("speculate", "64", "must be between 0 and 63"),
        ("speculative_config", "{method: ngram}", "must be a JSON object"),
        ("speculative_config", '{"method": "dflash", "model": "m"}', "method 'dflash' is not served; served are"),
    ],
)
def test_a_wrong_value_names_its_source_itself_and_what_would_be_right(name: str, value: str, reason: str) -> None:
    for arguments, environment, source in (
        ([f"{flag(name)}={value}"], {}, flag(name)),
        ([], {variable(name): value}, variable(name)),
    ):
        with pytest.raises(UsageError) as wrong:
            parse(arguments, environment)
        assert str(wrong.value).startswith(f"{source} {value!r} {reason}")


def test_options_with_an_effect_are_accepted_without_warning() -> None:
    no_effect = {name for name, row in ROWS.items() if row.metadata["no_effect"]} | {"max_input_length"}
    no_effect |= {"replicas"}  # they do not go with --nnodes
    given = [f"{flag(name)}={value}" for name, value in EXAMPLES.items() if name not in no_effect]
    assert parse(given, {}).warnings == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--nnodes=2"], "--nnodes 2 needs --master-addr, the address of the machine of --node-rank 0"),
        (["--nnodes=2", "--master-addr=a", "--master-port=0"], "--master-port must be one that the others know, got 0"),
        (["--nnodes=2", "--master-addr=a", "--node-rank=2"], "--node-rank must be less than --nnodes 2, got 2"),
        (
            ["--nnodes=2", "--master-addr=a", "--replicas=2"],
            "--nnodes splits one model over machines: it does not go with --replicas",
        ),
    ],
)
def test_a_group_that_cannot_be_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        parse(given, {})


def test_kubernetes_says_which_pod_of_a_group_this_is() -> None:
    of_a_pod = {"LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2", "LWS_LEADER_ADDRESS": "x-0.x.default"}
    options = parse([], of_a_pod)
    assert (options.nnodes, options.node_rank, options.master_addr) == (4, 2, "x-0.x.default")
    assert options.follows and not parse([], {**of_a_pod, "LWS_WORKER_INDEX": "0"}).follows
    assert parse(["--nnodes=1"], of_a_pod) == Options()
    assert parse([], {**of_a_pod, "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}) == Options()


def test_variables_of_other_programs_make_no_group() -> None:
    """Those of Slurm's, PyTorch's and Lightning's jobs."""
    others = {"NNODES": "1:4", "NODE_RANK": "80", "MASTER_ADDR": "h", "MASTER_PORT": "0", "WORLD_SIZE": "8"}
    assert parse([], others) == Options() and parse([], others).warnings == []


@pytest.mark.parametrize("name", ["node_rank", "master_addr", "master_port", "group_key_file"])
def test_of_one_machine_alone_there_is_no_group(name: str) -> None:
    options = parse([f"{flag(name)}={EXAMPLES[name]}"], {})
    assert not options.follows and options.warnings == [f"{flag(name)} has no effect without --nnodes"]


def test_a_wrong_key_is_not_repeated() -> None:
    with pytest.raises(UsageError) as wrong:
        parse(["--api-key=hush\tnow"], {})
    assert "hush" not in str(wrong.value)
    assert "hush" not in repr(parse(["--api-key=hush"], {}))


def test_a_wrong_token_of_ngrok_is_not_repeated(tmp_path: Path) -> None:
    (empty := tmp_path / "empty").write_text(" \n")
    (two := tmp_path / "two").write_text("hush\nhush")
    for given, message in (
        ("--ngrok-authtoken=hush now", "--ngrok-authtoken must be one token: printable ASCII without spaces"),
        (f"--ngrok-authtoken-file={empty}", "--ngrok-authtoken-file must hold one token and nothing else"),
        (f"--ngrok-authtoken-file={two}", "--ngrok-authtoken-file must hold one token and nothing else"),
        (f"--ngrok-authtoken-file={tmp_path}", "--ngrok-authtoken-file must be an existing file"),
    ):
        with pytest.raises(UsageError, match=f"^{message}$"):
            parse([given], {})
    assert "2b7" not in repr(parse(flags("ngrok") + flags("ngrok_authtoken_file"), {}))


def test_ngrok_s_other_options_are_named_without_effect_where_it_is_off() -> None:
    given = [*flags("ngrok_authtoken"), *flags("ngrok_authtoken_file"), *flags("ngrok_edge")]
    assert parse(given, {}).warnings == [
        "--ngrok-authtoken has no effect without --ngrok",
        "--ngrok-authtoken-file has no effect without --ngrok",
        "--ngrok-edge has no effect without --ngrok",
    ]
    assert parse([*flags("ngrok"), *given], {}).warnings == []
    assert parse([], {"NGROK": "false", "NGROK_AUTHTOKEN": "2b7"}).ngrok is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-input-tokens=5", "--max-input-length=6"], "older name"),
        (["--max-input-tokens=9", "--max-total-tokens=9"], "less than --max-total-tokens, got 9 and 9"),
        (["--lora-adapters=a=/one,a=/two"], "--lora-adapters: two adapters are called 'a'"),
        (["--lora-adapters=a="], "--lora-adapters: path ''"),
        (["--lora-adapters=a", "--lora-modules=a=/one"], "--lora-adapters: two adapters are called 'a'"),
        (["--lora-adapters=a", "--served-model-name=a"], "'a' is a name of the model itself"),
        (["--lora-adapters=tgi=/one"], "'tgi' is a name of the model itself"),
        (["--lora-modules=/one"], "must be name=path"),
        (["--lora-modules={"], "must be name=path, or JSON"),
        (['--lora-modules={"name": "a"}'], "must have the fields name and path"),
        (['--lora-modules={"name": "a", "path": 1}'], "must have the fields name and path"),
        (['--lora-modules={"name": "a", "path": null}'], "must have the fields name and path"),
        (
            ['--lora-modules={"name": "a", "path": "b", "rank": 8}'],
            "no other fields than name, path",
        ),
        (
            ["--speculate=3", '--speculative-config={"num_speculative_tokens": 5}'],
            "--speculative-config: speculate 3 contradicts num_speculative_tokens 5",
        ),
        (
            ["--speculate=0", '--speculative-config={"model": "org/heads"}'],
            "--speculative-config: speculate 0 contradicts model 'org/heads'",
        ),
        (
            ["--ngrok", "--api-key=hush"],
            "--ngrok needs the token of your account: set NGROK_AUTHTOKEN or --ngrok-authtoken-file",
        ),
        (
            ["--ngrok", "--ngrok-authtoken=2b7"],
            "--ngrok opens this server to the whole internet: set API_KEY or --api-key-file to ask for a key",
        ),
        (
            ["--ngrok-authtoken=2b7", f"--ngrok-authtoken-file={TOKEN_FILE}"],
            "--ngrok-authtoken and --ngrok-authtoken-file differ: set only one of them",
        ),
        (["--no-such-thing"], "--no-such-thing is unknown"),
        (["--max-best"], "--max-best is unknown (did you mean --max-best-of?)"),
        (["--max-input-lenght", "4"], "--max-input-lenght is unknown (did you mean --max-input-length?)"),
        (["--Max_Input_Tokens=4"], "--Max_Input_Tokens is unknown (did you mean --max-input-tokens?)"),
        (["org/model"], "'org/model' is not expected: --model-id names the model"),
        (["--port=1", "org/model"], "a further word behind --port is not expected: --model-id names the model"),
        (["-api-key=hush"], "'-api-key' is not expected: --model-id names the model"),
        (
            ["\u2013api-key=hush"],
            "'\u2013api-key' is not expected: --model-id names the model",
        ),  # a dash, as pages make of --
        (["--api-key", "a", "hush"], "a further word behind --api-key is not expected: --model-id names the model"),
        (["--port"], "--port needs a value, 0..65535"),
        (["--quantize"], "--quantize needs a value, which --help lists"),
    ],
)
def test_contradictions_and_unknown_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(arguments, {})


def test_the_older_name_of_the_input_limit_means_the_same() -> None:
    assert parse(["--max-input-length=77"], {}).max_input_tokens == 77


def test_a_container_name_in_HOSTNAME_is_ignored() -> None:
    assert parse([], {"HOSTNAME": "f3a9c2b1"}).hostname == "0.0.0.0"
    assert parse([], {"HOSTNAME": "::1"}).hostname == "::1"


def test_what_kubernetes_tells_of_a_service_is_no_option() -> None:
    """It sets PROMETHEUS_PORT in every pod beside a Service of that name."""
    told = {
        "PROMETHEUS_PORT": "tcp://10.0.0.1:9090",
        "ADMIN_PORT": "udp://[fd00::1]:53",
        "MASTER_PORT": "tcp://10.0.0.2:1",
    }
    options = parse([], told)
    assert (options.prometheus_port, options.admin_port) == (Options.prometheus_port, Options.admin_port)
    with pytest.raises(UsageError, match=r"PROMETHEUS_PORT 'http://10.0.0.1' must be a whole number"):
        parse([], {"PROMETHEUS_PORT": "http://10.0.0.1"})


def test_origins_may_be_repeated_and_are_a_comma_list_in_the_environment() -> None:
    origins = ("https://a.example", "http://b.example")
    assert parse([f"--cors-allow-origin={origin}" for origin in origins], {}).cors_allow_origin == origins
    assert parse([], {"CORS_ALLOW_ORIGIN": ",".join(origins)}).cors_allow_origin == origins


def test_adapters_go_by_vllm_s_notation_too() -> None:
    as_json = '{"name": "two", "path": "org/two", "base_model_name": "org/base"}'
    adapters = (NamedAdapter("one", "/data/one"), NamedAdapter("two", "org/two"))
    assert parse(["--lora-modules", "one=/data/one", as_json], {}).adapters == adapters
    assert parse(["--lora-modules=one=/data/one", f"--lora-modules={as_json}"], {}).adapters == adapters
    baseless = as_json.replace('"org/base"', "null")
    assert parse(["--lora-modules", baseless], {}).adapters == adapters[1:]
    assert parse([], {"LORA_MODULES": f"one=/data/one,{as_json}"}).adapters == adapters
    assert parse([], {"LORA_MODULES": "one=/data/one,two=org/two"}).adapters == adapters


def test_vllm_s_variable_lets_clients_load_adapters_unless_ours_says_otherwise() -> None:
    theirs = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    assert parse([], theirs) == parse(["--allow-runtime-lora-updating"], {})
    assert not parse([], {**theirs, "ALLOW_RUNTIME_LORA_UPDATING": "false"}).allow_runtime_lora_updating


def test_a_usage_error_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "gateway.launcher", "--port=nine"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stderr == "error: --port 'nine' must be a whole number\n"


def test_the_gateway_starts_without_what_only_the_engine_needs() -> None:
    """The port is bound within a second and a half only because these modules are not imported."""
    heavy = "{'jax', 'jaxlib', 'flax', 'transformers', 'torch', 'convert', 'jaxengine.request.sampling_params'}"
    code = f"import sys, gateway.launcher, gateway.processes.server; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "given",
    [
        *("auto-round", "awq", "bitsandbytes-nf4", "compressed-tensors", "eetq", "fp8", "gptq", "int8"),
        *("modelopt", "mxfp4"),
    ],
)
def test_a_format_of_weights_goes_by_tgi_s_and_vllm_s_names_too(given: str) -> None:
    assert parse(["--quantize", given], {}).quantize == parse([], {"QUANTIZE": given}).quantize == given


@pytest.mark.parametrize(("given", "meant"), [("fp8", "fp8_e4m3fn"), ("fp8_e5m2", "fp8_e5m2"), ("auto", "auto")])
def test_the_cache_goes_by_vllm_s_names_too(given: str, meant: str) -> None:
    assert parse(["--kv-cache-dtype", given], {}).kv_cache_dtype == meant


@pytest.mark.parametrize("given", ["paged", "flashdecoding", "flashdecoding-ipex", "flashinfer"])
def test_a_kernel_of_tgi_s_is_the_back_end_of_the_device(given: str) -> None:
    assert parse(["--attention", given], {}) == parse([], {"ATTENTION": given}) == Options()
