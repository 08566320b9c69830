"""Models that take pictures in a way that is not built: refused by name, rather than read as what they are not.

Their text parts are refused too.
"""

from collections.abc import Iterable, Mapping

from convert.config.config import Config

AUTHORS_LAYOUT = "its authors' layout is not read; name the repository whose name ends in -hf"
TOWER = "its vision tower is not built"
UNSERVED: Mapping[str, str] = {
    "llama4": "its vision tower and chunked attention are not built",
    **dict.fromkeys(("internvl_chat", "llava_llama", "llava_mistral", "llava_qwen"), AUTHORS_LAYOUT),
    **dict.fromkeys(("aria", "aya_vision", "blip-2", "chameleon", "cohere2_vision", "deepseek_vl", "florence2"), TOWER),
    **dict.fromkeys(("gemma3n", "gemma4", "glm4v", "glm4v_moe", "instructblip", "kosmos-2", "lfm2_vl"), TOWER),
    **dict.fromkeys(("llava_next_video", "llava_onevision", "ovis2", "perception_lm", "qwen2_5_omni"), TOWER),
    **dict.fromkeys(("qwen3_omni_moe", "video_llava", "vipllava"), TOWER),
}


def check_served(config: Config, served: Iterable[str]) -> None:
    """Raises CheckpointError where `config` is of one of these models; `served` are those that see."""
    if reason := UNSERVED.get(config.text("model_type")):
        raise config.error("model_type", f"is not supported: {reason}; models that see are {', '.join(served)}")
