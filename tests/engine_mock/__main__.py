"""Serves the mock engine as a process."""

import argparse
import os
import sys
import time
from pathlib import Path

from jaxengine.lifetime import die_with_parent
from jaxengine.rpc import transport
from jaxengine.rpc.progress import OPENING
from jaxengine.service import process
from jaxengine.service.adapter_record import AdapterRecord
from jaxengine.telemetry import logs
from jaxengine.telemetry.tracing import Tracing
from tests.engine_mock.engine import HOLD_SECONDS, MockEngine
from tests.engine_mock.options import MockOptions


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds-path", type=Path, required=True)
    parser.add_argument("--model-dir", type=Path, default=MockOptions.model_dir)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--script", type=int, nargs="*", default=[], help="ids every request is answered with")
    parser.add_argument("--hold", type=Path, help="while this file exists, loading and requests wait")
    parser.add_argument("--open-seconds", type=float, default=0.0)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--max-total-tokens", type=int, default=MockOptions.max_total_tokens)
    parser.add_argument("--max-batch-size", type=int, default=MockOptions.max_batch_size)
    parser.add_argument("--page-size", type=int, default=MockOptions.page_size)
    parser.add_argument("--prefix-pages", type=int, default=0)
    parser.add_argument("--prefill-seconds-per-page", type=float, default=0.0)
    parser.add_argument("--image-token-id", type=int)
    parser.add_argument("--patch-values", type=int, default=MockOptions.patch_values)
    parser.add_argument("--speculate", type=int, default=0)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--lora-adapters", action="append", default=[])
    parser.add_argument("--adapters-file", type=Path)
    parser.add_argument("--drain-seconds", type=float, default=5.0)
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--fail-with", type=int, help="exit with this code instead of loading")
    parser.add_argument("--json-output", action="store_true")
    parser.add_argument("--otlp-endpoint")
    arguments, _ = parser.parse_known_args(argv)
    logs.configure(arguments.json_output)
    if arguments.parent_pid is not None:
        die_with_parent(arguments.parent_pid)

    def load(progress: process.Progress) -> process.Loaded:
        progress(f"{OPENING} a model")
        time.sleep(arguments.open_seconds)
        progress("loading 1/2")
        time.sleep(arguments.load_seconds / 2)
        if arguments.fail_with is not None:
            raise process.StartupError("told to fail", arguments.fail_with)
        progress("compiling 1/1")
        time.sleep(arguments.load_seconds / 2)
        while arguments.hold is not None and arguments.hold.exists():
            time.sleep(HOLD_SECONDS)
        options = MockOptions(
            step_seconds=arguments.step_seconds,
            max_total_tokens=arguments.max_total_tokens,
            max_batch_size=arguments.max_batch_size,
            model_dir=arguments.model_dir,
            page_size=arguments.page_size,
            prefix_pages=arguments.prefix_pages,
            prefill_seconds_per_page=arguments.prefill_seconds_per_page,
            tokens_per_step=1 + arguments.speculate,
            image_token_id=arguments.image_token_id,
            patch_values=arguments.patch_values,
            script=tuple(arguments.script),
            hold=arguments.hold,
            max_loras=arguments.max_loras or (8 if arguments.enable_lora or arguments.lora_adapters else 0),
            lora_adapters=tuple(arguments.lora_adapters),
        )
        engine = MockEngine(options)
        record = None if arguments.adapters_file is None else AdapterRecord(arguments.adapters_file)
        if record is not None and (noted := record.read()) is not None:
            noted.restore(engine)
        return process.Loaded(engine, arguments.model_dir, record)

    token = os.environ.pop(transport.TOKEN_VARIABLE, "")
    tracing = Tracing.to(arguments.otlp_endpoint, "engine")
    return process.run(arguments.uds_path, token, load, drain_seconds=arguments.drain_seconds, tracing=tracing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
