{{- /* Of one pod, which serves. In a group of several hosts it leads, and the others are the same but that nobody asks
them anything: with .worker no ports, no probes and no keys of users. */}}
{{- define "text-generation.pod-template" -}}
{{- $server := .Values.server }}
{{- $keys := and .Values.apiKeys.secretName (not .worker) }}
metadata:
  labels:
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- include (empty .worker | ternary "text-generation.pods" "text-generation.workers") . | nindent 4 }}
  annotations:
    kubectl.kubernetes.io/default-container: server
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  # Variables that tell of each Service of the namespace, PROMETHEUS_PORT of one called prometheus, are no options.
  enableServiceLinks: false
  # 10 s of preStop, the running requests, and the end of the engines.
  terminationGracePeriodSeconds: {{ add 20 $server.gracefulTerminationSeconds }}
  securityContext:
    {{- include "text-generation.pod-security" . | nindent 4 }}
  {{- with .Values.serviceAccountName }}
  serviceAccountName: {{ quote . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ quote . }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ quote . }}
  {{- end }}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ quote . }}
    {{- end }}
  {{- end }}
  {{- $local := or (hasPrefix "/" .Values.model.id) (hasKey $server.options "weights-cache-override") }}
  {{- if and .Values.model.downloadFirst (not $local) }}
  initContainers:
    - name: download
      image: {{ include "text-generation.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [tini, --, text-generation-server, download-weights]
      args:
        - {{ .Values.model.id | default "default" | quote }}
        {{- with .Values.model.revision }}
        - {{ printf "--revision=%s" . | quote }}
        {{- end }}
      env:
        {{- include "text-generation.no-gpu" . | nindent 8 }}
        {{- with include "text-generation.environment" . | trim }}
        {{- . | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "text-generation.container-security" . | nindent 8 }}
      volumeMounts:
        {{- include "text-generation.mounts" . | nindent 8 }}
  {{- end }}
  containers:
    - name: server
      image: {{ include "text-generation.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        {{- include "text-generation.options" . | trim | nindent 8 }}
        {{- $leads := and (gt (int .Values.hosts) 1) (not .worker) }}
        {{- if $leads }}
        # Where it listens: its name, which workers look for until they find it, may be known only later.
        - --master-addr=$(POD_ADDRESS)
        {{- end }}
        {{- if .Values.group.keySecret.name }}
        - --group-key-file=/secrets/group/key
        {{- end }}
        {{- if $keys }}
        - --api-key-file=/secrets/keys/keys
        {{- end }}
      {{- $noGpu := eq $server.device "cpu" | ternary (include "text-generation.no-gpu" .) "" }}
      {{- $address := "- {name: POD_ADDRESS, valueFrom: {fieldRef: {fieldPath: status.podIP}}}" }}
      {{- $address = $leads | ternary $address "" }}
      {{- with list $address $noGpu (include "text-generation.environment" .) | join "\n" | trim }}
      env:
        {{- . | nindent 8 }}
      {{- end }}
      {{- if not .worker }}
      ports:
        - {name: http, containerPort: 3000}
        - {name: admin, containerPort: 9000}
      # Loading and compiling may take as long as --startup-timeout; a minute more, and the server has said why.
      startupProbe:
        httpGet: {path: /health/ready, port: admin}
        periodSeconds: 5
        failureThreshold: {{ div (include "text-generation.startup-seconds" . | int | add 60) 5 }}
      # Whether it takes new requests: not while it loads, while no engine runs, and once it is to stop.
      readinessProbe:
        httpGet: {path: /health/ready, port: admin}
        periodSeconds: 2
        failureThreshold: 2
      # Of life alone: the server restarts its engines itself, so readiness here would be a loop of restarts.
      livenessProbe:
        httpGet: {path: /health/live, port: admin}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      lifecycle:
        preStop:
          sleep: {seconds: 10}  # until proxies have heard that this pod goes
      {{- end }}
      resources:
        requests:
          {{- toYaml .Values.resources.requests | nindent 10 }}
        limits:
          {{- with .Values.resources.limits }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
          {{- if eq $server.device "gpu" }}
          {{ $server.gpuResource }}: {{ include "text-generation.gpus" . }}
          {{- end }}
      securityContext:
        {{- include "text-generation.container-security" . | nindent 8 }}
      volumeMounts:
        {{- include "text-generation.mounts" . | nindent 8 }}
        - {name: shm, mountPath: /dev/shm}
        {{- if .Values.group.keySecret.name }}
        - {name: group-key, mountPath: /secrets/group, readOnly: true}
        {{- end }}
        {{- if $keys }}
        - {name: api-keys, mountPath: /secrets/keys, readOnly: true}
        {{- end }}
  volumes:
    - name: cache
      {{- include "text-generation.cache-volume" . | trim | nindent 6 }}
    - name: tmp
      emptyDir: {sizeLimit: {{ .Values.tmpSize }}}
    - name: shm
      emptyDir: {medium: Memory, sizeLimit: {{ .Values.shmSize }}}
    {{- with .Values.group.keySecret }}
    {{- if .name }}
    - name: group-key
      secret:
        secretName: {{ quote .name }}
        defaultMode: 0440
        items: [{key: {{ .key | quote }}, path: key}]
    {{- end }}
    {{- end }}
    {{- if $keys }}
    - {{ include "text-generation.keys-volume" . | nindent 6 | trim }}
    {{- end }}
    {{- with .Values.model.tokenSecret }}
    {{- if .name }}
    - name: hub-token
      secret:
        secretName: {{ quote .name }}
        defaultMode: 0440
        items: [{key: {{ .key | quote }}, path: token}]
    {{- end }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .Values.spreadOverNodes }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        {{- include "text-generation.all-pods" . | nindent 8 }}
  {{- end }}
{{- end }}
