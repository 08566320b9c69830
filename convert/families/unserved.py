"""Models that take pictures in a way that is not built: refused by name, rather than read as what they are not.

Their text parts are refused too, unless a text part is a family here and was asked for alone.
"""

from collections.abc import Iterable, Mapping

from convert.config.config import Config

AUTHORS_LAYOUT = "its authors' layout is not read; name the repository whose name ends in -hf"
TOWER = "its vision tower is not built"
UNSERVED: Mapping[str, str] = {
    "gemma4": "its towers for pictures and sound are not built",
    "gemma4_unified": "what embeds its pictures and sound is not built",
    "llama4": "its vision tower and chunked attention are not built",
    **dict.fromkeys(("internvl_chat", "llava_llama", "llava_mistral", "llava_qwen"), AUTHORS_LAYOUT),
    **dict.fromkeys(("aria", "aya_vision", "blip-2", "chameleon", "cohere2_vision", "deepseek_vl", "florence2"), TOWER),
    **dict.fromkeys(("gemma3n", "glm4v", "glm4v_moe", "instructblip", "kosmos-2", "lfm2_vl"), TOWER),
    **dict.fromkeys(("llava_next_video", "llava_onevision", "ovis2", "perception_lm", "qwen2_5_omni"), TOWER),
    **dict.fromkeys(("qwen3_omni_moe", "video_llava", "vipllava"), TOWER),
}


TEXT_ALONE = ("gemma4", "gemma4_unified")  # whose text parts are served
OPTION = "--language-model-only"  # vLLM's name


def check_served(config: Config, served: Iterable[str]) -> None:
    """Raises CheckpointError where `config` is of one of these models; `served` are those that see."""
    kind = config.text("model_type")
    if kind in TEXT_ALONE and not config.text_alone:
        problem = f"is not supported whole: {UNSERVED[kind]}; {OPTION} serves its text part alone"
        raise config.error("model_type", problem)
    if kind not in TEXT_ALONE and (reason := UNSERVED.get(kind)):
        raise config.error("model_type", f"is not supported: {reason}; models that see are {', '.join(served)}")
