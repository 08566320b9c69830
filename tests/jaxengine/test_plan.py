"""Whether a model fits: figures that an engine confirms, and answers that hold when they are followed."""

import dataclasses
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import pytest

from convert.source import open_model
from gateway.config.command_line import parse as parse_launcher
from jaxengine.capacity.report import Plan, facts
from jaxengine.capacity.text import text
from jaxengine.options.command_line import Parser, parse_as
from jaxengine.options.plan import PlanOptions
from jaxengine.options.table import EngineOptions
from jaxengine.plan import main, plan
from jaxengine.startup.build import load_engine
from jaxengine.weights.loading import load_parameters
from tests.jaxengine.capacity.configurations import LLAMA_8B, LLAMA_70B, LLAMA_405B, write

Checkpoints = Callable[[str], Path]
GIB = 1 << 30


def planned(*arguments: str) -> Plan:
    return plan(parse_as(PlanOptions, Parser(), arguments))


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "convert.cli", "plan", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama2_gqa", {}),
        ("llama2_gqa", {"quantize": "int8", "kv_cache_dtype": "fp8"}),
        ("llama2_gqa", {"max_batch_total_tokens": 256, "speculate": 3}),
        ("gemma3_text", {"max_total_tokens": 64, "max_batch_size": 3}),
        ("falcon_mamba", {}),
        ("qwen3_5", {"max_batch_size": 3}),
    ],
)
def test_an_engine_is_what_was_planned(name: str, options: dict[str, Any], tiny: Checkpoints, zoo: Checkpoints) -> None:
    directory = str((tiny if name == "llama2_gqa" else zoo)(name))
    arguments = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
    told = facts(planned(directory, "--devices", "cpu", *arguments))
    held: list[int] = []

    def load(*arguments: Any) -> dict[str, Any]:
        parameters = load_parameters(*arguments)
        held.append(sum({id(each): each.nbytes for each in jax.tree.leaves(parameters)}.values()))
        return parameters

    with closing(load_engine(open_model(directory), EngineOptions(**options), load=load)) as engine:
        description = engine.description
        caches = [each.nbytes for each in jax.tree.leaves(engine.runner.state.layers)]
    for limit in ("max_total_tokens", "max_batch_total_tokens", "max_batch_size", "dtype", "cache_dtype"):
        assert told[limit] == getattr(description, limit), limit
    assert told["pages"] == description.pages_total
    assert told["bytes_of_a_device"]["weights"] == held[0]
    assert told["bytes_of_a_page"] * (description.pages_total + 1) + told["bytes_of_a_device"]["slots"] == sum(caches)


FIXED = ("weights", "drafter", "adapters", "sampler", "temporaries", "tuning", "driver")


def test_llama_8b_on_an_h200(tmp_path: Path) -> None:
    """8,030,261,248 parameters, and 131,072 bytes of keys and values for a token, in bf16."""
    told = facts(planned(write(tmp_path, LLAMA_8B), "--devices", "h200"))
    device = told["bytes_of_a_device"]
    assert told["fits"]
    assert told["known_from"] == "its configuration alone"
    assert device["weights"] == 2 * 8_030_261_248
    assert told["bytes_of_a_page"] == 16 * 131_072
    assert device["usable"] == int(151_397_597_184 * 0.9)
    spent = sum(device[name] for name in FIXED)
    assert told["pages"] == (device["usable"] - spent) // told["bytes_of_a_page"] - 1
    assert sum(device.values()) == 2 * device["usable"]  # the parts, and what there is
    assert told["max_batch_total_tokens"] == 16 * told["pages"]
    assert told["max_total_tokens"] == 131_072


def test_speeds_are_those_of_the_roofline(tmp_path: Path) -> None:
    """Of a token a step reads weights but for the embedding, keys and values; a prompt is bound by arithmetic."""
    told = facts(planned(write(tmp_path, LLAMA_8B), "--devices", "h200"))
    (use,) = (each for each in told["contexts"] if each["tokens"] == 4096)
    read = 2 * (8_030_261_248 - 128256 * 4096) + 4096 * 131_072
    assert use["tokens_per_second_alone"] == pytest.approx(4.8e12 / read, rel=0.001)
    assert use["requests"] == told["pages"] // 256
    together = 2 * (8_030_261_248 - 128256 * 4096) + use["requests"] * 4096 * 131_072
    assert use["tokens_per_second"] == pytest.approx(use["requests"] * 4.8e12 / together, rel=0.001)
    products, attention = 2 * 4095 * 6.98e9, 4 * 4095 * 4096 / 2 * 32 * 4096
    assert use["first_token_seconds"] == pytest.approx((products + attention) / 989e12, rel=0.001)


def test_a_split_model_adds_up_twice_a_layer(tmp_path: Path) -> None:
    """A token takes 8 us each time over NVLink; a prompt of 4095 over PCIe 5 sends half of its states both ways."""
    model = write(tmp_path, LLAMA_70B)
    told = facts(planned(model, "--devices", "h200x8", "--num-shard", "8"))
    (use,) = (each for each in told["contexts"] if each["tokens"] == 4096)
    read = 2 * (70_553_706_496 - 128256 * 8192) + 4096 * 80 * 2 * 8 * 128 * 2
    assert 1 / use["tokens_per_second_alone"] == pytest.approx(read / 8 / 4.8e12 + 2 * 80 * 8e-6, rel=0.001)
    model = write(tmp_path, LLAMA_8B)
    told = facts(planned(model, "--devices", "h100-pciex2", "--num-shard", "2"))
    (use,) = (each for each in told["contexts"] if each["tokens"] == 4096)
    computed = (2 * 4095 * 6.98e9 + 4 * 4095 * 4096 / 2 * 32 * 4096) / 2 / 756e12
    moved = 2 * 32 * 2 * (1 / 2) * 4095 * 4096 * 2 / 64e9
    assert use["first_token_seconds"] == pytest.approx(computed + moved, rel=0.001)


def test_what_an_encoder_computes_is_not_guessed(seq2seq: Checkpoints) -> None:
    (use,) = facts(planned(str(seq2seq("t5")), "--devices", "l4"))["contexts"]
    assert use["tokens_per_second"] > use["tokens_per_second_alone"] > 0
    assert use["first_token_seconds"] is None


def test_a_model_is_split_where_it_does_not_fit_otherwise(tmp_path: Path) -> None:
    told = facts(planned(write(tmp_path, LLAMA_70B), "--devices", "h100x8"))
    assert [(each["num_shard"], each["fits"]) for each in told["splits"]] == [
        (1, False),
        (2, True),
        (4, True),
        (8, True),
    ]
    assert "more than there is" in told["splits"][0]["problem"]
    assert (told["num_shard"], told["replicas"]) == (8, 1)
    assert told["bytes_of_a_device"]["weights"] == pytest.approx(141.1e9 / told["num_shard"], rel=0.01)


def test_a_model_that_fits_one_gpu_is_not_split(tmp_path: Path) -> None:
    told = facts(planned(write(tmp_path, LLAMA_8B), "--devices", "h100x8"))
    assert (told["num_shard"], told["replicas"]) == (1, 8)
    assert told["command"].split()[-2:] == ["--replicas", "8"]


def test_splitting_is_as_the_user_says(tmp_path: Path) -> None:
    told = facts(planned(write(tmp_path, LLAMA_8B), "--devices", "h100x8", "--num-shard", "2"))
    assert (told["num_shard"], told["replicas"], len(told["splits"])) == (2, 4, 1)


def test_what_cannot_be_divided_is_said(tmp_path: Path) -> None:
    told = facts(planned(write(tmp_path, LLAMA_8B, intermediate_size=14337), "--devices", "h200x2"))
    assert told["num_shard"] == 1
    assert told["splits"][1]["problem"] == "ffn_size 14337 cannot be split over 2 devices"


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        (LLAMA_70B, ["--devices", "h100"]),
        (LLAMA_405B, ["--devices", "h100x8"]),
        (LLAMA_8B, ["--devices", "l4", "--max-total-tokens", "65536"]),
        (LLAMA_8B, ["--devices", "a100", "--max-batch-total-tokens", "100000000"]),
        (LLAMA_8B, ["--devices", "a100", "--cuda-memory-fraction", "0.2"]),
        (LLAMA_70B, ["--devices", "cpu"]),
    ],
)
def test_every_remedy_works(config: dict[str, Any], arguments: list[str], tmp_path: Path) -> None:
    model = write(tmp_path, config)
    refused = planned(model, *arguments)
    assert refused.fit is None
    assert refused.remedies
    for remedy, told in zip(refused.remedies, facts(refused)["remedies"], strict=True):
        again = planned(model, *arguments, *followed(remedy.change, arguments))
        assert again.fit, remedy.change
        assert told.items() <= {**facts(again), "change": remedy.change}.items()
        assert (again.fit.limits, again.fit.pages) == (remedy.fit.limits, remedy.fit.pages)


def followed(change: str, arguments: list[str]) -> list[str]:
    """The options that `change` means, behind those that were given."""
    options = [word for option in re.findall(r"--\S+ \S+", change) for word in option.split()]
    if named := re.match(r"\d+ x [^,]+", change):
        return ["--devices", named[0], *options]
    if count := re.search(r"on (\d+) of these GPUs", change):
        return ["--devices", f"{arguments[1].partition('x')[0]}x{count[1]}", *options]
    return options


@pytest.mark.parametrize(
    "arguments",
    [
        ["--devices", "h100x8"],
        ["--devices", "h200", "--quantize", "fp8", "--kv-cache-dtype", "fp8_e5m2", "--max-total-tokens", "9000"],
        ["--devices", "h200x4", "--enable-lora", "--max-loras", "4", "--speculate", "3", "--rope-factor", "2.0"],
        ["--devices", "cpu", "--max-batch-size", "2", "--quantize", "int8"],
        ["--devices", "l4", "--cuda-memory-fraction", "0.95", "--huggingface-hub-cache", "/cache"],
    ],
)
def test_the_launcher_takes_the_command(arguments: list[str], tmp_path: Path) -> None:
    """With the options of the plan, and the split that it found best."""
    made = planned(write(tmp_path, LLAMA_8B), *arguments)
    assert made.fit, made.problem
    program, *words = shlex.split(made.command)
    options = parse_launcher(words, {})
    assert program == "text-generation-launcher"
    assert options.model_id == str(tmp_path)
    assert (options.num_shard or 1) == made.fit.devices
    assert options.replicas == made.fit.replicas
    asked = parse_as(PlanOptions, Parser(), arguments)
    shared = {row.name for row in dataclasses.fields(PlanOptions)} & {row.name for row in dataclasses.fields(options)}
    for name in shared - {"model_id", "num_shard"}:
        assert getattr(options, name) == getattr(asked, name), name


def test_adapters_and_a_drafter_take_room(tiny: Checkpoints) -> None:
    told, more_told = (
        facts(planned(str(tiny("llama2_gqa")), "--devices", "l4", *options))
        for options in ([], ["--enable-lora", "--speculative-config", draft_of(tiny("llama2_gqa"))])
    )
    plain, more = told["bytes_of_a_device"], more_told["bytes_of_a_device"]
    assert plain["adapters"] == plain["drafter"] == 0
    assert more["adapters"] > 0
    assert more["drafter"] >= plain["weights"]
    assert more_told["bytes_of_a_page"] == 2 * told["bytes_of_a_page"]


def test_adapters_widen_the_largest_step(tmp_path: Path) -> None:
    """XLA's figure of Llama-3.1-8B on an H200 is 1,321,386,872 bytes with adapters and 0.90 GiB without."""
    model = write(tmp_path, LLAMA_8B, num_hidden_layers=2)
    told = facts(planned(model, "--devices", "h200", "--enable-lora"))
    assert told["bytes_of_a_device"]["temporaries"] == pytest.approx(1_321_386_872, rel=0.05)


def draft_of(directory: Path) -> str:
    return json.dumps({"model": str(directory), "method": "draft_model", "num_speculative_tokens": 3})


def test_what_people_read(tmp_path: Path) -> None:
    lines = text(planned(write(tmp_path, LLAMA_8B), "--devices", "h100")).replace(str(tmp_path), "MODEL").splitlines()
    assert lines == [
        "MODEL on 1 x NVIDIA H100 80GB HBM3: fits",
        "  known from its configuration alone",
        "",
        "memory of each GPU",
        "  weights                 14.96 GiB  bfloat16",
        "  a step's temporaries     0.92 GiB  estimated; --compile asks XLA",
        "  to time products         0.98 GiB  while the rest is compiled",
        "  sampler's state          0.38 GiB",
        "  driver, CUDA graphs      1.00 GiB",
        "  cache                   52.96 GiB  433,824 tokens in bfloat16, 128.0 KiB each",
        "  left over                0.00 GiB",
        "  there is                71.20 GiB  of 79.11 GiB, by --cuda-memory-fraction",
        "",
        "requests",
        "  tokens of one  at once  tokens/s of one alone  of all  first token after",
        "          1,024      256                    221  17,371            14.7 ms",
        "          4,096      105                    216   4,930            62.2 ms",
        "         16,384       26                    195   1,230           302.4 ms",
        "         65,536        6                    142     302         2,063.4 ms",
        "        131,072        3                    104     151         6,403.7 ms",
        "  speeds are the limits that memory and arithmetic set: at most so many tokens, the first no sooner",
        "",
        "start it: text-generation-launcher --model-id MODEL",
    ]


@pytest.mark.parametrize("devices", ["h200", "cpu"])
def test_what_is_left_over_is_what_no_line_takes(devices: str, tmp_path: Path) -> None:
    """On a host nothing is left to a driver."""
    lines = text(planned(write(tmp_path, LLAMA_8B, num_hidden_layers=2), "--devices", devices)).splitlines()
    *parts, there_is = (float(found[1]) for line in lines if (found := re.search(r"(\d+\.\d\d) GiB", line)))
    assert sum(parts) == pytest.approx(there_is, abs=0.005 * (len(parts) + 1))


def test_what_limits_a_request_is_named(tmp_path: Path) -> None:
    model = write(tmp_path, LLAMA_8B)
    assert "takes 131,072 tokens, memory 17,248" in text(planned(model, "--devices", "l4"))
    few = text(planned(model, "--devices", "h200", "--max-batch-total-tokens", "5000"))
    assert "takes 131,072 tokens, --max-batch-total-tokens 5,008" in few


def test_speeds_do_not_count_speculation_and_say_so(tmp_path: Path) -> None:
    model = write(tmp_path, LLAMA_8B)
    assert "speculation" not in text(planned(model, "--devices", "h200"))
    assert "a step may give several, is not counted" in text(planned(model, "--devices", "h200", "--speculate", "3"))


def test_requests_are_as_long_as_the_model_takes_them(tmp_path: Path) -> None:
    lines = text(planned(write(tmp_path, LLAMA_8B, max_position_embeddings=1024), "--devices", "h200x2"))
    assert "requests of 1,024 at once" in lines
    assert "4,096" not in lines


def test_the_command_tells_by_its_exit_code_whether_a_model_fits(tmp_path: Path) -> None:
    model = write(tmp_path, LLAMA_70B)
    done = command(model, "--devices", "h200x8", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["fits"] is True
    done = command(model, "--devices=h100")
    assert (done.returncode, done.stderr) == (1, "")
    assert "DOES NOT FIT\n  weights and a step's temporaries take 64.71 GiB more than there is\n" in done.stdout
    assert "what would make it fit" in done.stdout


def test_a_reader_may_have_had_enough(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "convert.cli", "plan", write(tmp_path, LLAMA_8B), "--devices", "h200"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    process.stdout.close()
    assert (process.wait(120), process.stderr.read()) == (0, "")
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--devices", "tpu"], "--devices tpu must be cpu, or a GPU as in h200x8, one of a10, "),
        (["--devices", "h200", "--num-shard", "2"], "--num-shard 2 needs so many devices, and --devices has 1"),
        (["--devices", "h200", "--quantize", "awq"], "quantize 'awq': the checkpoint is in floats"),
        (["--devices", "h200", "--max-total-tokens", "131073"], "max_total_tokens 131073 is more than the model's"),
        (["--devices", "h200", "--page-size", "32"], "--page-size is unknown"),
        (["--devices", "h200", "--quantize", "int3"], "--quantize 'int3' must be one of int8"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = command(write(tmp_path, LLAMA_8B), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("plugins", "said"),
    [
        ((), "install this package with the extra cuda12 or cuda13"),
        (("json",), "XLA compiles nothing for NVIDIA H200: topology not implemented for cuda"),  # there is no plugin
    ],
)
def test_a_compiler_that_is_not_here_is_one_line(
    plugins: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxengine.capacity.compiler.PLUGINS", plugins)
    with pytest.raises(ValueError, match=f"--compile.*{said}"):
        planned(write(tmp_path, LLAMA_8B, num_hidden_layers=2), "--devices", "h200", "--compile")


def test_an_interrupt_does_not_say_that_a_model_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: PlanOptions) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxengine.plan.plan", interrupted)
    monkeypatch.setattr(logging.getLogger("jaxengine"), "level", logging.NOTSET)  # is put back
    assert main([]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_the_default_model_on_this_machine_needs_no_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    done = command("--json", PATH="/nowhere")
    told = json.loads(done.stdout)
    assert (told["device"], told["fits"], told["known_from"]) == ("cpu", True, "its files")
    assert told["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
