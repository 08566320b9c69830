"""What the protocol tells of the server and its models, as plain values: JSON over HTTP, messages over gRPC."""

from typing import Any

from gateway import __version__
from gateway.observability.triton_metrics import DURATIONS
from gateway.request.gateway_state import Gateway
from gateway.routes.kserve.inference import VERSION, Model, Signature, TensorSpec
from gateway.routes.kserve.models import served_models
from gateway.routes.kserve.tensor import BYTES

SERVER = "text-generation"
EXTENSIONS = (
    "classification",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "schedule_policy",
    "model_repository",
)
PLATFORM = "jax"
LABELS = "vocabulary"  # Triton names a file; the labels here are the tokens' texts
NANOSECONDS = 1000  # of a microsecond


def server() -> dict[str, Any]:
    return {"name": SERVER, "version": __version__, "extensions": list(EXTENSIONS)}


def model_metadata(name: str, signature: Signature) -> dict[str, Any]:
    """Of the model that the client calls `name`."""

    def listed(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [{"name": each.name, "datatype": each.datatype, "shape": list(each.dims)} for each in specs]

    return {
        "name": name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": listed(signature.inputs),
        "outputs": listed(signature.outputs),
    }


def model_config(name: str, signature: Signature) -> dict[str, Any]:
    """Likewise, what Triton's `config.pbtxt` says of a model."""
    inputs = [
        {"name": each.name, "data_type": data_type(each), "dims": list(each.dims), "optional": each.optional}
        for each in signature.inputs
    ]
    outputs = [
        {
            "name": each.name,
            "data_type": data_type(each),
            "dims": list(each.dims),
            "label_filename": LABELS if each.labels else "",
        }
        for each in signature.outputs
    ]
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": inputs,
        "output": outputs,
        "model_transaction_policy": {"decoupled": signature.decoupled},
    }


def data_type(spec: TensorSpec) -> str:
    """As configurations of Triton write it."""
    return f"TYPE_{'STRING' if spec.datatype == BYTES else spec.datatype}"


def statistics(gateway: Gateway, models: list[Model]) -> list[dict[str, Any]]:
    """What the series of metrics have counted, of all HTTP processes."""
    names = ("nv_inference_count", "nv_inference_request_failure", "textgen_last_inference_ms")
    durations = (f"nv_inference_{name}_duration_us" for name in DURATIONS.values())
    count, failed, last, *times = gateway.metrics.totals(*names, *durations)
    spent = dict(zip(DURATIONS, times, strict=True))

    def of(model: Model) -> dict[str, Any]:
        done = int(count.get(model.name, 0))
        parts = {
            part: {"count": done, "ns": int(NANOSECONDS * values.get(model.name, 0))} for part, values in spent.items()
        }
        none = {"count": 0, "ns": 0}
        return {
            "name": model.name,
            "version": VERSION,
            "last_inference": int(last.get(model.name, 0)),
            "inference_count": done,
            "execution_count": done,
            "inference_stats": {
                "success": parts["total"],
                "fail": {"count": int(failed.get(model.name, 0)), "ns": 0},
                "queue": parts["queue"],
                "compute_input": parts["input"],
                "compute_infer": parts["infer"],
                "compute_output": parts["output"],
                "cache_hit": none,
                "cache_miss": none,
            },
            "batch_stats": [],
            "memory_usage": [],
            "response_stats": {},
        }

    return [of(model) for model in models]


def index(gateway: Gateway) -> list[dict[str, str]]:
    """All models of the repository; each is ready, and asked for only when it is."""
    return [{"name": each.name, "version": VERSION, "state": "READY", "reason": ""} for each in served_models(gateway)]
