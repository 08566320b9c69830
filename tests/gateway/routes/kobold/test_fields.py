"""No field that KoboldCpp reads is ignored unless it changes no answer, and the README has them all."""

import re
from pathlib import Path

from gateway.routes.kobold.schemas import GenerateBody
from gateway.routes.kobold.unsupported import UNSUPPORTED

ROOT = Path(__file__).resolve().parents[4]
KOBOLDCPP_1_102 = """
    adaptive_decay adaptive_target audio ban_eos_token banned_strings banned_tokens bypass_eos custom_token_bans
    dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dry_sequence_breakers dynatemp_exponent
    dynatemp_range genkey grammar grammar_retain_state guidance_scale images logit_bias max_context_length
    max_length memory min_p mirostat mirostat_eta mirostat_tau negative_prompt nsigma presence_penalty prompt
    reasoning_effort render_special rep_pen rep_pen_range rep_pen_slope repeat_penalty repetition_penalty
    sampler_order sampler_seed smoothing_curve smoothing_factor stop_sequence temperature tfs top_a top_k top_p
    trim_stop typical use_default_badwordsids xtc_probability xtc_threshold
"""
WITHOUT_EFFECT = {"adaptive_decay"}  # of `adaptive_target`, which is refused


def test_every_field_of_koboldcpp_is_known() -> None:
    assert {*KOBOLDCPP_1_102.split()} - GenerateBody.model_fields.keys() - UNSUPPORTED.keys() == WITHOUT_EFFECT


def test_the_page_has_every_field() -> None:
    section = (ROOT / "docs/clients.md").read_text().split("## KoboldAI and KoboldCpp")[1].split("\n## ")[0]
    rows = {
        row[0]: {*re.findall(r"`(\w+)`", row[1])} for row in re.findall(r"^\| ([^|]+?) \| (`.*) \|$", section, re.M)
    }
    assert rows["taken, with KoboldCpp's defaults; numbers may be texts"] == GenerateBody.model_fields.keys()
    assert rows["refused, unless they ask for nothing"] == UNSUPPORTED.keys()
