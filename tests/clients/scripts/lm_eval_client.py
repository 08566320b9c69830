"""lm-eval, with nothing of the model at hand: its log-likelihoods of a task's choices, and its answers in a chat."""

import json
import sys
import tempfile
from pathlib import Path

import lm_eval

job = json.loads(sys.argv[1])
server = {"model": "tgi", "num_concurrent": 2, "max_retries": 1}


def evaluated(kind: str, route: str, task: dict, rows: list[dict], **options: object) -> list:
    """What the model answered to each row."""
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory) / "rows.json"
        data.write_text(json.dumps(rows))
        config = {
            "task": "local",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": directory},
            "test_split": "test",
            **task,
        }
        arguments = {"base_url": job["url"] + route, **server}
        result = lm_eval.simple_evaluate(kind, arguments, [config], log_samples=True, bootstrap_iters=0, **options)
    samples = sorted(result["samples"]["local"], key=lambda sample: sample["doc_id"])
    return [sample["resps"] for sample in samples]


if job["kind"] == "choices":
    choose = {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    }
    print(json.dumps(evaluated("local-completions", "/v1/completions", choose, job["rows"])))
else:
    generate = {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 40, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    }
    chat = {"apply_chat_template": True}
    print(json.dumps(evaluated("local-chat-completions", "/v1/chat/completions", generate, job["rows"], **chat)))
