#!/bin/sh
# What only a container has to settle before text-generation-launcher, which then takes this process's place.
set -eu

# SageMaker runs `IMAGE serve` and sets variables that TGI's image for SageMaker maps to these.
if [ "${1-}" = serve ]; then
    shift
    : "${HF_MODEL_ID:=${MODEL_ID:-}}"
    if [ -z "$HF_MODEL_ID" ] && [ -e "${SAGEMAKER_MODEL:=/opt/ml/model}/config.json" ]; then
        HF_MODEL_ID=$SAGEMAKER_MODEL # the endpoint's ModelDataUrl, unpacked
    fi
    if [ -z "$HF_MODEL_ID" ]; then
        echo "error: HF_MODEL_ID must be set: a model's id on the hub, or /opt/ml/model for the endpoint's own files" >&2
        exit 64
    fi
    export MODEL_ID="$HF_MODEL_ID"
    if [ -n "${HF_MODEL_REVISION-}" ]; then export REVISION="$HF_MODEL_REVISION"; fi
    if [ -n "${HF_MODEL_QUANTIZE-}" ]; then export QUANTIZE="$HF_MODEL_QUANTIZE"; fi
    if [ -n "${HF_MODEL_TRUST_REMOTE_CODE-}" ]; then export TRUST_REMOTE_CODE="$HF_MODEL_TRUST_REMOTE_CODE"; fi
    if [ -n "${SM_NUM_GPUS-}" ]; then export NUM_SHARD="$SM_NUM_GPUS"; fi
    set -- --port "${SAGEMAKER_BIND_TO_PORT:-8080}" "$@"
fi

is_writable() { mkdir -p "$1" 2>/dev/null && [ -w "$1" ]; }

# TGI's image runs as root, so what its users mount at /data is often root's. Their command works all the same.
if ! is_writable "$XDG_CACHE_HOME"; then
    unwritable="user $(id -u) cannot write to $XDG_CACHE_HOME" elsewhere=${TMPDIR:-/tmp}/text-generation
    remedy="If a directory is mounted at /data, change its owner (chown -R 10001 DIRECTORY), or run as root as TGI's \
image does (docker run --user 0 …), or mount a named volume (-v NAME:/data)"
    if ! is_writable "$elsewhere"; then
        echo "error: $unwritable. $remedy. If nothing is and the root is read-only, mount one" >&2
        exit 73
    fi
    echo "warning: $unwritable: what is fetched and compiled goes to $elsewhere, and is lost with this container." \
        "$remedy" >&2
    export XDG_CACHE_HOME="$elsewhere/.cache"
    # Models that /data has are read there. One that it lacks is then an error and not fetched again at each start.
    if [ -z "$(find "$HF_HOME/hub" -maxdepth 1 -name 'models--*' 2>/dev/null)" ]; then
        export HF_HOME="$elsewhere"
    fi
fi

exec text-generation-launcher "$@"
