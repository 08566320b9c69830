"""The command line: TGI's letters, defaults and variables, and what is refused, by name."""

import pytest

from gateway.benchmark.command_line import parse
from gateway.benchmark.options import BenchmarkOptions
from jaxengine.options.option import UsageError

URL = "--url=http://127.0.0.1:1"


def test_the_defaults_are_tgis() -> None:
    options = parse([], {})
    assert options.batch_sizes == (1, 2, 4, 8, 16, 32)
    assert (options.sequence_length, options.decode_length, options.runs, options.warmups) == (10, 8, 10, 1)
    assert str(options.master_shard_uds_path) == "/tmp/text-generation-server-0" and options.revision == "main"


def test_a_seed_is_drawn_unless_it_is_given() -> None:
    assert parse([], {}).seed != parse([], {}).seed is not None
    assert parse(["--seed=5"], {}).seed == 5


def test_tgis_letters_are_understood() -> None:
    options = parse(
        ["-t=name", "-b=1", "-b", "2", "-s=3", "-d4", "-r=5", "-w=6", "-m=/x", "--do-sample", "--watermark"], {}
    )
    assert (options.tokenizer_name, options.batch_size, options.sequence_length) == ("name", (1, 2), 3)
    assert (options.decode_length, options.runs, options.warmups) == (4, 5, 6)
    assert options.do_sample and options.watermark and str(options.master_shard_uds_path) == "/x"


def test_tgis_variables_are_read_and_the_command_line_wins() -> None:
    # fmt: off
    environ = {
        "TOKENIZER_NAME": "t", "REVISION": "r", "SEQUENCE_LENGTH": "11", "DECODE_LENGTH": "12", "RUNS": "13",
        "WARMUPS": "14", "MASTER_SHARD_UDS_PATH": "/m", "TEMPERATURE": "0.5", "TOP_K": "15", "TOP_P": "0.6",
        "TYPICAL_P": "0.7", "REPETITION_PENALTY": "1.1", "FREQUENCY_PENALTY": "0.2", "WATERMARK": "true",
        "DO_SAMPLE": "true", "TOP_N_TOKENS": "16", "URL": "http://elsewhere", "BATCH_SIZE": "99",
    }
    # fmt: on
    options = parse(["--runs=1"], environ)
    assert options == BenchmarkOptions(
        tokenizer_name="t", revision="r", sequence_length=11, decode_length=12, runs=1, warmups=14,
        master_shard_uds_path=options.master_shard_uds_path, temperature=0.5, top_k=15, top_p=0.6, typical_p=0.7,
        repetition_penalty=1.1, frequency_penalty=0.2, watermark=True, do_sample=True, top_n_tokens=16,
        seed=options.seed,
    )  # fmt: skip
    assert parse([], {"RUNS": ""}).runs == 10


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--runs=0"], "--runs '0' must be between 1 and 10000"),
        (["-b=0"], "--batch-size '0' must be between 1 and 100000"),
        (["--url=localhost"], "--url 'localhost' must start with http"),
        (["--url=http://u:p@h"], "a key belongs in API_KEY"),
        (["--rate=1"], "--rate needs --url"),
        (["--sweep"], "--sweep needs --url"),
        (["--slo=ttft=1s"], "--slo needs --url"),
        ([URL, "--slo=soon"], "--slo 'soon' must be like ttft=500ms"),
        ([URL, "--burstiness=2"], "--burstiness needs --rate"),
        ([URL, "--slo-share=0.5"], "--slo-share needs --slo"),
        ([URL, "--prefix-length=5"], "--prefix-length needs --prompts shared-prefix"),
        ([URL, "--rate=1", "-b=2"], "--rate excludes --batch-size"),
        ([URL, "--rate=1", "--sweep"], "--rate excludes --sweep"),
        ([URL, "--sweep", "-b=1"], "--sweep excludes --batch-size"),
        ([URL, "--requests=1", "--duration=1"], "--duration excludes --requests"),
        (["--output=xml"], "--output 'xml' must be md, json or html, or a file"),
        (["--output", "md", "json"], "--output takes one format for standard output"),
        (["--output=/nowhere/a.html"], "must be in an existing directory"),
        (["--compare", "a.json"], "--compare takes two files .given 1."),
        (["--compare", "a.json", "b.json", URL], "--compare excludes --url"),
        ([URL, "-m=/x"], "--master-shard-uds-path excludes --url"),
        (["--api-key=x"], "--api-key needs --url"),
        (["--unknown"], "--unknown is unknown"),
        (["--url=http://hü/"], "--url .* must be printable ASCII"),
        (["--url=http://h/a b"], "--url .* must be printable ASCII"),
        (["--url=http://h/é"], "--url .* must be printable ASCII"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(argv, {})


def test_the_key_is_never_shown() -> None:
    options = parse([URL], {"API_KEY": "secret"})
    assert options.api_key == "secret" and "secret" not in repr(options)
    with pytest.raises(UsageError) as refused:
        parse([URL, "--api-key= "], {})
    assert "--api-key must" in str(refused.value)
    assert parse([], {"API_KEY": "clé"}).api_key is None, "a key for others is no mistake of the engine's benchmark"


@pytest.mark.parametrize("key", ["S3é", "S3\x1bb", " S3", "S3 ", "\nS3"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    for argv, environ in (([URL, f"--api-key={key}"], {}), ([URL], {"API_KEY": key})):
        with pytest.raises(UsageError, match="must be one line of printable ASCII") as refused:
            parse(argv, environ)
        assert "S3" not in str(refused.value)


def test_of_a_servers_keys_the_first_is_sent() -> None:
    assert parse([URL], {"API_KEY": "one\ntwo\n"}).api_key == "one"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:S3@h",
        "http://:S3@h",
        "http://@h",
        "user:S3@h",
        "http://u:S3@h:x",
        "http://h/v1?k=S3",
        "http://h/v1?",
        "http://h/#",
        "http://h/#S3",
    ],
)
def test_a_url_that_may_hold_a_secret_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="--url must hold no user, query or fragment") as refused:
        parse([f"--url={url}"], {})
    assert "S3" not in str(refused.value) and url not in str(refused.value)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_url_may_end_as_those_of_openais_clients(url: str) -> None:
    assert parse([f"--url={url}"], {}).url == "http://h:1"
