{{- /* Names begin with the chart's: charts that are installed as parts of one share them.

A release may be called qwen3.5, a Service may not: of its name, which begins with a letter, dots are no part. */}}

{{- define "text-generation.name" -}}
{{- $name := .Release.Name | contains .Chart.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- trunc 53 $name | replace "." "-" | trimSuffix "-" -}}
{{- end }}

{{- /* What the LeaderWorkerSet is called, and a Service that it makes for its pods to find each other: ours has another
name, or it would be taken for that one. Its StatefulSets add up to five characters, and may have names of 52. */}}
{{- define "text-generation.group" -}}
{{- $name := include "text-generation.name" . -}}
{{- $short := printf "%s-%s" (trunc 31 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}
{{- gt (len $name) 40 | ternary $short $name }}-group
{{- end }}

{{- define "text-generation.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "text-generation.metadata" -}}
name: {{ include "text-generation.name" . }}
{{ include "text-generation.membership" . }}
{{- end }}

{{- define "text-generation.membership" -}}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "text-generation.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Pods that serve; the leader of a group is one. */}}
{{- define "text-generation.pods" -}}
{{ include "text-generation.selector" . }}
app.kubernetes.io/component: server
{{- end }}

{{- /* The other pods of a group. */}}
{{- define "text-generation.workers" -}}
{{ include "text-generation.selector" . }}
app.kubernetes.io/component: worker
{{- end }}

{{- define "text-generation.all-pods" -}}
matchLabels:
  {{- include "text-generation.selector" . | nindent 2 }}
matchExpressions:
  - {key: app.kubernetes.io/component, operator: In, values: [server, worker]}
{{- end }}

{{- /* What a scaler gives more or fewer of: pods, or groups of them. */}}
{{- define "text-generation.scaled" -}}
{{- if eq (int .Values.hosts) 1 -}}
{apiVersion: apps/v1, kind: Deployment, name: {{ include "text-generation.name" . }}}
{{- else -}}
{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: {{ include "text-generation.group" . }}}
{{- end }}
{{- end }}

{{- define "text-generation.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "text-generation.gpus" -}}
{{- if eq .Values.server.device "gpu" }}{{ mul .Values.server.numShard .Values.server.replicas }}{{ else }}0{{ end }}
{{- end }}

{{- /* Whether pods share a volume that one pod at a time can have. */}}
{{- define "text-generation.one-pod" -}}
{{- if and (eq .Values.cache.type "claim") (ne .Values.cache.accessMode "ReadWriteMany") }}true{{ end }}
{{- end }}

{{- define "text-generation.strategy" -}}
{{- .Values.strategy | default (include "text-generation.one-pod" . | empty | ternary "RollingUpdate" "Recreate") }}
{{- end }}

{{- /* What the server gives its engines to become ready: --startup-timeout, or its default if that is longer. */}}
{{- define "text-generation.startup-seconds" -}}
{{- get .Values.server.options "startup-timeout" | float64 | ceil | max 1800 -}}
{{- end }}

{{- define "text-generation.pod-security" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- with .Values.user }}
runAsUser: {{ int64 . }}
runAsGroup: 0
fsGroup: {{ int64 . }}
{{- end }}
# At every mount, Always would let the group write to the cache, which the server then does not trust. OpenShift, which
# chooses the group itself, says nothing of it.
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "text-generation.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* For containers without a GPU: where NVIDIA's runtime is the default, the image's own variable asks for all. */}}
{{- define "text-generation.no-gpu" -}}
- {name: NVIDIA_VISIBLE_DEVICES, value: void}
- {name: JAX_PLATFORMS, value: cpu}
{{- end }}

{{- define "text-generation.environment" -}}
{{- if .Values.model.tokenSecret.name }}
- {name: HF_TOKEN_PATH, value: /secrets/hub/token}
{{- end }}
{{- /* The hub's library sets no limit to a connection that nothing refuses: each try would take two minutes. */}}
{{- $offline := and .Values.networkPolicy.enabled (not .Values.networkPolicy.hub) }}
{{- if and $offline (not (contains "HF_HUB_OFFLINE" (toJson .Values.server.env))) }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- with .Values.server.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "text-generation.mounts" -}}
- {name: cache, mountPath: /data}
- {name: tmp, mountPath: /tmp}
{{- if .Values.model.tokenSecret.name }}
- {name: hub-token, mountPath: /secrets/hub, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "text-generation.keys-volume" -}}
name: api-keys
secret:
  secretName: {{ .Values.apiKeys.secretName | quote }}
  defaultMode: 0440
  items: [{key: {{ .Values.apiKeys.key | quote }}, path: keys}]
{{- end }}

{{- /* How Prometheus tells this release's series from others. */}}
{{- define "text-generation.series" -}}
{{- $ours := printf "job=\"%s/%s\"" .Release.Namespace (include "text-generation.name" .) }}
{{- .Values.monitoring.selector | default $ours }}
{{- end }}

{{- /* What a scaler watches. vLLM's names mean the same, but adapters of custom metrics have trouble with a colon. */}}
{{- define "text-generation.load" -}}
{{- eq .Values.autoscaling.metric "waiting" | ternary "tgi_queue_size" "tgi_batch_current_size" }}
{{- end }}

{{- /* The launcher's options. What values above have a place for is refused under server.options. */}}
{{- define "text-generation.options" -}}
{{- with .Values.model }}
{{- with .id }}
- {{ printf "--model-id=%s" . | quote }}
{{- end }}
{{- with .revision }}
- {{ printf "--revision=%s" . | quote }}
{{- end }}
{{- range .names }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
{{- end }}
- --port=3000
- --admin-port=9000
- --admin-hostname=0.0.0.0
- --num-shard={{ .Values.server.numShard }}
- --replicas={{ .Values.server.replicas }}
- --graceful-termination-timeout={{ .Values.server.gracefulTerminationSeconds }}
{{- range $name, $value := .Values.server.options }}
{{- range kindIs "slice" $value | ternary $value (list $value) }}
- {{ printf "--%s=%s" $name (kindIs "string" . | ternary . (toJson .)) | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Values that contradict each other: what a schema cannot say. */}}
{{- define "text-generation.check" -}}
{{- $name := include "text-generation.name" . }}
{{- if not (regexMatch "^[a-z]" $name) }}
{{- fail (printf "the release's name gives the Service the name %s, which must begin with a letter" $name) }}
{{- end }}
{{- $elsewhere := dict "model-id" "model.id" "revision" "model.revision" "served-model-name" "model.names"
    "num-shard" "server.numShard" "sharded" "server.numShard" "replicas" "server.replicas" "api-key" "apiKeys"
    "api-key-file" "apiKeys" "graceful-termination-timeout" "server.gracefulTerminationSeconds" "port" "service.port"
    "aip-http-port" "service.port" "prometheus-port" "monitoring" "admin-port" "monitoring"
    "admin-exclusive" "monitoring"
    "nnodes" "hosts" "node-rank" "hosts" "master-addr" "hosts" "group-key-file" "group.keySecret" }}
{{- range $name := keys .Values.server.options | sortAlpha }}
{{- with get $elsewhere $name }}
{{- fail (printf "server.options.%s is the chart's own: set %s" $name .) }}
{{- end }}
{{- end }}
{{- if hasKey .Values.server.options "ngrok-authtoken" }}
{{- $other := "set ngrok-authtoken-file, or NGROK_AUTHTOKEN in server.env, from a Secret" }}
{{- fail (printf "server.options.ngrok-authtoken would show the token to whoever sees the pod: %s" $other) }}
{{- end }}
{{- $gpu := .Values.server.gpuResource }}
{{- range $part, $quantities := .Values.resources }}
{{- if hasKey $quantities $gpu }}
{{- fail (printf "resources.%s must not name %s: it is server.numShard × server.replicas" $part $gpu) }}
{{- end }}
{{- end }}
{{- if and (eq .Values.server.device "cpu") (gt (int .Values.server.numShard) 1) }}
{{- fail (printf "server.numShard is %v, but a CPU is one device: it must be 1" .Values.server.numShard) }}
{{- end }}
{{- $hosts := int .Values.hosts }}
{{- if and (gt $hosts 1) (gt (int .Values.server.replicas) 1) }}
{{- $other := "replicas is how many groups of hosts there are" }}
{{- fail (printf "hosts is %d, but each of server.replicas has the whole model: it must be 1; %s" $hosts $other) }}
{{- end }}
{{- with .Values.group }}
{{- if and (eq $hosts 1) (or .keySecret.name .exclusiveTopology) }}
{{- fail "group is for a model over several hosts, but hosts is 1" }}
{{- end }}
{{- end }}
{{- with .Values.autoscaling }}
{{- if and (ne .type "none") (gt (int .min) (int .max)) }}
{{- fail (printf "autoscaling.min is %v, above autoscaling.max, which is %v" .min .max) }}
{{- end }}
{{- if and (ne .type "none") (eq .metric "running") (hasKey $.Values.server.options "max-batch-size") }}
{{- $most := mul (get $.Values.server.options "max-batch-size") $.Values.server.replicas }}
{{- if ge (int .target) (int $most) }}
{{- fail (printf "autoscaling.target is %v, but a pod runs %d requests at most: it must be less" .target $most) }}
{{- end }}
{{- end }}
{{- if and (eq .type "keda") (not .prometheus) }}
{{- fail "autoscaling.type keda needs autoscaling.prometheus, the address of Prometheus" }}
{{- end }}
{{- end }}
{{- if include "text-generation.one-pod" . }}
{{- $alone := printf "a volume that is %s" .Values.cache.accessMode }}
{{- $other := "set cache.accessMode to ReadWriteMany, or cache.type to perPod or emptyDir" }}
{{- $groups := eq .Values.autoscaling.type "none" | ternary .Values.replicas .Values.autoscaling.max | int }}
{{- $pods := max 1 $groups | mul $hosts }}
{{- if gt $pods 1 }}
{{- fail (printf "%d pods cannot share %s: %s" $pods $alone $other) }}
{{- end }}
{{- if eq .Values.strategy "RollingUpdate" }}
{{- fail (printf "strategy RollingUpdate starts a pod while the old one has %s: use Recreate, or %s" $alone $other) }}
{{- end }}
{{- end }}
{{- with .Values.cache }}
{{- if and .existingClaim (ne .type "claim") }}
{{- fail (printf "cache.existingClaim is %s, but cache.type is %s: it must be claim" .existingClaim .type) }}
{{- end }}
{{- end }}
{{- $scaler := eq .Values.autoscaling.type "keda" | ternary "autoscaling.type keda" "" }}
{{- $asks := .Values.monitoring.rules.enabled | ternary "monitoring.rules.enabled" $scaler }}
{{- if and $asks (not .Values.monitoring.podMonitor.enabled) (not .Values.monitoring.selector) }}
{{- $other := "set monitoring.podMonitor.enabled, or monitoring.selector if pods are scraped otherwise" }}
{{- fail (printf "%s asks Prometheus for series that nothing collects: %s" $asks $other) }}
{{- end }}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker.name) }}
{{- fail "inferencePool.enabled needs inferencePool.endpointPicker.name, the Service of the endpoint picker" }}
{{- end }}
{{- if and .Values.route.enabled (not .Values.route.parentRefs) }}
{{- fail "route.enabled needs route.parentRefs, the gateways that it is for" }}
{{- end }}
{{- end }}
