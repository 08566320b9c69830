"""The command line of `text-generation-server`: of its own sub-commands, and the names of those that hand over.

`serve` and `plan` have tables of options, in `jaxengine/options/`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from convert.checkpoint import DTYPES
from jaxengine.options.option import UsageError
from jaxengine.options.parser import Parser
from jaxengine.options.suggestion import suggestion

PROGRAM = "text-generation-server"
FORMAT = "stablehlo"  # of exported programs
HANDED_OVER = {
    "serve": "run one engine process",
    "plan": "tell whether a model fits, for how many requests, and how fast",
}
COMMANDS = {
    "download-weights": "fetch a model ahead of time",
    "convert": "write a checkpoint in the engine's own layout",
    "quantize": "round the layers' weights to a few bits by GPTQ, calibrated on a text",
    "export": "write a program of StableHLO and its weights, which run without this package",
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The sub-command and its options.

    Raises:
        UsageError: an option or the command is wrong, unknown or missing. The message says what is near.
    """
    names = [*HANDED_OVER, *COMMANDS]
    if not argv or (argv[0] not in names and not argv[0].startswith("-")):
        wrong = f"{argv[0]!r} is no command{suggestion(argv[0], names)}" if argv else "a command is missing"
        raise UsageError(f"{wrong}; there are {', '.join(names)}")
    return _parser().parse_args(argv)


def _parser() -> Parser:
    parser = Parser(PROGRAM, usage="%(prog)s COMMAND [OPTIONS]", description="Fetch, convert and serve checkpoints.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    for name, help in HANDED_OVER.items():
        commands.add_parser(name, help=help, add_help=False)
    for name, help in COMMANDS.items():
        target = "" if name == "download-weights" else " OUTPUT_DIR"
        usage = f"{PROGRAM} {name} MODEL_ID{target} [OPTIONS]"
        _add_options(commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", usage=usage))
    return parser


def _add_options(command: Parser) -> None:
    name = command.usage.split()[1] if command.usage else ""
    model = command.add_argument_group("Model")
    model.add_argument("model_id", metavar="MODEL_ID", help='hub id, local directory, .gguf file, or "default"')
    model.add_argument("--revision", metavar="TEXT", help="branch, tag or commit on the hub")
    alone = "the text part alone of a model that takes pictures or sound"
    model.add_argument("--language-model-only", action="store_true", help=alone)
    model.add_argument("--huggingface-hub-cache", metavar="PATH", help="where hub downloads are kept")
    if name != "download-weights":
        output = command.add_argument_group("Output")
        output.add_argument("output_dir", metavar="OUTPUT_DIR", type=Path, help="a new or an empty directory")
        OUTPUTS[name](output)
    _add_tgis(command.add_argument_group("Taken from TGI"), name)


def _add_dtype(output: argparse._ArgumentGroup) -> None:
    output.add_argument(
        "--dtype", type=_one_of(*sorted(DTYPES)), metavar="|".join(sorted(DTYPES)), help="the checkpoint's if not given"
    )


def _add_quantize_options(output: argparse._ArgumentGroup) -> None:
    output.add_argument("--bits", type=_whole, metavar="2|3|4|8", default=4, help="of a weight [%(default)s]")
    output.add_argument(
        "--groupsize", type=_whole, metavar="N", default=128, help="inputs that share a scale, -1: all [%(default)s]"
    )
    output.add_argument(
        "--percdamp", type=float, metavar="SHARE", default=0.01, help="damping of the Hessian's diagonal [%(default)s]"
    )
    output.add_argument("--act-order", action="store_true", help="round inputs of large activations first")
    calibration = "text of which up to 128 x 2048 tokens are used, evenly spread; a short one of our own if not given"
    output.add_argument("--calibration", type=Path, metavar="FILE", help=calibration)


def _add_export_options(output: argparse._ArgumentGroup) -> None:
    _add_dtype(output)
    output.add_argument("--format", default=FORMAT, metavar=FORMAT, help="of the program [%(default)s]")
    output.add_argument("--batch-size", type=_size, metavar="1..", help="of the program's inputs; any if not given")
    output.add_argument("--sequence-length", type=_size, metavar="1..", help="likewise, in tokens")


def _add_tgis(group: argparse._ArgumentGroup, name: str) -> None:
    group.add_argument("--trust-remote-code", action="store_true", help="refused: model code is never run")
    group.add_argument("--logger-level", metavar="LEVEL", default="INFO", help="no effect")
    group.add_argument("--json-output", action="store_true", help="no effect")
    if name == "quantize":
        group.add_argument("--upload-to-model-id", metavar="ID", help="refused: nothing is sent to the hub")
    if name == "download-weights":
        group.add_argument("--extension", default=".safetensors", metavar=".safetensors", help="no other is supported")
        group.add_argument("--auto-convert", action="store_true", help="no effect: always on")


OUTPUTS: dict[str, Callable[[argparse._ArgumentGroup], None]] = {
    "convert": _add_dtype,
    "quantize": _add_quantize_options,
    "export": _add_export_options,
}


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            near = suggestion(text, choices)
            raise argparse.ArgumentTypeError(f"must be one of {', '.join(choices)}{near}, got {text!r}")
        return text

    return parse


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)
