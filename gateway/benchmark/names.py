"""How measures are called for people, and how their numbers are written."""

NAMES = {
    "prefill_ms": "Prefill, ms",
    "decode_token_ms": "Decode (token), ms",
    "decode_total_ms": "Decode (total), ms",
    "prefill_tokens_per_second": "Prefill, tokens/s",
    "decode_tokens_per_second": "Decode, tokens/s",
    "requests_per_second": "requests/s",
    "good_requests_per_second": "good requests/s",
    "output_tokens_per_second": "output tokens/s",
    "total_tokens_per_second": "all tokens/s",
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "itl_ms": "ITL, ms",
    "e2e_ms": "E2E, ms",
    "sent_late_ms": "sent late, ms",
}


def number(value: float) -> str:
    """Four digits, and no fewer than the whole ones."""
    if value and abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:,.0f}"
