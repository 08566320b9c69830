"""An `LLM` in a forked process: JAX's threads are not there, and a step without them would never end."""

import os
import sys
import traceback

import pytest

from jaxengine.llm import LLM, SamplingParams


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:This process:DeprecationWarning")
def test_it_is_refused_with_what_to_do_and_the_first_process_goes_on(
    llm: LLM, capfd: pytest.CaptureFixture[str]
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=2)
    before = llm.generate("hello", greedy, use_tqdm=False)[0].text
    if not (child := os.fork()):
        try:
            llm.generate("hello", greedy, use_tqdm=False)
        except BaseException:
            traceback.print_exc(limit=0)
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    said = capfd.readouterr().err
    assert f"RuntimeError: this LLM runs in process {os.getpid()}, of which this one is a fork" in said
    assert 'multiprocessing.get_context("spawn")' in said
    assert llm.generate("hello", greedy, use_tqdm=False)[0].text == before
