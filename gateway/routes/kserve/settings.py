"""What Triton lets clients change and this server does not: its models, its settings, its shared memory."""

FIXED = "models are fixed when the server starts: this one neither loads nor unloads any"
SETTINGS = "settings are fixed when the server starts, by its options"
NO_SHARED_MEMORY = "shared memory is not supported: send and receive tensors as binary data"
LOG_SETTINGS: dict[str, str | bool | int] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
TRACE_SETTINGS: dict[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
