"""Options that are taken and change nothing are said so at start, once."""

import pytest

from gateway.config.command_line import parse
from tests.gateway.config.test_options import ROWS, flag, flags


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.metadata["no_effect"]])
def test_an_option_without_effect_is_accepted_with_one_warning(name: str) -> None:
    [warning] = parse(flags(name), {}).warnings
    assert warning.startswith(f"{flag(name)} has no effect: ")
    assert warning.endswith(ROWS[name].metadata["help"])


def test_a_field_of_speculation_without_effect_is_named() -> None:
    config = '{"model": "org/eagle", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 2}'
    [warning] = parse([f"--speculative-config={config}"], {}).warnings
    assert warning.startswith("--speculative-config: draft_tensor_parallel_size has no effect: ")


@pytest.mark.parametrize("name", ["max_loras", "max_lora_rank", "max_cpu_loras", "lora_dtype"])
def test_room_for_adapters_is_kept_where_there_may_be_some(name: str) -> None:
    assert parse(flags(name), {}).warnings == [f"{flag(name)} has no effect without --enable-lora"]
    for serving in ("enable_lora", "allow_runtime_lora_updating", "lora_adapters", "lora_modules"):
        assert parse([*flags(serving), *flags(name)], {}).warnings == []
